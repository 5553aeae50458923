"""What a picker can be told."""

from typing import Annotated

from msgspec import Meta

from shared.quantities import Duration, PositiveDuration, Size
from shared.service import CommonSettings


class PickerSettings(CommonSettings, frozen=True, kw_only=True):
    """Serves Envoy's ext_proc: picks an endpoint for every request from a local view of the pool."""

    config_file: Annotated[
        str, Meta(description="an EndpointPickerConfig; without it the one that the watcher publishes, or the default")
    ] = ""
    grpc_host: Annotated[str, Meta(description="address of the ext_proc and health servers")] = "0.0.0.0"
    grpc_port: Annotated[int, Meta(ge=0, le=65535, description="port of the ext_proc server; 0 takes a free one")] = (
        9002
    )
    grpc_health_port: Annotated[
        int, Meta(ge=0, le=65535, description="port of the gRPC health server; 0 takes a free one")
    ] = 9003
    secure_serving: Annotated[bool, Meta(description="serve ext_proc over TLS")] = True
    cert_path: Annotated[
        str, Meta(description="folder with tls.crt and tls.key; without it a self-signed certificate is made")
    ] = ""
    max_request_body: Annotated[
        Size, Meta(description="a larger request body is refused with 413; Envoy's own limit should be higher")
    ] = 24 * 2**20
    max_request_headers: Annotated[Size, Meta(description="bytes of request headers; more are refused with 431")] = (
        256 * 2**10
    )
    disable_endpoint_subset_filter: Annotated[bool, Meta(description="ignore a gateway's subset hint")] = False
    require_named_models: Annotated[
        bool,
        Meta(
            description="answer 404 for models that no InferenceModel or rewrite of the pool names, also in a pool "
            "without any InferenceModel"
        ),
    ] = False
    allow_experimental_plugins: Annotated[bool, Meta(description="load plugin types of alpha stability")] = False
    decisions_kept: Annotated[int, Meta(ge=0, description="decisions that /debug/decisions can explain")] = 1000
    log_decisions: Annotated[bool, Meta(description="log one line for each decision")] = False
    metrics_models: Annotated[
        int, Meta(ge=1, description="model names that metrics tell apart; further ones are counted as `other`")
    ] = 100
    former_metric_names: Annotated[
        bool,
        Meta(
            description="show the Go original's series under their former names too: inference_objective_…, "
            "inference_pool_… and inference_extension_…"
        ),
    ] = True
    load_interval: Annotated[
        PositiveDuration, Meta(description="a change of the load in flight is published after at most this time")
    ] = 0.02
    load_heartbeat: Annotated[
        PositiveDuration, Meta(description="the load in flight is published at least this often")
    ] = 0.5
    drain_delay: Annotated[
        Duration,
        Meta(description="how long a stopping picker takes streams after it says NOT_SERVING: two health checks"),
    ] = 2.0
    seed: Annotated[int | None, Meta(description="makes random choices repeatable")] = None
