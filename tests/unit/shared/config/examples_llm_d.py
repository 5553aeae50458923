"""Documents in the shapes that llm-d deploys."""

from tests.unit.shared.config.examples import LLM_D, SCRAPED, Example, moved

EXAMPLES = {
    "a cache scorer behind a role filter": Example(
        LLM_D
        + """\
plugins:
- type: prefix-cache-scorer
- type: decode-filter
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: everything
  plugins:
  - pluginRef: decode-filter
  - pluginRef: max-score-picker
  - pluginRef: prefix-cache-scorer
    weight: 5
""",
        {"everything": "decode-filter max-score-picker prefix-cache-scorer=5"},
    ),
    "several ranks on one pod": Example(
        LLM_D
        + """\
plugins:
- type: prefix-cache-scorer
- type: decode-filter
- type: max-score-picker
- type: data-parallel-profile-handler
  parameters: {primaryPort: 8200}
schedulingProfiles:
- name: ranks
  plugins:
  - pluginRef: decode-filter
  - pluginRef: max-score-picker
  - pluginRef: prefix-cache-scorer
    weight: 3
""",
        {"ranks": "decode-filter max-score-picker prefix-cache-scorer=3"},
        handler="data-parallel-profile-handler",
    ),
    "an estimated cache beside load": Example(
        LLM_D
        + """\
plugins:
- type: single-profile-handler
- type: decode-filter
- type: prefix-cache-scorer
- type: load-aware-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: decode-filter
  - pluginRef: prefix-cache-scorer
    weight: 1.5
  - pluginRef: load-aware-scorer
    weight: 0.5
  - pluginRef: max-score-picker
""",
        {"default": "decode-filter prefix-cache-scorer=1.5 load-aware-scorer=0.5 max-score-picker"},
    ),
    "a cache that servers report, with endpoint events": Example(
        LLM_D
        + """\
plugins:
- type: token-producer
  parameters:
    modelName: acme/north-7b
    vllm: {http: "http://127.0.0.1:8100"}
- type: endpoint-notification-source
- type: metrics-data-source
- type: core-metrics-extractor
- type: single-profile-handler
- type: decode-filter
- type: precise-prefix-cache-scorer
  parameters:
    tokenProcessorConfig: {blockSize: 32}
    indexerConfig: {kvBlockIndexConfig: {enableMetrics: false}}
- type: kv-cache-utilization-scorer
- type: queue-scorer
- type: max-score-picker
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
  - pluginRef: endpoint-notification-source
    extractors:
    - pluginRef: precise-prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: decode-filter
  - pluginRef: precise-prefix-cache-scorer
    weight: 4.0
  - pluginRef: kv-cache-utilization-scorer
    weight: 1.0
  - pluginRef: queue-scorer
    weight: 1.0
  - pluginRef: max-score-picker
""",
        {
            "default": "decode-filter precise-prefix-cache-scorer=4 kv-cache-utilization-scorer queue-scorer "
            "max-score-picker"
        },
        sources=(*SCRAPED, ("endpoint-notification-source", ("precise-prefix-cache-scorer",))),
    ),
    "prefill and decode, with cache sizes on the scorer": Example(
        LLM_D
        + """\
plugins:
- type: prefix-cache-scorer
  parameters: {maxPrefixBlocksToMatch: 128, lruCapacityPerServer: 20000}
- type: queue-scorer
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
- type: prefix-based-pd-decider
  parameters: {nonCachedTokens: 24}
- type: disagg-profile-handler
  parameters: {deciders: {prefill: prefix-based-pd-decider}}
schedulingProfiles:
- name: prefill
  plugins:
  - {pluginRef: prefill-filter}
  - {pluginRef: max-score-picker}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: queue-scorer, weight: 1}
- name: decode
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: max-score-picker}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: queue-scorer, weight: 1}
""",
        {
            "prefill": "prefill-filter max-score-picker prefix-cache-scorer=3 queue-scorer",
            "decode": "decode-filter max-score-picker prefix-cache-scorer=3 queue-scorer",
        },
        moved(0, "maxPrefixBlocksToMatch", "lruCapacityPerServer"),
        handler="disagg-profile-handler",
        parameters={
            "approx-prefix-cache-producer": {"max_prefix_blocks_to_match": 128, "lru_capacity_per_server": 20000}
        },
    ),
    "prefill and decode of simulators, with fixed blocks": Example(
        LLM_D
        + """\
plugins:
- type: prefix-cache-scorer
  parameters: {blockSizeTokens: 32, autoTune: false, maxPrefixBlocksToMatch: 64, lruCapacityPerServer: 512}
- type: queue-scorer
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
- type: prefix-based-pd-decider
  parameters: {nonCachedTokens: 8}
- type: disagg-profile-handler
  parameters: {deciders: {prefill: prefix-based-pd-decider}}
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: max-score-picker}, {pluginRef: queue-scorer, weight: 2}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}, {pluginRef: prefix-cache-scorer, weight: 2}]
""",
        {
            "prefill": "prefill-filter max-score-picker queue-scorer=2",
            "decode": "decode-filter max-score-picker prefix-cache-scorer=2",
        },
        moved(0, "autoTune", "blockSizeTokens", "maxPrefixBlocksToMatch", "lruCapacityPerServer"),
        handler="disagg-profile-handler",
        parameters={"approx-prefix-cache-producer": {"block_size_tokens": 32, "auto_tune": False}},
    ),
    "three stages without a picker": Example(
        LLM_D
        + """\
plugins:
- type: queue-scorer
- type: encode-filter
- type: prefill-filter
- type: decode-filter
- type: disagg-profile-handler
  parameters: {deciders: {encode: always-disagg-multimodal-decider, prefill: prefix-based-pd-decider}}
- type: always-disagg-multimodal-decider
- type: prefix-based-pd-decider
  parameters: {nonCachedTokens: 40}
schedulingProfiles:
- name: encode
  plugins: [{pluginRef: encode-filter}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer, weight: 2}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer, weight: 2}]
""",
        {
            "encode": "encode-filter max-score-picker",
            "prefill": "prefill-filter queue-scorer=2 max-score-picker",
            "decode": "decode-filter queue-scorer=2 max-score-picker",
        },
        handler="disagg-profile-handler",
    ),
    "two stages without a scorer": Example(
        LLM_D
        + """\
plugins:
- type: encode-filter
- type: decode-filter
- type: max-score-picker
- type: always-disagg-multimodal-decider
- type: disagg-profile-handler
  parameters: {deciders: {encode: always-disagg-multimodal-decider}}
schedulingProfiles:
- name: encode
  plugins: [{pluginRef: encode-filter}]
- name: decode
  plugins: [{pluginRef: decode-filter}]
""",
        {"encode": "encode-filter max-score-picker", "decode": "decode-filter max-score-picker"},
        handler="disagg-profile-handler",
    ),
    "one stage of simulators, with cache sizes on the scorer": Example(
        LLM_D
        + """\
plugins:
- type: prefix-cache-scorer
  parameters: {maxPrefixBlocksToMatch: 32, lruCapacityPerServer: 4096}
- type: decode-filter
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}, {pluginRef: prefix-cache-scorer, weight: 2}]
""",
        {"default": "decode-filter max-score-picker prefix-cache-scorer=2"},
        moved(0, "maxPrefixBlocksToMatch", "lruCapacityPerServer"),
        parameters={"approx-prefix-cache-producer": {"max_prefix_blocks_to_match": 32}},
    ),
    "a reported cache, its intervals in nanoseconds": Example(
        LLM_D
        + """\
plugins:
- type: token-producer
  parameters: {modelName: acme/tiny, vllm: {http: "http://127.0.0.1:8300"}}
- type: precise-prefix-cache-scorer
  parameters:
    tokenProcessorConfig: {blockSize: 8}
    kvEventsConfig: {zmqEndpoint: "tcp://0.0.0.0:5601"}
    indexerConfig: {kvBlockIndexConfig: {enableMetrics: true, metricsLoggingInterval: 2000000000}}
- type: decode-filter
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: max-score-picker}
  - {pluginRef: precise-prefix-cache-scorer, weight: 8}
""",
        {"default": "decode-filter max-score-picker precise-prefix-cache-scorer=8"},
    ),
    "a reported cache, its model's name left to a deployment script": Example(
        LLM_D
        + """\
plugins:
- type: token-producer
  parameters: {modelName: "${SERVED}", vllm: {http: "http://127.0.0.1:8300"}}
- type: precise-prefix-cache-scorer
  parameters: {tokenProcessorConfig: {blockSize: 8, hashSeed: "7"}}
- type: decode-filter
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: max-score-picker}
  - {pluginRef: precise-prefix-cache-scorer, weight: 6}
""",
        {"default": "decode-filter max-score-picker precise-prefix-cache-scorer=6"},
    ),
    "cold requests spread over servers": Example(
        LLM_D
        + """\
plugins:
- type: precise-prefix-cache-scorer
  parameters: {indexerConfig: {tokenProcessorConfig: {blockSize: 4}, kvBlockIndexConfig: {maxPrefixBlocksToMatch: 99}}}
- type: no-hit-lru-scorer
  parameters: {lruSize: 300}
- type: decode-filter
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: max-score-picker}
  - {pluginRef: precise-prefix-cache-scorer, weight: 3}
  - {pluginRef: no-hit-lru-scorer, weight: 1}
""",
        {"default": "decode-filter max-score-picker precise-prefix-cache-scorer=3 no-hit-lru-scorer"},
    ),
}
