"""Documents in the shapes of the Gateway API Inference Extension: its charts, guides and tests."""

from tests.unit.shared.config.examples import DETECTOR, GIE, GROUP, PARSER, SCRAPED, Example, moved, no_gate

EXAMPLES = {
    "an admitter, and a detector that is never saturated": Example(
        GIE
        + """\
plugins:
- type: probabilistic-admitter
- type: random-picker
- type: utilization-detector
  parameters: {queueDepthThreshold: 500000000, kvCacheUtilThreshold: 1.0}
saturationDetector: {pluginRef: utilization-detector}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: random-picker}]
""",
        {"default": "random-picker"},
        (GROUP, DETECTOR),
        parameters={"utilization-detector": {"queue_depth_threshold": 500000000, "kv_cache_util_threshold": 1.0}},
    ),
    "four scorers without weights, and a parser": Example(
        GIE
        + """\
featureGates: [enableLegacyMetrics]
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: lora-affinity-scorer
- type: openai-parser
parser: {pluginRef: openai-parser}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: kv-cache-utilization-scorer
  - pluginRef: prefix-cache-scorer
  - pluginRef: lora-affinity-scorer
""",
        {
            "default": "queue-scorer kv-cache-utilization-scorer prefix-cache-scorer lora-affinity-scorer "
            "max-score-picker"
        },
        (GROUP, no_gate("enableLegacyMetrics"), PARSER),
        parsers=("openai-parser",),
    ),
    "a source of one's own beside the scraped one": Example(
        GIE
        + """\
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: lora-affinity-scorer
- type: openai-parser
- type: canned-metrics-source
parser: {pluginRef: openai-parser}
dataLayer:
  sources:
  - pluginRef: canned-metrics-source
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: kv-cache-utilization-scorer
  - pluginRef: prefix-cache-scorer
  - pluginRef: lora-affinity-scorer
""",
        {
            "default": "queue-scorer kv-cache-utilization-scorer prefix-cache-scorer lora-affinity-scorer "
            "max-score-picker"
        },
        (GROUP, PARSER),
        sources=(("canned-metrics-source", ()), *SCRAPED),
        parsers=("openai-parser",),
    ),
    "a profile of plugins that play no part in it": Example(
        GIE
        + """\
featureGates: [enableLegacyMetrics]
plugins:
- type: openai-parser
- name: cost
  type: request-attribute-reporter
  parameters:
    attributes:
    - key: {namespace: envoy.lb, name: x-cost}
      expression: "usage.prompt_tokens\\n"
      condition: has(usage.prompt_tokens)
parser: {pluginRef: openai-parser}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: openai-parser}, {pluginRef: cost}]
""",
        {"default": "openai-parser cost max-score-picker"},
        (GROUP, no_gate("enableLegacyMetrics"), PARSER),
        parsers=("openai-parser",),
    ),
    "a chart's document for another engine over gRPC": Example(
        GIE
        + """\
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
  parameters: {scheme: https, path: /stats, insecureSkipVerify: false}
- type: core-metrics-extractor
  parameters: {defaultEngine: sglang}
- type: vllmgrpc-parser
parser: {pluginRef: vllmgrpc-parser}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
""",
        {"default": "queue-scorer=2 kv-cache-utilization-scorer=2 prefix-cache-scorer=3 max-score-picker"},
        (GROUP, PARSER),
        parsers=("vllmgrpc-parser",),
        parameters={
            "metrics-data-source": {"scheme": "https", "path": "/stats", "insecure_skip_verify": False},
            "core-metrics-extractor": {"default_engine": "sglang"},
        },
    ),
    "a chart's document for predicted latency": Example(
        GIE
        + """\
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
- type: core-metrics-extractor
- type: predicted-latency-producer
- {name: near, type: prefix-cache-affinity-filter, parameters: {affinityThreshold: 0.95}}
- {name: wide, type: prefix-cache-affinity-filter, parameters: {affinityThreshold: 0.7}}
- type: latency-scorer
- type: weighted-random-picker
- type: slo-headroom-tier-filter
- type: latency-slo-admitter
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: predicted-latency-producer
  - pluginRef: near
  - pluginRef: slo-headroom-tier-filter
  - pluginRef: wide
  - pluginRef: latency-scorer
  - pluginRef: weighted-random-picker
""",
        {
            "default": "predicted-latency-producer near slo-headroom-tier-filter wide latency-scorer "
            "weighted-random-picker"
        },
        (GROUP,),
    ),
    "plugins of a test, with thresholds in the section": Example(
        GIE
        + """\
featureGates: [dataLayer]
plugins:
- {name: first, type: test-one, parameters: {threshold: 3}}
- {name: second, type: test-two-scorer, parameters: {hashBlockSize: 6}}
- {name: third, type: test-picker}
saturationDetector: {metricsStalenessThreshold: 300ms}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: first
  - {pluginRef: second, weight: 20}
  - pluginRef: third
""",
        {"default": "first second=20 third"},
        (
            GROUP,
            no_gate("dataLayer"),
            "saturationDetector: thresholds here are deprecated; write a utilization-detector plugin",
        ),
        parameters={"utilization-detector": {"metrics_staleness_threshold": 0.3}},
    ),
    "a filter of the conformance suite alone": Example(
        GIE
        + """\
plugins:
- type: header-based-testing-filter
- type: destination-endpoint-served-verifier
schedulingProfiles:
- name: by-header
  plugins: [{pluginRef: header-based-testing-filter}]
""",
        {"by-header": "header-based-testing-filter max-score-picker"},
        (GROUP,),
    ),
    "a metric of one's own that steers": Example(
        GIE
        + """\
featureGates: [dataLayer]
plugins:
- {name: page, type: metrics-data-source, parameters: {path: /metrics, scheme: http}}
- name: swapped
  type: prometheus-metric
  parameters: {metricName: "vllm:num_requests_swapped", labels: {model_name: north}}
- name: calm
  type: metric-scorer
  parameters:
    {metricName: "vllm:num_requests_swapped", optimizationMode: Minimize, normalizationAlgo: Linear, min: 0, max: 20}
- type: max-score-picker
- type: single-profile-handler
- {type: prefix-cache-scorer, parameters: {blockSizeTokens: 128}}
data:
  sources:
  - pluginRef: page
    extractors: [{pluginRef: swapped}]
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: calm, weight: 30}
  - {pluginRef: prefix-cache-scorer, weight: 70}
  - {pluginRef: max-score-picker}
""",
        {"default": "calm=30 prefix-cache-scorer=70 max-score-picker"},
        (GROUP, no_gate("dataLayer"), *moved(5, "blockSizeTokens"), "data: deprecated; write dataLayer"),
        sources=(("page", ("swapped", "core-metrics-extractor")),),
        parameters={"approx-prefix-cache-producer": {"block_size_tokens": 128}},
    ),
    "a decision tree of filters": Example(
        GIE
        + """\
plugins:
- {name: short, type: low-queue-filter, parameters: {threshold: 64}}
- {name: loaded, type: lora-affinity-filter, parameters: {threshold: 0.9}}
- {name: shortest, type: least-queue-filter}
- {name: emptiest, type: least-kv-cache-filter}
- name: tree
  type: decision-tree-filter
  parameters:
    current: {pluginRef: short}
    nextOnSuccess: {decisionTree: {current: {pluginRef: loaded}, nextOnSuccessOrFailure: {pluginRef: shortest}}}
    nextOnFailure: {decisionTree: {current: {pluginRef: shortest}, nextOnSuccessOrFailure: {pluginRef: emptiest}}}
- {type: random-picker, parameters: {maxNumOfEndpoints: 2}}
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins: [{pluginRef: tree}, {pluginRef: random-picker}]
""",
        {"default": "tree random-picker"},
        (GROUP,),
        parameters={"random-picker": {"max_num_of_endpoints": 2}},
    ),
    "scorers under their first names": Example(
        GIE
        + """\
plugins:
- type: queue-scorer
- type: kv-cache-scorer
- {type: prefix-cache-scorer, parameters: {hashBlockSize: 128, maxPrefixBlocksToMatch: 64, lruCapacityPerServer: 100}}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-scorer, weight: 1}
  - {pluginRef: prefix-cache-scorer, weight: 1}
  - {pluginRef: max-score-picker}
""",
        {"default": "queue-scorer=2 kv-cache-scorer prefix-cache-scorer max-score-picker"},
        (
            GROUP,
            "plugins[1].type: kv-cache-scorer is deprecated; write kv-cache-utilization-scorer",
            "plugins[2].parameters: hashBlockSize is deprecated; "
            "write blockSizeTokens: 32 (tokens, not bytes) on approx-prefix-cache-producer",
            *moved(2, "maxPrefixBlocksToMatch", "lruCapacityPerServer"),
        ),
        parameters={
            "approx-prefix-cache-producer": {"lru_capacity_per_server": 100},
            "max-score-picker": {"max_num_of_endpoints": 3},
        },
    ),
    "three scorers without weights": Example(
        GIE
        + """\
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: kv-cache-utilization-scorer
  - pluginRef: prefix-cache-scorer
""",
        {"default": "queue-scorer kv-cache-utilization-scorer prefix-cache-scorer max-score-picker"},
        (GROUP,),
    ),
    "one scorer of predicted latency with all its knobs": Example(
        GIE
        + """\
featureGates: [prepareDataPlugins]
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: predicted-latency-scorer
  parameters: {samplingMean: 500, sloBufferFactor: 2, headroomSelectionStrategy: least, affinityGateTau: 0.5}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: predicted-latency-scorer}]
""",
        {"default": "predicted-latency-scorer max-score-picker"},
        (GROUP, no_gate("prepareDataPlugins")),
    ),
}
