"""Documents in the shapes that releases, charts and guides of all generations publish, and what they come to."""

from collections.abc import Mapping

import yaml
from msgspec import Struct, field

from shared.config.schema import API_VERSIONS, KIND

NOW, FORMER = API_VERSIONS
GROUP = f"apiVersion: {FORMER} is deprecated; write {NOW}"
PARSER = "parser: deprecated; write requestHandler.parsers"
DETECTOR = "saturationDetector: deprecated; write flowControl.saturationDetector"
DATA = "data: deprecated; write dataLayer"
THRESHOLDS = "saturationDetector: thresholds here are deprecated; write a utilization-detector plugin"
PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
SCRAPED = {"metrics-data-source": "core-metrics-extractor"}


def no_gate(name: str, position: int = 0) -> str:
    return f"featureGates[{position}]: {name} has no effect any more; leave it out"


def renamed(plugin: int, former: str, now: str) -> str:
    return f"plugins[{plugin}].type: {former} is deprecated; write {now}"


def moved(plugin: int, *parameters: str) -> tuple[str, ...]:
    """Warnings of cache parameters on the scorer."""
    at = f"plugins[{plugin}].parameters"
    return tuple(
        f"{at}: {parameter} is deprecated here; write it on approx-prefix-cache-producer" for parameter in parameters
    )


def in_tokens(plugin: int, former: str, tokens: int) -> str:
    """Warning of a block's size in bytes on the scorer."""
    return (
        f"plugins[{plugin}].parameters: {former} is deprecated; "
        f"write blockSizeTokens: {tokens} (tokens, not bytes) on approx-prefix-cache-producer"
    )


class Document(Struct, frozen=True, kw_only=True):
    """One document in short, and what it comes to."""

    plugins: str
    """A line each: its type, or its name and `=` before that, and its parameters."""
    profiles: Mapping[str, str]
    """Each profile's members, with `=` and the weight where one is written."""
    rest: str = ""
    former: bool = True
    """Of the former API group."""
    warnings: tuple[str, ...] = ()
    """Beside that of the group."""
    handler: str = "single-profile-handler"
    sources: Mapping[str, str] = field(default_factory=lambda: SCRAPED)
    parsers: tuple[str, ...] = PARSERS
    detector: str = "utilization-detector"
    parameters: Mapping[str, Mapping[str, object]] = {}
    """Of the plugins that are installed: what the document, or a default, made of them."""

    @property
    def text(self) -> str:
        profiles = [
            {"name": name, "plugins": [_member(name) for name in members.split()]}
            for name, members in self.profiles.items()
        ]
        return (
            f"apiVersion: {FORMER if self.former else NOW}\nkind: {KIND}\n{self.rest}plugins:\n"
            + "".join(f"- {_plugin(line)}\n" for line in self.plugins.strip().splitlines())
            + yaml.safe_dump({"schedulingProfiles": profiles}, sort_keys=False)
        )

    @property
    def members(self) -> dict[str, list[tuple[str, float]]]:
        """What each profile comes to: a picker is added where there is none."""
        return {
            name: [
                (name, float(weight or 1))
                for name, _, weight in (
                    name.partition("=")
                    for name in (members if "picker" in members else f"{members} max-score-picker").split()
                )
            ]
            for name, members in self.profiles.items()
        }


def _plugin(line: str) -> str:
    head, brace, parameters = line.strip().partition(" {")
    name, _, kind = head.rpartition("=")
    return (
        "{"
        + (f"name: {name}, " if name else "")
        + f"type: {kind}"
        + (f", parameters: {{{parameters}" if brace else "")
        + "}"
    )


def _member(text: str) -> dict[str, object]:
    name, _, weight = text.partition("=")
    return {"pluginRef": name, "weight": float(weight)} if weight else {"pluginRef": name}


DOCUMENTS = {
    "GIE 0.5": Document(
        plugins="""
            queue-scorer
            kv-cache-scorer
            prefix-cache-scorer {hashBlockSize: 512, maxPrefixBlocksToMatch: 200, lruCapacityPerServer: 9000}
            random-picker {maxNumOfEndpoints: 2}
            single-profile-handler""",
        profiles={"default": "queue-scorer=1 kv-cache-scorer=2 prefix-cache-scorer=3 random-picker"},
        warnings=(
            renamed(1, "kv-cache-scorer", "kv-cache-utilization-scorer"),
            in_tokens(2, "hashBlockSize", 128),
            *moved(2, "maxPrefixBlocksToMatch", "lruCapacityPerServer"),
        ),
        parameters={
            "approx-prefix-cache-producer": {"max_prefix_blocks_to_match": 200, "lru_capacity_per_server": 9000},
            "random-picker": {"max_num_of_endpoints": 2},
        },
    ),
    "GIE 1.2": Document(
        rest="featureGates: [dataLayer]\n"
        "saturationDetector: {queueDepthThreshold: 8, kvCacheUtilThreshold: 0.7, metricsStalenessThreshold: 400ms}\n",
        plugins="""
            queue-scorer
            kv-cache-utilization-scorer
            prefix-cache-scorer {autoTune: false, blockSize: 400}""",
        profiles={"default": "queue-scorer=2 kv-cache-utilization-scorer=2 prefix-cache-scorer=3"},
        warnings=(no_gate("dataLayer"), *moved(2, "autoTune"), in_tokens(2, "blockSize", 100), THRESHOLDS),
        parameters={
            "utilization-detector": {"queue_depth_threshold": 8, "metrics_staleness_threshold": 0.4},
            "approx-prefix-cache-producer": {"auto_tune": False},
        },
    ),
    "GIE 1.3": Document(
        rest="featureGates: [dataLayer, prepareDataPlugins]\n"
        "data: {sources: [{pluginRef: pages, extractors: [{pluginRef: numbers}]}]}\n",
        plugins="""
            pages=metrics-data-source {Scheme: http, Path: /metrics, InsecureSkipVerify: true}
            numbers=model-server-protocol-metrics {queueRequestsSpec: waiting, kvUsageSpec: used, loraSpec: adapters}
            running-requests-size-scorer
            prefix-cache-scorer""",
        profiles={"default": "running-requests-size-scorer=2 prefix-cache-scorer=3"},
        warnings=(
            no_gate("dataLayer"),
            no_gate("prepareDataPlugins", 1),
            renamed(1, "model-server-protocol-metrics", "core-metrics-extractor"),
            *(
                f"plugins[1].parameters: {name} is deprecated; write an entry of engineConfigs"
                for name in ("queueRequestsSpec", "kvUsageSpec", "loraSpec")
            ),
            DATA,
        ),
        sources={"pages": "numbers"},
        parameters={"pages": {"scheme": "http", "insecure_skip_verify": True}},
    ),
    "GIE 1.5": Document(
        rest="featureGates: [enableLegacyMetrics, flowControl]\nsaturationDetector: {pluginRef: gauge}\n"
        "parser: {pluginRef: vllmgrpc-parser}\nflowControl: {maxBytes: 4Gi, maxRequests: 2k}\n",
        plugins="""
            approx-prefix-cache-producer {autoTune: true, blockSizeTokens: 32, maxPrefixTokensToMatch: 60000}
            prefix-cache-scorer
            token-load-scorer {queueThresholdTokens: 2000000}
            gauge=utilization-detector {queueDepthThreshold: 9, headroom: 0.25}
            vllmgrpc-parser""",
        profiles={"default": "prefix-cache-scorer=3 token-load-scorer"},
        warnings=(no_gate("enableLegacyMetrics"), PARSER, DETECTOR),
        parsers=("vllmgrpc-parser",),
        detector="gauge",
        parameters={"gauge": {"queue_depth_threshold": 9, "headroom": 0.25}},
    ),
    "llm-d 0.8": Document(
        rest="parser: {pluginRef: openai-parser}\ndataLayer: {sources: [{pluginRef: models-data-source, extractors: "
        "[{pluginRef: model-server-protocol-models}]}, {pluginRef: endpoint-notification-source}]}\n",
        plugins="""
            openai-parser
            models-data-source {scheme: http, path: /v1/models}
            model-server-protocol-models
            endpoint-notification-source
            k8s-notification-source {group: "", version: v1, kind: Node}
            inflight-load-producer
            active-request-scorer {idleThreshold: 1, requestTimeout: 90s}
            by-label-selector {matchLabels: {tier: decode}}""",
        profiles={"default": "by-label-selector active-request-scorer=1.0"},
        warnings=(
            renamed(2, "model-server-protocol-models", "models-data-extractor"),
            "plugins[6].parameters: requestTimeout has no effect; leave it out",
            renamed(7, "by-label-selector", "label-selector-filter"),
            PARSER,
        ),
        sources={"models-data-source": "model-server-protocol-models", "endpoint-notification-source": "", **SCRAPED},
        parsers=("openai-parser",),
    ),
    "llm-d 0.10": Document(
        former=False,
        rest="featureGates: [flowControl, haPopulateNonLeaderDatastore=false]\n"
        "dataLayer: {crossReplicaSyncInterval: 200ms}\nflowControl: {maxRequests: 9k, noEndpointRequestTTL: 0s, "
        "enableEviction: true, defaultNegativePriorityBand: {maxRequests: 100}}\n",
        plugins="""
            metrics-data-source {interval: 200ms, port: 9400, scheme: https, insecureSkipVerify: false}
            utilization-filter {conditions: [{metric: waiting-queue, maxValue: 20}]}
            prefix-cache-scorer {matchLengthWeight: 0.4, matchLengthScaleTokens: 4096}
            inflight-load-producer {syncCrossReplicaState: true, maxEstimatedOutputTokens: 900}
            topology-extractor""",
        profiles={"default": "utilization-filter prefix-cache-scorer=3"},
        warnings=(
            "dataLayer.crossReplicaSyncInterval: no effect: pickers share their load by themselves; leave it out",
        ),
        sources={**SCRAPED, "endpoint-notification-source": "topology-extractor"},
    ),
    "a profile of plugins that play no part in it": Document(
        plugins="openai-parser\ncost=request-attribute-reporter "
        "{attributes: [{key: {name: cost}, expression: usage.prompt_tokens}]}",
        profiles={"default": "openai-parser cost"},
        parsers=("openai-parser", *PARSERS[1:]),
    ),
    "a metric of one's own that steers": Document(
        rest="data: {sources: [{pluginRef: page, extractors: [{pluginRef: swapped}]}]}\n",
        plugins="""
            page=metrics-data-source {path: /metrics, scheme: http}
            swapped=prometheus-metric {metricName: "vllm:num_requests_swapped", labels: {model_name: north}}
            calm=metric-scorer {metricName: "vllm:num_requests_swapped", optimizationMode: Minimize, min: 0, max: 20}
            prefix-cache-scorer {blockSizeTokens: 128}""",
        profiles={"default": "calm=30 prefix-cache-scorer=70"},
        warnings=(*moved(3, "blockSizeTokens"), DATA),
        sources={"page": "swapped core-metrics-extractor"},
        parameters={"approx-prefix-cache-producer": {"block_size_tokens": 128}},
    ),
    "three stages, the cache's sizes on the scorer": Document(
        former=False,
        plugins="""
            prefix-cache-scorer {blockSizeTokens: 32, autoTune: false, maxPrefixBlocksToMatch: 64}
            queue-scorer
            encode-filter
            prefill-filter
            decode-filter
            always-disagg-multimodal-decider
            prefix-based-pd-decider {nonCachedTokens: 8}
            disagg-profile-handler {deciders: {prefill: prefix-based-pd-decider}}""",
        profiles={
            "encode": "encode-filter",
            "prefill": "prefill-filter queue-scorer=2",
            "decode": "decode-filter prefix-cache-scorer=2",
        },
        warnings=moved(0, "autoTune", "blockSizeTokens", "maxPrefixBlocksToMatch"),
        handler="disagg-profile-handler",
        parameters={"approx-prefix-cache-producer": {"block_size_tokens": 32, "auto_tune": False}},
    ),
}
