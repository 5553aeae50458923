"""The cluster's API over real HTTP, with everything that a server, a proxy or a network does wrong on demand."""

import asyncio
import contextlib
import json
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import yaml
from aiohttp import web

from services.watcher.kubernetes.errors import Expired
from services.watcher.kubernetes.resource import Selection
from tests.fake_kubernetes.cluster import Cluster, line, status
from tests.nats import free_port

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    """A request that came."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass
class Weather:
    """How watches fare."""

    lasts: float | None = None
    """Seconds until the server ends a watch; None: what was asked for."""
    breaks: bool = False
    """Whether that end is a reset instead of an ordinary one."""
    frozen: bool = False
    """Nothing is sent any more, and nothing is ended."""
    sent: deque[bytes] = field(default_factory=deque)
    """Bytes to send before everything else."""


def answer(code: int, body: Any, **headers: str) -> Handler:
    """Always this."""

    async def handle(_: web.Request) -> web.StreamResponse:
        return web.json_response(
            body, status=code, headers={key.replace("_", "-"): value for key, value in headers.items()}
        )

    return handle


def refusal(code: int, reason: str, message: str = "", **headers: str) -> Handler:
    """Always this Status."""
    return answer(code, status(code, reason, message), **headers)


class ApiServer:
    """Serves one cluster's objects. `next` answers the next requests in its place."""

    def __init__(self, cluster: Cluster | None = None, tokens: set[str] | None = None) -> None:
        self.cluster = cluster or Cluster()
        self.tokens = tokens
        """Bearer tokens that are known; None: everybody may do everything."""
        self.weather = Weather()
        self.next: deque[Handler] = deque()
        self.paths: dict[str, Handler] = {}
        """Answers to everything under a path."""
        self.seen: list[Seen] = []
        self.watches_open = 0
        self.watches = 0
        self.port = 0
        self._scheme = "http"
        self._tls: ssl.SSLContext | None = None
        self._runner: web.AppRunner | None = None
        self._changed = asyncio.Event()
        self.cluster.on_change.append(self._wake)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """On a free port, or on the one that it had."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        self._tls, self._scheme = tls, "https" if tls else "http"
        site = web.TCPSite(self._runner, "127.0.0.1", self.port or free_port(), ssl_context=tls, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Connections are closed, and no new ones taken."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def kubeconfig(self, path: Path, user: Mapping[str, Any] | None = None, **cluster: Any) -> str:
        """Write a kubeconfig for this server; its path."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "watcher"}}],
            "clusters": [{"name": "fake", "cluster": {"server": self.url, **cluster}}],
            "users": [{"name": "watcher", "user": dict(user or {})}],
        }
        path.write_text(yaml.safe_dump(document))
        return str(path)

    def pause(self, held: asyncio.Event) -> None:
        """The next request is answered after the event."""

        async def handle(request: web.Request) -> web.StreamResponse:
            await held.wait()
            return await self._serve(request)

        self.next.append(handle)

    def send(self, data: bytes) -> None:
        """Bytes on all watches."""
        self.weather.sent.append(data)
        self._wake()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        seen = Seen(
            request.method, request.path, dict(request.query), request.headers, json.loads(body) if body else None
        )
        self.seen.append(seen)
        if self.tokens is not None:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in self.tokens:
                return await refusal(401, "Unauthorized")(request)
        if self.next:
            return await self.next.popleft()(request)
        for path, handler in self.paths.items():
            if request.path.startswith(path):
                return await handler(request)
        return await self._serve(request)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        resource = self.cluster.resource
        namespace = request.path.split("/namespaces/")[1].split("/")[0] if "/namespaces/" in request.path else ""
        if request.path != resource.path(namespace):
            return await refusal(404, "NotFound", "the server could not find the requested resource")(request)
        labels = request.query.get("labelSelector", "")
        selection = Selection(resource, namespace, labels)
        try:
            if request.query.get("watch") == "true":
                return await self._watch(request, selection)
            limit = int(request.query["limit"]) if "limit" in request.query else None
            page = self.cluster.page(selection, limit, request.query.get("continue", ""))
        except Expired as error:
            return await refusal(410, "Expired", error.message)(request)
        metadata = {"resourceVersion": page.resource_version, **({"continue": page.next} if page.next else {})}
        items = [
            {key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in page.items
        ]
        body = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def _watch(self, request: web.Request, selection: Selection) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        self.cluster.since(selection, str(version))  # 410 before anything is sent
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        weather = self.weather
        end = loop.time() + (weather.lasts or float(request.query["timeoutSeconds"]))
        self.watches += 1
        self.watches_open += 1
        try:
            while True:
                self._changed.clear()
                if not weather.frozen:
                    while weather.sent:
                        await response.write(weather.sent.popleft())
                    try:
                        for at, data in self.cluster.since(selection, str(version)):
                            version = at
                            await response.write(data)
                    except Expired as error:
                        await response.write(line("ERROR", status(410, "Expired", error.message)))
                        return response
                    if loop.time() >= end:
                        break
                due = end if not weather.frozen else loop.time() + 3600
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await self._changed.wait()
            if weather.breaks and request.transport is not None:
                request.transport.abort()
            return response
        finally:
            self.watches_open -= 1

    def _wake(self) -> None:
        self._changed.set()
