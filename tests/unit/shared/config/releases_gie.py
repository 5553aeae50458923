"""Documents in the styles of the Gateway API Inference Extension's releases, each with what sets it apart."""

from tests.unit.shared.config.examples import DETECTOR, GIE, GROUP, PARSER, moved, no_gate
from tests.unit.shared.config.releases import DATA, QUEUES, THRESHOLDS, Release, in_tokens, renamed

RELEASES = {
    "GIE 0.5": Release(
        GIE
        + """\
plugins:
- type: queue-scorer
- type: kv-cache-scorer
- type: prefix-cache-scorer
  parameters:
    hashBlockSize: 512
    maxPrefixBlocksToMatch: 200
    lruCapacityPerServer: 9000
- type: random-picker
  parameters:
    maxNumOfEndpoints: 2
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 1
  - pluginRef: kv-cache-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
  - pluginRef: random-picker
""",
        (
            GROUP,
            renamed(1, "kv-cache-scorer", "kv-cache-utilization-scorer"),
            in_tokens(2, "hashBlockSize", 128),
            *moved(2, "maxPrefixBlocksToMatch", "lruCapacityPerServer"),
        ),
        ("hashBlockSize", "hashBlocksSize"),
        "plugins[2].parameters.hashBlocksSize: unknown field; did you mean 'hashBlockSize'?",
    ),
    "GIE 1.0": Release(
        GIE
        + """\
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: lora-affinity-scorer
- type: prefix-cache-scorer
  parameters:
    hashBlockSize: 256
- type: weighted-random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: kv-cache-utilization-scorer
  - pluginRef: lora-affinity-scorer
  - pluginRef: prefix-cache-scorer
  - pluginRef: weighted-random-picker
""",
        (GROUP, in_tokens(3, "hashBlockSize", 64)),
        ("type: lora-affinity-scorer", "type: lora-afinity-scorer"),
        "plugins[2].type: 'lora-afinity-scorer' is no plugin type that is installed; "
        "did you mean 'lora-affinity-scorer'?",
    ),
    "GIE 1.1": Release(
        GIE
        + """\
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
  parameters:
    blockSize: 260
    lruCapacityPerServer: 5000
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 4
  - pluginRef: prefix-cache-scorer
    weight: 6
  - pluginRef: max-score-picker
""",
        (GROUP, in_tokens(1, "blockSize", 65), *moved(1, "lruCapacityPerServer")),
        ("    weight: 4", "    wieght: 4"),
        "schedulingProfiles[0].plugins[0].wieght: unknown field; did you mean 'weight'?",
    ),
    "GIE 1.2": Release(
        GIE
        + """\
featureGates: [dataLayer]
saturationDetector:
  queueDepthThreshold: 8
  kvCacheUtilThreshold: 0.7
  metricsStalenessThreshold: 400ms
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
  parameters:
    autoTune: false
    blockSize: 400
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
""",
        (GROUP, no_gate("dataLayer"), *moved(2, "autoTune"), in_tokens(2, "blockSize", 100), THRESHOLDS),
        ("kvCacheUtilThreshold", "kvCacheUtilisationThreshold"),
        "saturationDetector.kvCacheUtilisationThreshold: unknown field; did you mean 'kvCacheUtilThreshold'?",
    ),
    "GIE 1.3": Release(
        GIE
        + """\
featureGates: [dataLayer, prepareDataPlugins]
plugins:
- name: pages
  type: metrics-data-source
  parameters: {Scheme: http, Path: /metrics, InsecureSkipVerify: true}
- name: numbers
  type: model-server-protocol-metrics
  parameters:
    queueRequestsSpec: vllm:num_requests_waiting
    runningRequestsSpec: vllm:num_requests_running
    kvUsageSpec: vllm:kv_cache_usage_perc
    loraSpec: vllm:lora_requests_info
    cacheInfoSpec: vllm:cache_config_info
- type: running-requests-size-scorer
- type: prefix-cache-scorer
data:
  sources:
  - pluginRef: pages
    extractors:
    - pluginRef: numbers
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: running-requests-size-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
""",
        (
            GROUP,
            no_gate("dataLayer"),
            no_gate("prepareDataPlugins", 1),
            renamed(1, "model-server-protocol-metrics", "core-metrics-extractor"),
            *(
                f"plugins[1].parameters: {one} is deprecated; write an entry of engineConfigs"
                for one in ("queueRequestsSpec", "runningRequestsSpec", "kvUsageSpec", "loraSpec", "cacheInfoSpec")
            ),
            DATA,
        ),
        ("    extractors:", "    extractor:"),
        "data.sources[0].extractor: unknown field; did you mean 'extractors'?",
    ),
    "GIE 1.4": Release(
        GIE
        + """\
featureGates: [dataLayer, flowControl]
saturationDetector:
  queueDepthThreshold: 12
plugins:
- type: metrics-data-source
  parameters: {scheme: http, path: /metrics}
- type: model-server-protocol-metrics
  parameters:
    engineLabelKey: engine
    defaultEngine: north
    engineConfigs:
    - name: north
      queuedRequestsSpec: north_waiting
      runningRequestsSpec: north_running
      kvUsageSpec: north_cache_usage
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
  parameters:
    blockSizeTokens: 96
    blockSize: 16
data:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: model-server-protocol-metrics
flowControl:
  maxBytes: 3000000000
  defaultRequestTTL: 45s
  defaultPriorityBand:
    maxBytes: 500000000
  priorityBands:
  - priority: 50
    maxBytes: 800000000
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 1.5
  - pluginRef: kv-cache-utilization-scorer
    weight: 0.5
  - pluginRef: prefix-cache-scorer
    weight: 2.25
""",
        (
            GROUP,
            no_gate("dataLayer"),
            QUEUES,
            renamed(1, "model-server-protocol-metrics", "core-metrics-extractor"),
            *moved(4, "blockSizeTokens"),
            "plugins[4].parameters: blockSize is deprecated, and has no effect beside blockSizeTokens; leave it out",
            DATA,
            THRESHOLDS,
        ),
        ("defaultRequestTTL", "defaultRequestTtl"),
        "flowControl.defaultRequestTtl: unknown field; did you mean 'defaultRequestTTL'?",
    ),
    "GIE 1.5": Release(
        GIE
        + """\
featureGates: [dataLayer, enableLegacyMetrics, flowControl]
plugins:
- type: metrics-data-source
- type: core-metrics-extractor
  parameters:
    defaultEngine: north
    engineConfigs:
    - name: north
      queuedRequestsSpec: north_waiting
      kvUsageSpec: north_cache_usage
      cacheBlockSizeSpec: north_block_tokens
      cacheNumBlocksSpec: north_blocks
- type: approx-prefix-cache-producer
  parameters: {autoTune: true, blockSizeTokens: 32, maxPrefixTokensToMatch: 60000}
- type: prefix-cache-scorer
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: token-load-scorer
  parameters: {queueThresholdTokens: 2000000}
- name: gauge
  type: utilization-detector
  parameters: {queueDepthThreshold: 9, headroom: 0.25}
- type: vllmgrpc-parser
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
saturationDetector:
  pluginRef: gauge
parser:
  pluginRef: vllmgrpc-parser
flowControl:
  maxBytes: 4Gi
  maxRequests: 2k
  priorityBands:
  - priority: 1
    maxRequests: "300"
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: prefix-cache-scorer
    weight: 3
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: token-load-scorer
""",
        (GROUP, no_gate("dataLayer"), no_gate("enableLegacyMetrics", 1), QUEUES, PARSER, DETECTOR),
        ("saturationDetector:", "saturationDetecter:"),
        "saturationDetecter: unknown field; did you mean 'saturationDetector'?",
    ),
}
