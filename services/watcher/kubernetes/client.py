"""The Kubernetes API over plain HTTP requests with JSON: objects are dicts, errors are `KubernetesError`s.

Credentials may change at any moment: a token rotates, an exec plugin's credentials expire, an authority is replaced.
A 401 or a failed TLS handshake reloads them and retries once; requests under way aren't disturbed. Nothing else is
retried here. Responses aren't compressed: that would cost the API server more than the bytes cost its network.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec
import structlog
from msgspec import Struct

from services.watcher.kubernetes.connections import (
    ConnectionPool,
    Request,
    Transport,
    enable_keepalive,
    read,
    read_error,
)
from services.watcher.kubernetes.errors import (
    AnswerTooLarge,
    BadAnswer,
    ConnectionFailed,
    TlsFailed,
    error_from_response,
)
from services.watcher.kubernetes.resource import JsonObject, Resource, Selection
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.kubernetes.watch_events import check_object, next_page, resource_version
from shared.version import VERSION

log = structlog.get_logger(__name__)

T = TypeVar("T")

USER_AGENT = f"pointsman-watcher/{VERSION}"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts a pod's token and authority."""
JSON = "application/json"
METADATA = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
"""An extension's own API server that doesn't know it sends the whole objects."""
METADATA_LIST = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
MAX_PAGE = 16 * 2**20
"""The most bytes of a page of several objects. To find the objects in it, msgspec holds the event loop, and in a thread
the interpreter's lock: 0.6 ms a MiB."""
ERROR_BYTES = 65_536
"""The most bytes of an error's body that are read. Its Status object has a few hundred."""


class Page(Struct):
    """A part of a list."""

    items: Iterable[JsonObject]
    """To be taken once, in turns with others: each is decoded when it is taken. Raises BadAnswer."""
    resource_version: str
    """Of the whole list: a watch from here brings what changed since."""
    next: str = ""
    """Requests the next part; empty after the last."""


class _List(Struct):
    """A page of a list, whose objects are unread."""

    metadata: Any = None
    items: list[msgspec.Raw] | None = None


class Api(Protocol):
    """What a reflector needs of the API; `Client` over HTTP, and fakes in tests."""

    async def page(self, selection: Selection, limit: int | None, after: str = "") -> Page:
        """A page of at most `limit` objects (None: all), the one that a page's `next` names. Raises KubernetesError,
        Expired if that page has expired, AnswerTooLarge if it has too many bytes: a smaller limit may help."""

    def stream(
        self, selection: Selection, resource_version: str, seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes of one watch call, which the server ends after `seconds`. Raises KubernetesError when it starts,
        ConnectionFailed later."""


class Client:
    """The API server. `open` first, `close` last."""

    def __init__(self, load: Callable[[], Awaitable[Transport]], settings: KubernetesSettings) -> None:
        """`load` reads the credentials; raises ConfigurationError."""
        self._load = load
        self._settings = settings
        self._pool: ConnectionPool | None = None
        self._renewing = asyncio.Lock()
        self.requests = 0
        self.renewals = 0
        """How often credentials were reloaded."""

    async def open(self) -> None:
        """Load the credentials. The first request connects. Raises ConfigurationError."""
        self._pool = ConnectionPool(await self._load())

    async def close(self) -> None:
        """Abort everything that is under way."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    @property
    def host(self) -> str:
        """`https://10.96.0.1:443`"""
        return self._current.host

    async def page(self, selection: Selection, limit: int | None, after: str = "") -> Page:
        """See `Api`. The first page is the current state, not an older one from a cache. A page that can't be smaller
        may be as large as any answer."""
        query = list(selection.parameters)
        if limit is not None:
            query.append(("limit", str(limit)))
        if after:
            query.append(("continue", after))
        accept = METADATA_LIST if selection.metadata_only else JSON
        action = f"list {selection}"
        most = MAX_PAGE if limit is not None and limit > 1 else None
        listed = await self._read(_List, action, "GET", selection.path, query=query, accept=accept, most=most)
        content = {"metadata": listed.metadata}
        return Page(_objects(action, listed.items or ()), resource_version(content), next_page(content))

    @asynccontextmanager
    async def stream(
        self, selection: Selection, resource_version: str, seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """See `Api`. A connection that is silent for the inactivity time-out fails as TimedOut."""
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
        header_timeout = self._settings.kubernetes_request_timeout
        request = Request("GET", selection.path, query, headers, timeout=timeout, header_timeout=header_timeout)
        async with self._send(request) as response:
            await self._check(f"watch {selection}", response)
            enable_keepalive(response, self._settings.kubernetes_keepalive)
            yield response.content.iter_any()

    async def document(self, path: str) -> dict[str, Any]:
        """What is at a path that isn't an object's: discovery. Raises KubernetesError."""
        return await self._read(JsonObject, f"get {path}", "GET", path)

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        field_manager: str,
        subresource: str = "",
    ) -> JsonObject:
        """Server-side apply: the field manager owns the body's fields from now on. Returns the object. Raises Conflict
        if another one owns them, and other KubernetesErrors."""
        query = [("fieldManager", field_manager), ("force", "false")]
        full = f"{resource}{f'/{subresource}' if subresource else ''}"
        action = f"patch {full} {f'{namespace}/{name}' if namespace else name}"
        path = resource.path(namespace, name, subresource)
        return await self._read(JsonObject, action, "PATCH", path, query=query, body=body, content_type=APPLY)

    async def merge(self, resource: Resource, name: str, body: Mapping[str, Any], *, namespace: str = "") -> JsonObject:
        """A merge patch (RFC 7396): null removes a field, whoever has set it. Returns the object. Raises NotFound and
        other KubernetesErrors."""
        action = f"patch {resource} {f'{namespace}/{name}' if namespace else name}"
        path = resource.path(namespace, name)
        return await self._read(JsonObject, action, "PATCH", path, body=body, content_type=MERGE)

    async def create(self, resource: Resource, body: Mapping[str, Any], namespace: str = "") -> JsonObject:
        """Creates and returns an object. Raises Conflict and other KubernetesErrors."""
        action = f"create {resource}{f' in namespace {namespace}' if namespace else ''}"
        return await self._read(JsonObject, action, "POST", resource.path(namespace), body=body)

    @property
    def _current(self) -> ConnectionPool:
        if self._pool is None:
            raise ConnectionFailed("the client is closed")
        return self._pool

    def _headers(self, accept: str) -> dict[str, str]:
        return {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": USER_AGENT}

    async def _read(
        self,
        kind: type[T],
        action: str,
        method: str,
        path: str,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str = JSON,
        content_type: str = JSON,
        most: int | None = None,
    ) -> T:
        """The answer as `kind`. Raises AnswerTooLarge above `most` bytes, and above what is allowed."""
        allowed = self._settings.kubernetes_answer_limit
        limit = allowed if most is None else min(most, allowed)
        headers = self._headers(accept) | {"Content-Type": content_type}
        timeout = aiohttp.ClientTimeout(
            total=self._settings.kubernetes_request_timeout, sock_connect=self._settings.kubernetes_connect_timeout
        )
        async with self._send(Request(method, path, query or (), headers, body, timeout)) as response:
            await self._check(action, response)
            try:
                return msgspec.json.decode(await read(response, limit), type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                what = "a list" if kind is _List else "a JSON object"
                raise BadAnswer(f"can't {action}: the answer isn't {what}: {error}") from error
            except AnswerTooLarge as error:
                setting = " (--kubernetes-answer-limit)" if limit == allowed else ""
                raise AnswerTooLarge(f"can't {action}: {error}{setting}") from error

    @asynccontextmanager
    async def _send(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response; to a second request with new credentials if the first shows that the old ones are invalid."""
        self.requests += 1
        pool = self._current
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(pool.send(request))
                invalid = "401 Unauthorized" if response.status == 401 else ""
            except TlsFailed as error:
                invalid = str(error)
            if invalid:
                await stack.aclose()
                log.info("kubernetes.credentials.reload", reason=invalid)
                await self._renew(pool)
                response = await stack.enter_async_context(self._current.send(request))
            yield response

    async def _renew(self, old: ConnectionPool) -> None:
        """Load the credentials, unless another request has done so."""
        async with self._renewing:
            if self._current is not old:
                return
            self._pool = ConnectionPool(await self._load())
            self.renewals += 1
            await old.retire()

    async def _check(self, action: str, response: aiohttp.ClientResponse) -> None:
        """Raises KubernetesError for an error status or another type of content."""
        if not 200 <= response.status < 300:
            body = await read_error(response, ERROR_BYTES)
            pause = response.headers.get("Retry-After", "")
            raise error_from_response(action, response.status, response.reason or "", pause, body)
        media_type = response.headers.get("Content-Type", "")
        if not media_type.startswith(JSON):
            raise BadAnswer(f"can't {action}: {response.status} with {media_type or 'no content type'}, not {JSON}")

    def __repr__(self) -> str:
        return f"<Client {self._pool!r}, {self.requests} requests, {self.renewals} renewals>"


async def connect(
    settings: KubernetesSettings,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Client:
    """An open client: with the kubeconfig of the settings, else the pod's service account, else what kubectl uses.
    Raises ConfigurationError. The first request shows whether the API server can be reached."""
    from services.watcher.kubernetes.credentials import Credentials  # half a second and 40 MB: only where it is used

    credentials = Credentials(settings, os.environ if environ is None else environ, service_account)
    client = Client(credentials.load, settings)
    await client.open()
    log.info("kubernetes.connect", host=client.host, origin=credentials.origin)
    return client


def _objects(action: str, items: Sequence[msgspec.Raw]) -> Iterator[JsonObject]:
    """The objects of a list. Decoded all at once, those of 5 000 pods would hold the event loop for a second."""
    for raw in items:
        try:
            item = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadAnswer(f"can't {action}: an object can't be read: {error}") from error
        check_object(item)
        yield item
        del item  # free it before the next one is made
