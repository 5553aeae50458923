"""The settings of the demo."""

from typing import Annotated

from msgspec import Meta, Struct

from pointsman.local.ports import ENVOY_PORT
from shared.quantities import Duration


class DemoSettings(Struct, frozen=True, kw_only=True):
    """Runs the whole system on this machine under load, stops and kills parts of it, and shows what happens."""

    seconds: Annotated[
        Duration,
        Meta(description="duration of the load, at least until the events of the demo are over; 0: until Ctrl-C"),
    ] = 0.0
    port: Annotated[
        int,
        Meta(ge=0, le=65535, description=f"Envoy's port; 0: {ENVOY_PORT} if it is free, otherwise any free port"),
    ] = 0
    rate: Annotated[float, Meta(gt=0, le=1000, description="average number of requests per second")] = 20.0
    seed: Annotated[int, Meta(ge=0, description="seed of the requests and their arrivals")] = 1
    pd: Annotated[bool, Meta(description="a pool of prefill and decode servers (disaggregated serving)")] = False
    compare: Annotated[
        bool,
        Meta(
            description="also send the same requests round robin to as many other servers, and compare; kills nothing"
        ),
    ] = False
    allow_actions: Annotated[
        bool,
        Meta(
            description="let the console drain and undrain endpoints; it then requires a token, POINTSMAN_CONSOLE_TOKEN"
            " or a new one that is printed"
        ),
    ] = False
    tracing: Annotated[
        bool, Meta(description="have the pickers trace requests; the standard OTEL_… variables set where the spans go")
    ] = False
    plain: Annotated[bool, Meta(description="print lines instead of a live view; the default without a terminal")] = (
        False
    )
    keep: Annotated[bool, Meta(description="keep the directory with files and logs even after a successful run")] = (
        False
    )
