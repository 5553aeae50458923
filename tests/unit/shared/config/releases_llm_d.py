"""Documents in the styles of llm-d's releases, each with what sets it apart."""

from tests.unit.shared.config.examples import GIE, GROUP, LLM_D, PARSER, moved, no_gate
from tests.unit.shared.config.releases import DATA, QUEUES, Release, in_tokens, renamed

RELEASES = {
    "llm-d 0.4": Release(
        GIE
        + """\
plugins:
- type: by-label-selector
  parameters:
    matchLabels: {tier: decode}
- type: active-request-scorer
  parameters:
    requestTimeout: 90s
- type: prefix-cache-scorer
  parameters:
    hashBlockSize: 300
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: by-label-selector
  - pluginRef: prefix-cache-scorer
    weight: 2.0
  - pluginRef: active-request-scorer
    weight: 1.0
  - pluginRef: max-score-picker
""",
        (
            GROUP,
            renamed(0, "by-label-selector", "label-selector-filter"),
            "plugins[1].parameters: requestTimeout has no effect; leave it out",
            in_tokens(2, "hashBlockSize", 75),
        ),
        ("matchLabels", "matchLabel"),
        "plugins[0].parameters.matchLabel: unknown field; did you mean 'matchLabels'?",
    ),
    "llm-d 0.5": Release(
        GIE
        + """\
featureGates: [dataLayer]
plugins:
- type: by-label-selector
  parameters:
    matchExpressions:
    - {key: tier, operator: In, values: [decode, both]}
- type: metrics-data-source
- type: model-server-protocol-metrics
- type: running-requests-size-scorer
- type: prefix-cache-scorer
  parameters:
    blockSize: 512
    autoTune: true
data:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: model-server-protocol-metrics
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: by-label-selector
  - pluginRef: running-requests-size-scorer
  - pluginRef: prefix-cache-scorer
    weight: 2
""",
        (
            GROUP,
            no_gate("dataLayer"),
            renamed(0, "by-label-selector", "label-selector-filter"),
            renamed(2, "model-server-protocol-metrics", "core-metrics-extractor"),
            *moved(4, "autoTune"),
            in_tokens(4, "blockSize", 128),
            DATA,
        ),
        ("data:", "dat:"),
        "dat: unknown field; did you mean 'data'?",
    ),
    "llm-d 0.6": Release(
        GIE
        + """\
featureGates: [dataLayer]
plugins:
- type: metrics-data-source
- type: model-server-protocol-metrics
- type: models-data-source
  parameters: {scheme: http, path: /v1/models, insecureSkipVerify: true}
- type: model-server-protocol-models
- type: queue-scorer
data:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: model-server-protocol-metrics
  - pluginRef: models-data-source
    extractors:
    - pluginRef: model-server-protocol-models
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
""",
        (
            GROUP,
            no_gate("dataLayer"),
            renamed(1, "model-server-protocol-metrics", "core-metrics-extractor"),
            renamed(3, "model-server-protocol-models", "models-data-extractor"),
            DATA,
        ),
        ("path: /v1/models", "paht: /v1/models"),
        "plugins[2].parameters.paht: unknown field; did you mean 'path'?",
    ),
    "llm-d 0.7": Release(
        GIE
        + """\
featureGates: [flowControl]
plugins:
- type: active-request-scorer
  parameters:
    idleThreshold: 1
    maxBusyScore: 0.6
- type: prefix-cache-scorer
  parameters:
    blockSizeTokens: 80
- type: k8s-notification-source
  parameters: {group: "", version: v1, kind: Node}
flowControl:
  maxBytes: 1000000000
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: active-request-scorer
  - pluginRef: prefix-cache-scorer
""",
        (GROUP, QUEUES, *moved(1, "blockSizeTokens")),
        ("idleThreshold", "idelThreshold"),
        "plugins[0].parameters.idelThreshold: unknown field; did you mean 'idleThreshold'?",
    ),
    "llm-d 0.8": Release(
        GIE
        + """\
plugins:
- type: openai-parser
- type: models-data-source
- type: model-server-protocol-models
- type: endpoint-notification-source
- type: inflight-load-producer
- type: active-request-scorer
- type: token-load-scorer
dataLayer:
  sources:
  - pluginRef: models-data-source
    extractors:
    - pluginRef: model-server-protocol-models
  - pluginRef: endpoint-notification-source
parser:
  pluginRef: openai-parser
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: active-request-scorer
  - pluginRef: token-load-scorer
""",
        (GROUP, renamed(2, "model-server-protocol-models", "models-data-extractor"), PARSER),
        ("parser:\n", "parsers:\n"),
        "parsers: unknown field; did you mean 'parser'?",
    ),
    "llm-d 0.9": Release(
        LLM_D
        + """\
featureGates: [dataLayer, flowControl=false]
plugins:
- type: file-discovery
  parameters: {path: /etc/pool/endpoints.yaml, watchFile: false}
- type: label-selector-filter
  parameters:
    matchLabels: {tier: decode}
- type: inflight-load-producer
  parameters: {addEstimatedOutputTokens: true}
- type: active-request-scorer
  parameters: {inFlightLoadProducerName: inflight-load-producer}
- type: approx-prefix-cache-producer
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: approx-prefix-cache-producer}
- type: core-metrics-extractor
  parameters:
    defaultEngine: north
    engineConfigs:
    - name: north
      queuedRequestsSpec: north_waiting
      kvUsageSpec: north_cache_usage
      customMetrics:
      - {attributeKey: Heat, metricSpec: north_heat}
- type: utilization-detector
- type: openai-parser
- type: anthropic-parser
dataLayer:
  injectDefaults: true
  discovery:
    pluginRef: file-discovery
requestHandler:
  parsers:
  - pluginRef: openai-parser
  - pluginRef: anthropic-parser
flowControl:
  saturationDetector:
    pluginRef: utilization-detector
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: label-selector-filter
  - pluginRef: active-request-scorer
  - pluginRef: prefix-cache-scorer
    weight: 2
""",
        (no_gate("dataLayer"),),
        ("requestHandler:", "requestHandlers:"),
        "requestHandlers: unknown field; did you mean 'requestHandler'?",
    ),
    "llm-d 0.10": Release(
        LLM_D
        + """\
featureGates: [flowControl, haPopulateNonLeaderDatastore=false]
plugins:
- type: metrics-data-source
  parameters: {interval: 200ms, port: 9400, caCertPath: /etc/pool/ca.crt, scheme: https, insecureSkipVerify: false}
- type: utilization-filter
  parameters:
    conditions:
    - {metric: waiting-queue, maxValue: 20}
- type: prefix-cache-scorer
  parameters: {matchLengthWeight: 0.4, matchLengthScaleTokens: 4096}
- type: inflight-load-producer
  parameters: {syncCrossReplicaState: true, maxEstimatedOutputTokens: 900}
- type: token-load-scorer
- type: topology-extractor
- type: vllmhttp-parser
dataLayer:
  crossReplicaSyncInterval: 200ms
requestHandler:
  parsers:
  - pluginRef: vllmhttp-parser
flowControl:
  maxRequests: 9k
  enableEviction: true
  defaultNegativePriorityBand:
    maxRequests: 100
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: utilization-filter
  - pluginRef: prefix-cache-scorer
    weight: 3
  - pluginRef: token-load-scorer
""",
        (
            QUEUES,
            "dataLayer.crossReplicaSyncInterval: no effect: pickers share their load by themselves; leave it out",
        ),
        ("enableEviction", "enableEvictions"),
        "flowControl.enableEvictions: unknown field; did you mean 'enableEviction'?",
    ),
    "after llm-d 0.10": Release(
        LLM_D
        + """\
featureGates: [flowControl]
plugins:
- type: queue-scorer
- type: endpoint-attribute-scorer
  parameters:
    attributeKey: RunningRequestsSize
    producer: core-metrics-extractor
    algorithm: {type: linear_lower_is_better, normalization: {fixedRange: {min: 0, max: 40}}}
flowControl:
  defaultRequestTTL: 30s
  noEndpointRequestTTL: 0s
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: endpoint-attribute-scorer
""",
        (QUEUES,),
        ("noEndpointRequestTTL", "noEndpointsRequestTTL"),
        "flowControl.noEndpointsRequestTTL: unknown field; did you mean 'noEndpointRequestTTL'?",
    ),
}
