"""The settings of the demo."""

from typing import Annotated

from msgspec import Meta, Struct

from shared.quantities import Duration

DEFAULT_PORT = 8080


class DemoSettings(Struct, frozen=True, kw_only=True):
    """Runs the whole system on this machine under load, stops and kills parts of it, and shows what happens."""

    seconds: Annotated[
        Duration,
        Meta(description="duration of the load, extended until the script of events ends; 0: until Ctrl-C"),
    ] = 0.0
    port: Annotated[
        int,
        Meta(ge=0, le=65535, description=f"Envoy's port; 0: {DEFAULT_PORT} if it is free, otherwise any free port"),
    ] = 0
    rate: Annotated[float, Meta(gt=0, le=1000, description="average number of requests per second")] = 20.0
    seed: Annotated[int, Meta(ge=0, description="seed of the requests and their arrivals")] = 1
    pd: Annotated[bool, Meta(description="a pool of prefill and decode servers (disaggregated serving)")] = False
    plain: Annotated[bool, Meta(description="print lines instead of a live view; the default without a terminal")] = (
        False
    )
    keep: Annotated[bool, Meta(description="keep the directory with files and logs even after a successful run")] = (
        False
    )
