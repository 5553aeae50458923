"""The Go original's plugin types that aren't available here: what they are for, and the nearest type that is.

A type that is installed isn't listed, so the two together are all types of its releases since GIE 0.5. A substitute
does part of the same job with other parameters. Whether that is enough, its user decides: it is named, never taken.
docs/compatibility.md has this table.
"""

from collections.abc import Mapping

NONE = ""

ABSENT: Mapping[str, Mapping[str, str]] = {
    "flow control's queues": {
        "fcfs-ordering-policy": NONE,
        "edf-ordering-policy": NONE,
        "slo-deadline-ordering-policy": NONE,
        "global-strict-fairness-policy": NONE,
        "round-robin-fairness-policy": NONE,
        "program-aware-fairness": NONE,
        "static-usage-limit-policy": NONE,
        "priority-holdback-policy": NONE,
        "soft-reflective-ceiling-policy": NONE,
        "concurrency-detector": "utilization-detector",
        "sheddable-eviction-filter": NONE,
        "priority-then-time-eviction-order-policy": NONE,
    },
    "disaggregated prefill, decode and encode": {
        "decode-filter": "label-selector-filter",
        "prefill-filter": "label-selector-filter",
        "encode-filter": "label-selector-filter",
        "disagg-profile-handler": NONE,
        "pd-profile-handler": NONE,
        "data-parallel-profile-handler": NONE,
        "header-profile-handler": NONE,
        "disagg-headers-handler": NONE,
        "prefill-header-handler": NONE,
        "prefix-based-pd-decider": NONE,
        "always-disagg-pd-decider": NONE,
        "always-disagg-multimodal-decider": NONE,
        "disaggregatedset-rollout-screener": NONE,
    },
    "the KV cache as model servers report it, and tokenizers": {
        "precise-prefix-cache-producer": "approx-prefix-cache-producer",
        "precise-prefix-cache-scorer": "prefix-cache-scorer",
        "token-producer": NONE,
        "tokenizer": NONE,
        "mm-embeddings-cache-producer": NONE,
        "mm-embeddings-cache-scorer": NONE,
        "p2p-source-producer": NONE,
        "burst-prefix-cache-producer": "approx-prefix-cache-producer",
    },
    "affinity": {
        "prefix-cache-affinity-filter": "prefix-cache-scorer",
        "no-hit-lru-scorer": "active-request-scorer",
        "session-affinity-scorer": "prefix-cache-scorer",
        "session-affinity-filter": "prefix-cache-scorer",
        "session-id-producer": NONE,
        "agent-identity": NONE,
        "header-label-affinity-scorer": NONE,
        "topology-affinity-filter": NONE,
        "topology-affinity-scorer": NONE,
    },
    "predicted latency, and admission by it": {
        "predicted-latency-producer": NONE,
        "latency-scorer": "token-load-scorer",
        "latency-slo-admitter": "utilization-detector",
        "slo-headroom-tier-filter": "utilization-filter",
        "probabilistic-admitter": "utilization-detector",
        "predicted-latency-scorer": "token-load-scorer",
        "slo-aware-routing": "token-load-scorer",
        "slo-aware-profile-handler": "single-profile-handler",
    },
    "the decision tree of GIE 0.5": {
        "decision-tree-filter": NONE,
        "low-queue-filter": "queue-scorer",
        "least-queue-filter": "queue-scorer",
        "least-kv-cache-filter": "kv-cache-utilization-scorer",
        "lora-affinity-filter": "lora-affinity-scorer",
    },
    "other scorers and filters": {
        "load-aware-scorer": "queue-scorer",
        "context-length-aware": NONE,
        "by-label": "label-selector-filter",
    },
    "other parsers": {
        "vertexai-parser": "passthrough-parser",
        "sglanghttp-parser": "passthrough-parser",
    },
    "response metadata": {
        "request-attribute-reporter": NONE,
    },
    "several clusters": {
        "multicluster-approx-prefix-cache-producer": "approx-prefix-cache-producer",
        "multicluster-file-discovery": "file-discovery",
        "multicluster-kv-cache-utilization-scorer": "kv-cache-utilization-scorer",
        "multicluster-metrics-data-source": "metrics-data-source",
        "multicluster-metrics-extractor": "core-metrics-extractor",
        "multicluster-prefix-cache-scorer": "prefix-cache-scorer",
        "multicluster-queue-scorer": "queue-scorer",
        "multicluster-session-affinity-filter": "prefix-cache-scorer",
    },
    "the conformance suite's own": {
        "header-based-testing-filter": NONE,
        "destination-endpoint-served-verifier": NONE,
    },
}
"""By what types are for: each with its nearest substitute."""

_SUBSTITUTES = {name: substitute for types in ABSENT.values() for name, substitute in types.items()}


def absent(name: str) -> str:
    """Why a type of the Go original can't be used, and what comes nearest to it; empty for a name of none of these."""
    if name not in _SUBSTITUTES:
        return ""
    substitute = _SUBSTITUTES[name]
    nearest = f"the nearest type that is: {substitute}" if substitute else "nothing comes near it"
    return f"is a plugin type of the Go original that isn't available here; {nearest}"
