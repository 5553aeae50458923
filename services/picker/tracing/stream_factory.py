"""How a picker's streams begin: with traces, or as if there were none. Only this module loads without OpenTelemetry."""

from collections.abc import Awaitable, Callable
from functools import partial

from msgspec import Struct

from services.picker.request_handler import RequestHandler
from services.picker.request_stream import RequestStream
from shared.config.problems import Invalid, Problem


class StreamFactory(Struct, frozen=True):
    """Begins streams."""

    open: Callable[[], RequestStream]
    close: Callable[[], Awaitable[None]]
    """Ends what the streams needed, once there are none."""


def stream_factory(handler: RequestHandler, id: str, *, tracing: bool) -> StreamFactory:
    """The streams of the picker `id`. Raises `Invalid` if traces are wanted and can't be made."""
    if not tracing:
        return StreamFactory(partial(RequestStream, handler), _nothing)
    try:
        from services.picker.tracing.provider import Tracing
        from services.picker.tracing.traced_stream import TracedRequestStream
    except ModuleNotFoundError as error:
        missing = f"{error.name} isn't installed: pip install 'pointsman[traces]'"
        raise Invalid([Problem("--tracing", missing)]) from error
    traces = Tracing(id)
    return StreamFactory(partial(TracedRequestStream, handler, traces), traces.shutdown)


async def _nothing() -> None:
    """There is nothing to end."""
