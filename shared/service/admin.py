"""Admin HTTP of every tier: health, readiness with reasons, Prometheus metrics, the process's state.

It listens before the service starts, so that a taken port stops the process at once.
"""

import asyncio
import contextlib
import errno
import importlib
import math
import reprlib
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Protocol

import anyio
import msgspec
import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.config.problems import Invalid, Problem
from shared.model import join_host_port
from shared.service.admin_connections import AdminProtocol, bounded
from shared.service.configured import Configured
from shared.service.host_names import HostNames
from shared.service.index import add_index
from shared.service.pages import exposition, json_state, stream_pieces
from shared.service.readiness import Readiness
from shared.version import VERSION

with contextlib.suppress(ImportError):  # responses that are streams import it with the first of them: 45 ms
    importlib.import_module("anyio._backends._asyncio")

GRACE = 2
"""Seconds that open requests get when the server stops; a stream of events would continue forever."""
SHOWN = 80
"""Characters of a refused parameter that the response repeats."""


class Health(BaseModel):
    status: str = "ok"


class ConfigurationInUse(BaseModel):
    pool: str
    origin: str
    revision: str


class ReadinessPage(BaseModel):
    ready: bool
    reasons: dict[str, str]
    """Why the process should get no work, by name."""
    notes: dict[str, str]
    """Problems that don't affect readiness, by name."""
    configurations: list[ConfigurationInUse]


class State(BaseModel):
    """What every tier shows; the other members differ by tier."""

    model_config = ConfigDict(extra="allow")
    id: str
    tier: str
    version: str
    configurations: list[ConfigurationInUse]


class Error(BaseModel):
    error: str


REFUSED: dict[int | str, dict[str, Any]] = {"4XX": {"model": Error, "description": "The request is refused."}}
"""For `responses` of routes with parameters."""


class Pages(Protocol):
    """The responses of the routes that every tier has."""

    async def readyz(self) -> Mapping[str, Any]:
        """The members of a `ReadinessPage`."""
        ...

    async def metrics(self) -> Response:
        """Metrics in Prometheus' text format."""
        ...

    async def debug_state(self) -> Response:
        """A `State`."""
        ...


class ProcessPages:
    """The pages of this process."""

    def __init__(
        self,
        readiness: Readiness,
        registry: CollectorRegistry,
        state: Callable[[], Mapping[str, Any]],
        configurations: Callable[[], Sequence[Configured]] = tuple,
    ) -> None:
        """An iterator in the `state` is a list whose items are made one by one."""
        self._readiness, self._registry = readiness, registry
        self._state, self._configurations = state, configurations

    async def readyz(self) -> Mapping[str, Any]:
        reasons, notes = self._readiness.reasons(), self._readiness.notes()
        return {
            "ready": not reasons,
            "reasons": reasons,
            "notes": notes,
            "configurations": self._configurations(),
        }

    async def metrics(self) -> Response:
        return StreamingResponse(exposition(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def debug_state(self) -> Response:
        return as_json_pieces(self._state_pieces())

    def _state_pieces(self) -> Iterator[bytes]:
        """The state is made as a piece of its page: for a client that has gone, none is."""
        state = self._state()
        yield b""
        yield from json_state(state, encoded)

    def __repr__(self) -> str:
        return f"<ProcessPages {self._readiness!r}>"


def build_app(pages: Pages, routes: APIRouter | None = None, title: str = "pointsman") -> FastAPI:
    """The routes that every tier has, and a tier's own."""
    app = FastAPI(title=title, version=VERSION, openapi_url=None)
    add_refusals(app)
    add_index(app)

    @app.get("/healthz", summary="200 while the process runs: the liveness probe.")
    async def healthz() -> Health:
        return Health()

    @app.get(
        "/readyz",
        summary="200 when the process should get work, otherwise 503 with the reasons; notes, configurations in use.",
        response_model=ReadinessPage,
        responses={503: {"model": ReadinessPage, "description": "The process should get no work."}},
    )
    async def readyz(response: Response) -> Any:
        """`configurations` has the revisions in use, so that a rollout can wait for one."""
        page = await pages.readyz()
        response.status_code = 200 if page["ready"] else 503
        return page

    @app.get("/metrics", summary="Prometheus metrics.", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return await pages.metrics()

    @app.get("/debug/state", summary="The state of the process as JSON.", response_model=State)
    async def debug_state() -> Response:
        return await pages.debug_state()

    if routes is not None:
        app.include_router(routes)
    return app


def add_refusals(app: FastAPI) -> None:
    """Answer refused requests with an `Error`."""
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    return as_json({"error": error.detail}, error.status_code, error.headers)


async def _invalid(_: Request, error: Exception) -> Response:
    """A parameter that doesn't match the declaration of its route."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    given = first["input"]
    shown = given if isinstance(given, str) else reprlib.repr(given)  # the text of all of it could be megabytes
    text = f"{first['loc'][-1]}: {first['msg']}, not {shown[:SHOWN]!r}"
    return as_json({"error": text}, 400)


def as_json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Returns anything as JSON. NaN (a value that nobody has reported) is null."""
    return Response(encoded(content), status, headers, media_type="application/json")


def as_json_pieces(pieces: Iterator[bytes]) -> Response:
    """JSON that is produced and sent piece by piece, so that other work can run in between."""
    return StreamingResponse(stream_pieces(pieces), media_type="application/json")


class InTurn(Response):
    """A large page. It is made when it is sent, and at most so many are at once: what it is made of is in memory until
    the client has read it, or its time is over. A client that goes away doesn't wait any longer."""

    def __init__(self, turns: asyncio.Semaphore, make: Callable[[], Awaitable[Response]]) -> None:
        super().__init__()
        self._turns, self._make = turns, make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken, refused = False, list[StarletteHTTPException]()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_when_gone, receive, group.cancel_scope, refused)
                taken = await self._turns.acquire()
                group.cancel_scope.cancel()
            if refused:
                raise refused[0]
            if taken:
                response = await self._make()
                await response(scope, receive, send)
        finally:
            if taken:
                self._turns.release()


async def _cancel_when_gone(
    receive: Receive, waiting: anyio.CancelScope, refused: list[StarletteHTTPException]
) -> None:
    """Nobody reads the request's body, which may be too long."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except StarletteHTTPException as error:
        refused.append(error)
    waiting.cancel()


def encoded(content: object) -> bytes:
    """As `as_json` writes it."""
    return msgspec.json.encode(content, enc_hook=_plain)


def _plain(value: object) -> object:
    """Convert what JSON can't represent: arrays to lists, the rest to text. A debug page never fails on a value."""
    if isinstance(value, Mapping):
        return dict(value)
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)


class AdminServer:
    """Listens on `host:port`, and serves an app there; port 0 takes a free one, to be read from `port`.

    Without a port it serves only the connections that `adopt` is given."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int | None,
        *,
        timeout: float = AdminProtocol.TIMEOUT,
        connections: int = AdminProtocol.MAX_CONNECTIONS,
        hostnames: Collection[str] | None = None,
        flag: str = "--admin",
    ) -> None:
        """`timeout`: seconds for a request and its answer; `hostnames`: on a loopback address, the names of hosts for
        which it answers, besides `localhost` and IP addresses, or None for all; `flag`: how the settings of host, port
        and names begin. Raises `Invalid` when the address can't be had."""
        self.host = host
        self._sockets = [] if port is None else [_listen(host, port, flag)]
        address: tuple[Any, ...] = self._sockets[0].getsockname() if self._sockets else ("0.0.0.0", 0)
        self.port: int = address[1]
        at = ip_address(address[0])
        self.loopback = (getattr(at, "ipv4_mapped", None) or at).is_loopback
        """Whether only this machine reaches the port."""
        if self.loopback and hostnames is not None:
            app = _ByHost(app, HostNames(hostnames, f"{flag}-hostnames"))
        self._server = _Server(
            uvicorn.Config(
                _HeadAsGet(app),
                http=bounded(timeout, connections),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",  # where a library for WebSockets is installed, its connections would have no limits
                timeout_keep_alive=math.ceil(timeout),
                timeout_graceful_shutdown=GRACE,
                headers=[("x-content-type-options", "nosniff")],
            )
        )

    async def serve(self) -> None:
        """Answer requests until `stop`."""
        try:
            await self._server.serve(sockets=self._sockets)
        finally:
            for listener in self._sockets:
                listener.close()

    @property
    def address(self) -> str:
        """`host:port`."""
        return join_host_port(self.host, self.port)

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that another process has accepted. Before `serve` has begun, close it."""
        server = self._server
        if not server.started:
            connection.close()
            return
        loop, config = asyncio.get_running_loop(), server.config
        protocol: Any = config.http_protocol_class

        def make() -> asyncio.Protocol:
            made: asyncio.Protocol = protocol(
                config=config, server_state=server.server_state, app_state=server.lifespan.state, _loop=loop
            )
            return made

        await loop.connect_accepted_socket(make, connection)

    def stop(self) -> None:
        """Let `serve` end."""
        self._server.should_exit = True

    def __repr__(self) -> str:
        return f"<AdminServer {self.address}>"


class _HeadAsGet:
    """Answers HEAD as GET; uvicorn leaves out the body. FastAPI's routes take only the methods that they name."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope, receive, send)


class _ByHost:
    """Refuses requests for other hosts. One without a host isn't a browser's: HTTP/1.1 requires it."""

    def __init__(self, app: ASGIApp, hosts: HostNames) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._hosts.refusal(Headers(scope=scope).get("host", "localhost"))
        await (self._app if problem is None else as_json({"error": problem}, 403))(scope, receive, send)


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: signals are the service's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int, flag: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Only one socket can listen, while with SO_REUSEADDR two can be bound.
        listener.listen(128)
    except (UnicodeError, TypeError) as error:  # the encoding of the name
        listener.close()
        raise Invalid([Problem(f"{flag}-host", f"{host!r} is no host name")]) from error
    except OSError as error:
        listener.close()
        where = join_host_port(host, port)
        if error.errno == errno.EADDRINUSE:
            problem = Problem(f"{flag}-port", f"{where} is taken by another process; 0 takes a free port")
        elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            problem = Problem(f"{flag}-host", f"{host!r} is no address of this machine: {error.strerror}")
        else:
            problem = Problem(f"{flag}-port", f"{where} can't be listened on: {error.strerror}")
        raise Invalid([problem]) from error
    return listener
