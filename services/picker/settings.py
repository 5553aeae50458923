"""What a picker can be told."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from msgspec import Meta

from shared.quantities import Duration, PositiveDuration, Size, format_duration
from shared.service import CommonSettings
from shared.service.settings import MAX_TEXT


class PickerSettings(CommonSettings, frozen=True, kw_only=True):
    """Serves Envoy's ext_proc: picks an endpoint for every request from a local view of the pool."""

    config_file: Annotated[
        str,
        Meta(
            description="an EndpointPickerConfig, which is followed when it changes; without it the one that the "
            "watcher publishes, or the default"
        ),
    ] = ""
    max_file_size: Annotated[Size, Meta(description="bytes of a file that a flag names; a larger one is refused")] = (
        MAX_TEXT
    )
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
        Size,
        Meta(
            description="a larger request body is refused with 413. As much as Envoy buffers; one that is shown whole "
            "is copied at once, which above 16Mi holds the picker for more than 20 ms"
        ),
    ] = 16 * 2**20
    max_request_headers: Annotated[Size, Meta(description="bytes of request headers; more are refused with 431")] = (
        256 * 2**10
    )
    max_request_header_count: Annotated[
        int, Meta(ge=1, description="request headers, each of which takes time; more are refused with 431")
    ] = 1000
    max_response_object: Annotated[
        Size,
        Meta(
            description="bytes of a JSON object, of a line of an event stream or of a gRPC message in a response, that "
            "are held to be read; a larger one passes unread"
        ),
    ] = 4 * 2**20
    max_held_bodies: Annotated[
        Size,
        Meta(
            description="bytes of all bodies that are on their way or not answered yet; a request whose body would go "
            "beyond is refused with 503. No less than --max-request-body"
        ),
    ] = 512 * 2**20
    max_model_name: Annotated[
        int,
        Meta(
            ge=1,
            le=64 * 2**10,  # parsers decode no longer ones
            extra={"format": "size"},
            description="bytes of a model's name, in a body or in a header that rewrites it; a longer one is refused "
            "with 400",
        ),
    ] = 1024
    max_subset_entries: Annotated[
        int, Meta(ge=1, description="entries of a gateway's subset hint; a request with more is refused with 400")
    ] = 5_000
    max_streams: Annotated[
        int, Meta(ge=1, description="open streams, one for each request; further ones are turned away")
    ] = 20_000
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
    decision_layouts_kept: Annotated[
        int,
        Meta(
            ge=1,
            description="sets of endpoints that kept decisions were made on; where endpoints come and go faster, fewer "
            "decisions are kept",
        ),
    ] = 16
    log_decisions: Annotated[bool, Meta(description="log one line for each decision")] = False
    metrics_models: Annotated[
        int, Meta(ge=1, description="model names that metrics tell apart; further ones are counted as `other`")
    ] = 100
    observe_responses: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="share of the responses whose body is asked for where Envoy doesn't show it, to measure the "
            "first token and count tokens; 0 asks for none. Which ones, is left to chance",
        ),
    ] = 1.0
    max_observed_responses: Annotated[
        int,
        Meta(
            ge=1,
            description="responses that are asked for at once to be observed; each piece of one is a message to the "
            "picker. Those in which the client's model is put back come on top",
        ),
    ] = 50
    former_metric_names: Annotated[
        bool,
        Meta(
            description="show the Go original's series under their former names too: inference_objective_…, "
            "inference_pool_… and inference_extension_…"
        ),
    ] = True
    unhealthy_expiry: Annotated[
        PositiveDuration,
        Meta(
            description="an endpoint that seems to be down ranks last for this long at most, unless a failed scrape or "
            "a fallback that served in its place shows it again"
        ),
    ] = 30.0
    load_interval: Annotated[
        PositiveDuration, Meta(description="a change of the load in flight is published after at most this time")
    ] = 0.02
    load_heartbeat: Annotated[
        PositiveDuration, Meta(description="the load in flight is published at least this often")
    ] = 0.5
    drain_delay: Annotated[
        Duration,
        Meta(
            description="how long a stopping picker takes streams after it says NOT_SERVING: two health checks; "
            "shorter than --drain-timeout, which includes it"
        ),
    ] = 2.0
    seed: Annotated[int | None, Meta(description="makes random choices repeatable")] = None

    @classmethod
    def problems(cls, sound: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
        """As of every tier, and the times of a drain. Without a delay, no time at all means: at once. One body as large
        as may be has to find room among all."""
        yield from super().problems(sound)
        body, held = sound.get("max_request_body"), sound.get("max_held_bodies")
        if body is not None and held is not None and held < body:
            message = f"{held} bytes for all bodies together don't hold one of {body}; at least as many are needed"
            yield ("max_held_bodies", "max_request_body"), message
        delay, timeout = sound.get("drain_delay", 0.0), sound.get("drain_timeout")
        if timeout is not None and 0 < delay >= timeout:
            message = (
                f"of {format_duration(timeout)} nothing is left for the open streams after a delay of "
                f"{format_duration(delay)}; a longer time-out or a shorter delay is needed"
            )
            yield ("drain_timeout", "drain_delay"), message
