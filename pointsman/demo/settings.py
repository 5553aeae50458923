"""What the demo can be told."""

from typing import Annotated

from msgspec import Meta, Struct

from shared.quantities import Duration

DEFAULT_PORT = 8080


class DemoSettings(Struct, frozen=True, kw_only=True):
    """The whole system on this machine under load; parts of it are stopped and killed on the way, shown live."""

    seconds: Annotated[
        Duration,
        Meta(description="length of the load; longer when the script of events takes longer. 0: until Ctrl-C"),
    ] = 0.0
    port: Annotated[
        int,
        Meta(ge=0, le=65535, description=f"Envoy's port; 0: {DEFAULT_PORT} if it is free, and else any"),
    ] = 0
    rate: Annotated[float, Meta(gt=0, le=1000, description="requests a second on average")] = 20.0
    seed: Annotated[int, Meta(ge=0, description="what requests and their arrivals are derived from")] = 1
    plain: Annotated[bool, Meta(description="lines instead of a live view; the default when there is no terminal")] = (
        False
    )
    keep: Annotated[bool, Meta(description="keep the directory with logs and files after a good end, too")] = False
