"""The settings of a console."""

from typing import Annotated

from msgspec import Meta

from shared.quantities import PositiveDuration, PositiveSize
from shared.service.settings import CommonSettings


class ConsoleSettings(CommonSettings, frozen=True, kw_only=True):
    """Serves a web page and an API about one pool: endpoints, decisions, queues, configuration. It changes
    nothing without --allow-actions."""

    console_host: Annotated[
        str,
        Meta(min_length=1, description="address of the page and the API; 0.0.0.0 makes them reachable from outside"),
    ] = "127.0.0.1"
    console_port: Annotated[
        int, Meta(ge=0, le=65535, description="port of the page and the API; 0 uses a free one")
    ] = 8090
    console_hostnames: Annotated[
        tuple[str, ...],
        Meta(
            description="host names under which browsers reach the console, such as that of a reverse proxy; IP"
            " addresses and localhost always work, and any name does with a token"
        ),
    ] = ()
    console_token: Annotated[
        str,
        Meta(
            description="token that the API requires, and that the page asks for; default: none. Prefer the environment"
            " variable, because other users of the machine can see flags"
        ),
    ] = ""
    allow_actions: Annotated[
        bool,
        Meta(
            description="let holders of --console-token drain and undrain endpoints; watchers need --allow-actions, too"
        ),
    ] = False
    console_timeout: Annotated[
        PositiveDuration,
        Meta(description="time limit of a request, including its response; the page reopens streams that end"),
    ] = 60.0
    console_connections: Annotated[
        int,
        Meta(
            ge=1,
            description="maximum open connections; a further one closes the one that has been idle the longest, or one"
            " of those being answered if these are more than half",
        ),
    ] = 256
    console_body: Annotated[PositiveSize, Meta(description="maximum bytes of a request's body")] = 2 * 2**20
    console_history: Annotated[
        int,
        Meta(
            ge=0,
            description="maximum endpoints with ten minutes of history; for others, a page shows only what it has seen"
            " itself",
        ),
    ] = 5_000
