"""The Kubernetes API over plain HTTP requests with JSON: objects are dicts, errors are `KubernetesError`s.

Who we are may change at any moment (a token rotates, an exec plugin's credentials expire, an authority is replaced): a
401 or a failed TLS handshake loads the credentials anew and tries once more; what runs isn't disturbed. Nothing else is
tried again here. Answers aren't compressed: the API server would spend more time on that than its network on the bytes.
"""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import msgspec
import structlog
from msgspec import Struct

from services.watcher.kubernetes.errors import BadAnswer, ConnectionFailed, TlsFailed, error_of_answer
from services.watcher.kubernetes.lines import check_object, resource_version
from services.watcher.kubernetes.pool import Access, Answer, Pool, Request
from services.watcher.kubernetes.resource import JsonObject, Resource, Selection
from services.watcher.kubernetes.settings import KubernetesSettings
from shared.version import VERSION

log = structlog.get_logger(__name__)

USER_AGENT = f"pointsman-watcher/{VERSION}"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts a pod's token and authority."""
JSON = "application/json"
METADATA = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
"""An extension's own API server that doesn't know of it sends the whole objects."""
METADATA_LIST = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"
APPLY = "application/apply-patch+yaml"
ERROR_BYTES = 65_536
"""Of an error's body are read: its Status object is a few hundred."""


class Page(Struct):
    """A part of a list."""

    items: list[JsonObject]
    resource_version: str
    """Of the whole list: a watch from here on brings what changed since."""
    next: str = ""
    """Asks for the next part; empty after the last."""


class Document(Struct, frozen=True):
    """What is at a path."""

    content: dict[str, Any] | None
    """None: not modified since the entity tag that was sent."""
    media_type: str
    etag: str


class Api(Protocol):
    """What watching needs of the API; `Client` over HTTP, and fakes in tests."""

    async def page(self, selection: Selection, limit: int | None, after: str = "") -> Page:
        """A page of at most `limit` objects (None: all), the one that a page's `next` names. Raises KubernetesError,
        Expired if that page is no more."""

    def stream(
        self, selection: Selection, resource_version: str, seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes of one watch call that the server ends after `seconds`. Raises KubernetesError at its begin and,
        ConnectionFailed, within."""


class Client:
    """The API server, as somebody. `open` first, `close` last."""

    def __init__(self, load: Callable[[], Awaitable[Access]], settings: KubernetesSettings) -> None:
        """`load` reads the credentials anew; raises ConfigurationError."""
        self._load = load
        self._settings = settings
        self._pool: Pool | None = None
        self._renewing = asyncio.Lock()
        self.requests = 0
        self.renewals = 0
        """How often credentials were loaded anew."""

    async def open(self) -> None:
        """Load the credentials; connects when something is asked. Raises ConfigurationError."""
        self._pool = Pool(await self._load())

    async def close(self) -> None:
        """End everything that is under way."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    @property
    def host(self) -> str:
        """`https://10.96.0.1:443`"""
        return self._current.host

    async def page(self, selection: Selection, limit: int | None, after: str = "") -> Page:
        """See `Api`. The first page is the state at the time of asking (no older one from a cache)."""
        query = list(selection.parameters)
        if limit is not None:
            query.append(("limit", str(limit)))
        if after:
            query.append(("continue", after))
        accept = METADATA_LIST if selection.metadata_only else JSON
        action = f"list {selection}"
        answer = await self._json(action, "GET", selection.path, query=query, accept=accept)
        items = answer.get("items") or []
        if not isinstance(items, list):
            raise BadAnswer(f"can't {action}: the answer's items aren't a list")
        for item in items:
            check_object(item)
        return Page(items, resource_version(answer), answer["metadata"].get("continue") or "")

    @asynccontextmanager
    async def stream(
        self, selection: Selection, resource_version: str, seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """See `Api`. A connection on which nothing comes for the inactivity time-out fails as TimedOut."""
        query = [
            *selection.parameters,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(max(1, round(seconds)))),
        ]
        timeout = aiohttp.ClientTimeout(
            total=seconds + self._settings.kubernetes_watch_grace,
            sock_connect=self._settings.kubernetes_connect_timeout,
            sock_read=self._settings.kubernetes_inactivity_timeout,
        )
        headers = self._headers(METADATA if selection.metadata_only else JSON)
        begin = self._settings.kubernetes_request_timeout
        request = Request("GET", selection.path, query, headers, timeout=timeout, begin_timeout=begin)
        action = f"watch {selection}"
        async with self._ask(request) as answer:
            await self._check(action, answer)
            answer.probe(self._settings.kubernetes_keepalive)
            yield answer

    async def document(self, path: str, accept: str = JSON, etag: str = "") -> Document:
        """What is at a path that is no object's, discovery for example. With the `etag` of the last time the answer may
        be that nothing changed."""
        extra = {"If-None-Match": etag} if etag else {}
        request = Request("GET", path, headers=self._headers(accept) | extra, timeout=self._timeout)
        action = f"get {path}"
        async with self._ask(request) as answer:
            if answer.status == 304:
                return Document(None, "", etag)
            await self._check(action, answer)
            media_type = answer.headers.get("Content-Type", "")
            return Document(await self._decoded(action, answer), media_type, answer.headers.get("ETag", ""))

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        field_manager: str,
        force: bool = False,
        subresource: str = "",
    ) -> JsonObject:
        """Server-side apply: the fields of the body become this field manager's, with `force` also those that another
        one owns; else that is a Conflict. The object as it is then. Raises KubernetesError."""
        query = [("fieldManager", field_manager), ("force", str(force).lower())]
        full = f"{resource}{f'/{subresource}' if subresource else ''}"
        action = f"patch {full} {_place(namespace, name)}"
        path = resource.path(namespace, name, subresource)
        return await self._json(action, "PATCH", path, query=query, body=body, content_type=APPLY)

    async def create(self, resource: Resource, body: Mapping[str, Any], namespace: str = "") -> JsonObject:
        """A new object, an Event for example; as it is then. Raises Conflict and other KubernetesErrors."""
        action = f"create {resource}{f' in namespace {namespace}' if namespace else ''}"
        return await self._json(action, "POST", resource.path(namespace), body=body)

    @property
    def _current(self) -> Pool:
        if self._pool is None:
            raise ConnectionFailed("the client is closed")
        return self._pool

    @property
    def _timeout(self) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(
            total=self._settings.kubernetes_request_timeout, sock_connect=self._settings.kubernetes_connect_timeout
        )

    def _headers(self, accept: str) -> dict[str, str]:
        return {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": USER_AGENT}

    async def _json(
        self,
        action: str,
        method: str,
        path: str,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str = JSON,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        headers = self._headers(accept) | {"Content-Type": content_type}
        request = Request(method, path, query or (), headers, body, self._timeout)
        async with self._ask(request) as answer:
            await self._check(action, answer)
            return await self._decoded(action, answer)

    @asynccontextmanager
    async def _ask(self, request: Request) -> AsyncIterator[Answer]:
        """The answer, to a second request with new credentials if the first showed that the old ones are void."""
        self.requests += 1
        pool = self._current
        async with AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(pool.ask(request))
                void = "401 Unauthorized" if answer.status == 401 else ""
            except TlsFailed as error:
                void = str(error)
            if void:
                await stack.aclose()
                log.info("kubernetes.credentials.reload", reason=void)
                await self._renew(pool)
                answer = await stack.enter_async_context(self._current.ask(request))
            yield answer

    async def _renew(self, old: Pool) -> None:
        """Load the credentials, unless somebody else did since."""
        async with self._renewing:
            if self._current is not old:
                return
            self._pool = Pool(await self._load())
            self.renewals += 1
            await old.retire()

    async def _check(self, action: str, answer: Answer) -> None:
        """Raise what the status or the type of the content says."""
        if not 200 <= answer.status < 300:
            body = await answer.begin(ERROR_BYTES)
            pause = answer.headers.get("Retry-After", "")
            raise error_of_answer(action, answer.status, answer.reason, pause, body)
        media_type = answer.headers.get("Content-Type", "")
        if not media_type.startswith(JSON):
            raise BadAnswer(f"can't {action}: {answer.status} with {media_type or 'no content type'}, not {JSON}")

    async def _decoded(self, action: str, answer: Answer) -> dict[str, Any]:
        try:
            return _decode(await answer.read(self._settings.kubernetes_answer_limit))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadAnswer(f"can't {action}: the answer isn't a JSON object: {error}") from error
        except BadAnswer as error:
            raise BadAnswer(f"can't {action}: {error}") from error

    def __repr__(self) -> str:
        return f"<Client {self._pool!r}, {self.requests} requests, {self.renewals} renewals>"


async def connect(
    settings: KubernetesSettings,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Client:
    """A client that is open: with the kubeconfig of the settings, else the pod's service account, else what kubectl
    takes. Raises ConfigurationError; that the API server can be reached is seen at the first request."""
    from services.watcher.kubernetes.credentials import Credentials  # half a second and 40 MB: only where it is used

    credentials = Credentials(settings, os.environ if environ is None else environ, service_account)
    client = Client(credentials.load, settings)
    await client.open()
    log.info("kubernetes.connect", host=client.host, origin=credentials.origin)
    return client


def _decode(body: bytes) -> dict[str, Any]:
    """A JSON object. Without the garbage collector: what is decoded has no cycles, and looking for some after every 700
    containers takes three times as long as decoding a page of pods."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    finally:
        if collecting:
            gc.enable()


def _place(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name
