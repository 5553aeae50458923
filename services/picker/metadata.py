"""Names of headers and metadata between clients, proxies, pickers and model servers.

They are those of the endpoint picker protocol (Gateway API Inference Extension, proposal 004) and of llm-d's
extensions. Where a header has a newer and an older name, the newer one wins when both are there.
"""

OBJECTIVE_HEADERS = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
REWRITE_HEADERS = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
FAIRNESS_HEADERS = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
SLO_TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")

REJECTED_SATURATED = "rejected-saturated"
REJECTED_MEMORY = "rejected-memory"
REJECTED_NO_ENDPOINTS = "rejected-no-endpoints"
REJECTED_EXPIRED = "rejected-ttl-expired"
REJECTED_CANCELLED = "rejected-context-cancelled"
REJECTED_SHUTTING_DOWN = "rejected-shutting-down"
EVICTED = "evicted"
REJECTED_PLUGIN_FAILURE = "rejected-plugin-failure"

DESTINATION = "x-gateway-destination-endpoint"
"""Header, and key in the `envoy.lb` metadata: the endpoints that the request may go to, in order."""
SCORES = "x-gateway-destination-endpoint-scores"
"""Key in the `envoy.lb` metadata: the total score of each candidate, by `address:port`."""
SERVED = "x-gateway-destination-endpoint-served"
"""Key in the `envoy.lb` metadata of the response headers: the endpoint that the proxy really used."""
SUBSET = "x-gateway-destination-endpoint-subset"
"""Key in the `envoy.lb.subset_hint` metadata of the request: the only endpoints that may be picked."""
DROPPED_REASON = "x-llm-d-request-dropped-reason"
REQUEST_ID = "x-request-id"
PATHS = (":path", "x-original-path", "x-forwarded-path")
"""Headers with the request's path; the first that is there counts."""

NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
UPSTREAM_ADDRESS = "upstream.address"
"""Envoy's response attribute: `address:port` of the endpoint that answered."""

VIDEO_FPS = "x-llm-d-video-fps"
VIDEO_DURATION = "x-llm-d-video-duration-seconds"
VIDEO_RESOLUTION = "x-llm-d-video-resolution"
"""A client may describe the videos of its request, whose tokens are then estimated better."""

PREFILLER, ENCODERS = "x-prefiller-host-port", "x-encoder-hosts-ports"
DATA_PARALLEL_HOST = "x-data-parallel-host-port"
PREFILLER_URL = "x-prefiller-url"
"""Pickers don't set it, but llm-d's sidecars up to v0.3 read it if `PREFILLER` is absent."""
HOSTS = (PREFILLER, PREFILLER_URL, ENCODERS, DATA_PARALLEL_HOST)
"""Name servers that a model server's sidecar will connect to: only a picker may say so, never a client."""

CONTROL_HEADERS = frozenset(
    {
        SERVED,
        SUBSET,
        DROPPED_REASON,
        *OBJECTIVE_HEADERS,
        *REWRITE_HEADERS,
        *HOSTS,
        *FAIRNESS_HEADERS,
        *SLO_TTFT_HEADERS,
        *("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"),
        *(VIDEO_FPS, VIDEO_DURATION, VIDEO_RESOLUTION),
    }
)
"""Headers between client, proxy and picker: taken out of what a model server gets. (The destination is overwritten.)"""
