"""The settings of a picker."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from services.picker.settings.http2 import Http2Settings
from services.picker.settings.limits import DEFAULT_SHARING, DEFAULT_VIEW_LIMITS, Sharing, ViewLimits
from shared.quantities import Duration, PositiveDuration, PositiveSize, Size, format_duration
from shared.service.settings import MAX_TEXT


class PickerSettings(Http2Settings, frozen=True, kw_only=True):
    """Serves Envoy's ext_proc: picks an endpoint for every request from a local view of the pool."""

    config_file: Annotated[
        str,
        Meta(
            description="an EndpointPickerConfig, whose changes are followed; default: the published one, or else"
            " the built-in one"
        ),
    ] = ""
    max_file_size: Annotated[
        Size, Meta(description="maximum bytes of a file that a flag names; a larger one is refused")
    ] = MAX_TEXT
    grpc_host: Annotated[str, Meta(description="address of the ext_proc and health servers")] = "0.0.0.0"
    grpc_port: Annotated[int, Meta(ge=0, le=65535, description="port of the ext_proc server; 0 uses a free one")] = 9002
    grpc_health_port: Annotated[
        int, Meta(ge=0, le=65535, description="port of the gRPC health server; 0 uses a free one")
    ] = 9003
    workers: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="number of worker processes behind the same ports, each of which uses one core; limits hold for"
            " each worker. 1: a single process, without a supervisor",
        ),
    ] = 1
    secure_serving: Annotated[bool, Meta(description="serve ext_proc over TLS")] = True
    cert_path: Annotated[
        str, Meta(description="folder with tls.crt and tls.key; default: a self-signed certificate")
    ] = ""
    enable_cert_reload: Annotated[
        bool, Meta(description="reload changed files of --cert-path and --client-ca-file, for new connections")
    ] = True
    client_ca_file: Annotated[
        str, Meta(description="PEM file with the CAs that must have signed client certificates (mTLS)")
    ] = ""
    transport: Annotated[
        Literal["http2", "grpcio"], Meta(description="gRPC implementation: the picker's own, or grpcio")
    ] = "http2"
    max_request_body: Annotated[
        Size,
        Meta(
            description="maximum bytes of a request body; larger ones are refused with 413. Our Envoy configurations "
            "buffer as much, or 4 MiB without a length. A body that arrives whole is copied at once; above 16Mi, that "
            "blocks the picker for more than 20 ms"
        ),
    ] = 16 * 2**20
    max_request_headers: Annotated[
        Size, Meta(description="maximum bytes of request headers; more are refused with 431")
    ] = 256 * 2**10
    max_header_count: Annotated[
        int,
        Meta(
            ge=1,
            description="maximum number of headers; a request with more is refused with 431, and a response with more "
            "passes unread",
        ),
    ] = 1000
    max_response_object: Annotated[
        Size,
        Meta(
            description="maximum bytes of a JSON object, a line of an event stream or a gRPC message that the picker "
            "holds to read a response; a response with a larger one passes unread"
        ),
    ] = 4 * 2**20
    max_held_bodies: Annotated[
        Size,
        Meta(
            description="maximum bytes of all bodies, and of headers above 8Ki, that are arriving or not answered yet. "
            "Beyond it, requests are refused with 503, first those whose unfinished bodies are large and old. At least "
            "--max-request-body"
        ),
    ] = 512 * 2**20
    max_model_name: Annotated[
        int,
        Meta(
            ge=1,
            le=64 * 2**10,  # parsers decode no longer ones
            extra={"format": "size"},
            description="maximum bytes of a model's name, in a body or in a header that rewrites it; a longer one"
            " is refused with 400",
        ),
    ] = 1024
    max_subset_entries: Annotated[
        int,
        Meta(ge=1, description="maximum entries of a gateway's subset hint; a request with more is refused with 400"),
    ] = 5_000
    max_streams: Annotated[
        int, Meta(ge=1, description="maximum open streams, one per request; further ones end as UNAVAILABLE")
    ] = 20_000
    max_message_timeout: Annotated[
        Duration,
        Meta(
            description="longest time for which proxies are asked to wait for the answer to a queued request; at most"
            " their max_message_timeout; 0 never asks"
        ),
    ] = 120.0
    disable_endpoint_subset_filter: Annotated[bool, Meta(description="ignore a gateway's subset hint")] = False
    require_named_models: Annotated[
        bool,
        Meta(
            description="answer 404 for models that no InferenceModel or rewrite of the pool names, even if the "
            "pool has no InferenceModel"
        ),
    ] = False
    emit_endpoint_scores: Annotated[
        bool,
        Meta(
            description="report the total score of every candidate to the proxy, in the metadata"
            " x-gateway-destination-endpoint-scores of the namespace envoy.lb"
        ),
    ] = False
    allow_experimental_plugins: Annotated[bool, Meta(description="load plugin types of alpha stability")] = False
    decisions_kept: Annotated[int, Meta(ge=0, description="number of decisions kept for /debug/decisions")] = 1000
    decision_layouts_kept: Annotated[
        int,
        Meta(
            ge=1,
            description="number of sets of endpoints for which decisions are kept; if endpoints change often, "
            "fewer decisions are kept",
        ),
    ] = 16
    log_decisions: Annotated[bool, Meta(description="log one line per decision")] = False
    tracing: Annotated[
        bool,
        Meta(
            description="trace requests with OpenTelemetry; needs `pip install 'pointsman[traces]'`. The standard"
            " OTEL_… variables set where the spans go and how many are sampled"
        ),
    ] = False
    metrics_models: Annotated[
        int, Meta(ge=1, description="maximum model names in metrics; others are counted as `other`")
    ] = 100
    max_model_names: Annotated[
        int,
        Meta(
            ge=1,
            description="maximum model names in InferenceModelRewrites and InferenceModels; the newest have no effect",
        ),
    ] = DEFAULT_VIEW_LIMITS.model_names
    max_peer_rows: Annotated[
        int,
        Meta(
            ge=1,
            description="maximum rows in the load tables of all other pickers; each picker counts for at least 1 000",
        ),
    ] = DEFAULT_VIEW_LIMITS.peer_rows
    max_attributes: Annotated[
        int,
        Meta(
            ge=1,
            description="maximum kept attributes that no plugin reads; an eighth of it for those that aren't numbers",
        ),
    ] = DEFAULT_VIEW_LIMITS.attributes
    max_attribute_bytes: Annotated[
        PositiveSize,
        Meta(
            description="maximum memory of kept attributes that no plugin reads and that aren't numbers; "
            "a quarter of it for numbers, and twice as much for those that plugins read and that aren't numbers"
        ),
    ] = DEFAULT_VIEW_LIMITS.attribute_bytes
    observe_responses: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="share of the responses to observe, chosen at random: the picker requests their bodies "
            "from Envoy to measure time to first token and to count tokens; 0 observes none",
        ),
    ] = 1.0
    max_observed_responses: Annotated[
        int,
        Meta(
            ge=1,
            description="maximum responses observed at once; each chunk of a response is a message to the picker."
            " Responses in which the client's model is restored don't count",
        ),
    ] = 50
    legacy_metric_names: Annotated[
        bool,
        Meta(
            description="also serve the Go original's series under their former names: inference_objective_…, "
            "inference_pool_… and inference_extension_…"
        ),
    ] = True
    unhealthy_expiry: Annotated[
        PositiveDuration,
        Meta(
            description="longest time for which an endpoint that seems to be down ranks last, unless another failed "
            "scrape, served fallback or error confirms it"
        ),
    ] = 30.0
    slow_start: Annotated[
        Duration,
        Meta(
            description="time within which the load of an endpoint that is new, or was drained, rises to its full"
            " share; 0: it gets its full share at once"
        ),
    ] = 0.0
    load_interval: Annotated[
        PositiveDuration, Meta(description="longest time until a change of the load in flight is published")
    ] = 0.02
    load_heartbeat: Annotated[
        PositiveDuration, Meta(description="longest interval between two publications of the load in flight")
    ] = 0.5
    max_prefix_blocks: Annotated[
        int,
        Meta(
            ge=1,
            description="maximum blocks of prompts in the prefix index, about 160 bytes each; every endpoint has an "
            "equal part, at most what its cache holds",
        ),
    ] = DEFAULT_VIEW_LIMITS.prefix_blocks
    share_prefixes: Annotated[
        bool, Meta(description="share with the other pickers where prompts' prefixes were placed")
    ] = DEFAULT_SHARING.enabled
    prefix_interval: Annotated[
        PositiveDuration, Meta(description="longest time until prefix placements are published")
    ] = DEFAULT_SHARING.interval
    prefix_wait: Annotated[
        Duration,
        Meta(
            description="longest time for which a starting picker isn't ready because it waits for the prefix "
            "placements of other pickers"
        ),
    ] = DEFAULT_SHARING.wait
    drain_delay: Annotated[
        Duration,
        Meta(
            description="how long a stopping picker accepts streams after it reports NOT_SERVING: the time of two "
            "health checks. It is part of --drain-timeout, and must be shorter"
        ),
    ] = 2.0
    seed: Annotated[int | None, Meta(description="seed that makes random choices repeatable")] = None

    @property
    def view_limits(self) -> ViewLimits:
        """How much of what others publish the view keeps."""
        return ViewLimits(
            model_names=self.max_model_names,
            peer_rows=self.max_peer_rows,
            runs=self.max_runs,
            attributes=self.max_attributes,
            attribute_bytes=self.max_attribute_bytes,
            prefix_blocks=self.max_prefix_blocks,
        )

    @property
    def sharing(self) -> Sharing:
        return Sharing(enabled=self.share_prefixes, interval=self.prefix_interval, wait=self.prefix_wait)

    @classmethod
    def problems(cls, sound: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
        """The common checks, and those of drain times, body limits and TLS. The limit of all bodies must hold one body
        of the maximum size."""
        yield from super().problems(sound)
        body, held = sound.get("max_request_body"), sound.get("max_held_bodies")
        if body is not None and held is not None and held < body:
            message = f"{held} bytes for all bodies together don't hold one of {body}; at least as many are needed"
            yield ("max_held_bodies", "max_request_body"), message
        if sound.get("client_ca_file") and not sound.get("secure_serving", True):
            yield ("client_ca_file", "secure_serving"), "clients have no certificates without TLS"
        delay, timeout = sound.get("drain_delay", 0.0), sound.get("drain_timeout")
        if timeout is not None and 0 < delay >= timeout:
            message = (
                f"a delay of {format_duration(delay)} leaves nothing of {format_duration(timeout)} for open streams; "
                "set a longer timeout or a shorter delay"
            )
            yield ("drain_timeout", "drain_delay"), message
