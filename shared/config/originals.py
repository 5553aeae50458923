"""The Go original's plugin types that aren't available here, with the nearest type that is.

With the installed types, these are all types of its releases since GIE 0.5. A substitute does part of the same job with
other parameters; it is only suggested. docs/compatibility.md has this table.
"""

from collections.abc import Mapping

NONE = ""

_TYPES: Mapping[str, Mapping[str, str]] = {
    "the KV cache as model servers report it": {
        "approx-prefix-cache-producer": "precise-prefix-cache-producer",
        "prefix-cache-scorer": "precise-prefix-cache-scorer",
        NONE: "p2p-source-producer",
    },
    "embeddings of pictures and videos in caches": {
        "approx-prefix-cache-producer": "mm-embeddings-cache-producer",
        "prefix-cache-scorer": "mm-embeddings-cache-scorer",
    },
    "predicted latency, and admission by it": {
        "inflight-load-producer": "predicted-latency-producer",
        "token-load-scorer": "latency-scorer predicted-latency-scorer slo-aware-routing",
        "utilization-detector": "latency-slo-admitter",
        "utilization-filter": "slo-headroom-tier-filter",
        "single-profile-handler": "slo-aware-profile-handler",
    },
    "rollouts of disaggregated sets": {
        "label-selector-filter": "disaggregatedset-rollout-screener",
    },
    "several clusters": {
        "approx-prefix-cache-producer": "multicluster-approx-prefix-cache-producer",
        "file-discovery": "multicluster-file-discovery",
        "kv-cache-utilization-scorer": "multicluster-kv-cache-utilization-scorer",
        "metrics-data-source": "multicluster-metrics-data-source",
        "core-metrics-extractor": "multicluster-metrics-extractor",
        "prefix-cache-scorer": "multicluster-prefix-cache-scorer",
        "session-affinity-filter": "multicluster-session-affinity-filter",
        "queue-scorer": "multicluster-queue-scorer",
    },
}
"""By what types are for, and then by their nearest substitute."""

ABSENT: Mapping[str, Mapping[str, str]] = {
    purpose: {name: substitute for substitute, names in types.items() for name in names.split()}
    for purpose, types in _TYPES.items()
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
