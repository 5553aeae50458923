"""Admin HTTP, the same for every tier: health, readiness with reasons, Prometheus metrics, the process's state.

Listens from the moment it is made, before the service starts, so that a taken port stops the process at once and by
name.
"""

import contextlib
import errno
import math
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from shared.config.problems import Invalid, Problem
from shared.model import join_host_port
from shared.service.admin_connections import AdminProtocol, bounded
from shared.service.configured import Configured
from shared.service.index import with_index
from shared.service.pages import alone, exposition, json_list
from shared.service.readiness import Readiness

GRACE = 2
"""Seconds that open requests get when the server stops; a stream of events would go on for ever."""


def build_app(
    readiness: Readiness,
    registry: CollectorRegistry,
    state: Callable[[], Mapping[str, Any]],
    routes: Iterable[Route] = (),
    configurations: Callable[[], Sequence[Configured]] = tuple,
    title: str = "pointsman",
) -> Starlette:
    """The routes that every tier has, a tier's own, and a list of them under the title. The first line of a handler's
    docstring is what the list says of it."""

    async def healthz(_: Request) -> Response:
        """200 while the process runs: the liveness probe."""
        return as_json({"status": "ok"})

    async def readyz(_: Request) -> Response:
        """200 when the process should get work, else 503 with the reasons; notes, and the configurations in use.

        What else is amiss are notes. By the configurations a roll-out can wait for a revision.
        """
        reasons = readiness.reasons()
        page = {
            "ready": not reasons,
            "reasons": reasons,
            "notes": readiness.notes(),
            "configurations": configurations(),
        }
        return as_json(page, 503 if reasons else 200)

    async def metrics(_: Request) -> Response:
        """Prometheus metrics."""
        return StreamingResponse(exposition(registry), media_type=CONTENT_TYPE_LATEST)

    async def debug_state(_: Request) -> Response:
        """What the process knows and does, as JSON."""
        return await alone(lambda: as_json(state()))

    async def refused(_: Request, error: Exception) -> Response:
        """As `{"error": …}`, with what there is to know."""
        assert isinstance(error, HTTPException)
        return as_json({"error": error.detail}, error.status_code, error.headers)

    every_tier = [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Route("/debug/state", debug_state),
    ]
    return Starlette(
        routes=with_index([*every_tier, *routes], title),
        exception_handlers={HTTPException: refused},
    )


def as_json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Anything as JSON. A number that isn't one (a value that nobody reported) is null."""
    return Response(_encoded(content), status, headers, media_type="application/json")


def as_json_list(name: str, items: Iterable[object], **head: object) -> Response:
    """An object with a list, which is made and sent item by item: other work goes on meanwhile."""
    return StreamingResponse(json_list(head, name, items, _encoded), media_type="application/json")


def _encoded(content: object) -> bytes:
    return msgspec.json.encode(content, enc_hook=_plain)


def _plain(value: object) -> object:
    """What JSON has no word for: arrays as lists, anything else as its text. A debug page never fails on a value."""
    if isinstance(value, Mapping):
        return dict(value)
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)


class AdminServer:
    """Listens on `host:port`, and serves an app there; port 0 takes a free one, to be read from `port`."""

    def __init__(
        self,
        app: Starlette,
        host: str,
        port: int,
        *,
        timeout: float = AdminProtocol.TIMEOUT,
        connections: int = AdminProtocol.MOST,
    ) -> None:
        """`timeout`: seconds for a request and its answer. Raises `Invalid` when the address can't be had."""
        self.host = host
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                app,
                http=bounded(timeout, connections),
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=math.ceil(timeout),
                timeout_graceful_shutdown=GRACE,
                headers=[("x-content-type-options", "nosniff")],
            )
        )

    async def serve(self) -> None:
        """Answer requests until `stop`."""
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Let `serve` end."""
        self._server.should_exit = True

    def __repr__(self) -> str:
        return f"<AdminServer {join_host_port(self.host, self.port)}>"


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: signals are the service's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Only one socket can listen, while with SO_REUSEADDR two can be bound.
        listener.listen(128)
    except OSError as error:
        listener.close()
        where = join_host_port(host, port)
        if error.errno == errno.EADDRINUSE:
            problem = Problem("--admin-port", f"{where} is taken by another process; 0 takes a free port")
        elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            problem = Problem("--admin-host", f"{host!r} is no address of this machine: {error.strerror}")
        else:
            problem = Problem("--admin-port", f"{where} can't be listened on: {error.strerror}")
        raise Invalid([problem]) from error
    return listener
