"""The connection to NATS: one `Bus` per process, which reconnects by itself.

Each connection has a nats-py client of its own, because nats-py's reconnecting has three traps: it sends unflushed
messages after the reconnect, where they look new; closing waits until a dead peer empties the socket's buffer; and some
server errors close the client for good.

Without a connection, publishes are dropped: every message of the bus is about the present.
"""

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from urllib.parse import urlsplit

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.protocol.parser import PERMISSIONS_ERR

from shared.bus.client import CLOSE_TIMEOUT, NatsClient, close_client
from shared.bus.codec import UNKNOWN_SENDER, MalformedLog, SenderLog
from shared.bus.credentials import CredentialsFile
from shared.bus.errors import BusError, NoResponders, NotConnected, RequestTimeout
from shared.bus.options import check_login, checked_servers, first_expiry, login_of, tls_context, without_secrets
from shared.bus.publishable import MAX_PAYLOAD
from shared.bus.refused import INTERVAL as REFUSED_INTERVAL
from shared.bus.refused import RefusedSubscriptions
from shared.bus.replies import Replies, is_no_responders
from shared.bus.server_names import ServerNames
from shared.bus.subjects import PEERS
from shared.bus.subscription import Handler, Subscription
from shared.limits import LIMITS, BusLimits
from shared.tasks import cancel, set_within

MINIMUM_SERVER = (2, 11)
"""The first nats-server with batched direct gets and a time to live per message."""

MAX_SUBJECTS = 4000
"""Bytes of a subject with its reply subject: nats-server's lines have 4 096, and a longer one ends the connection."""
SHOWN = 100
"""Characters of a subject in an error."""

_OUTSTANDING_PINGS = 2


class Bus:
    """The connection to NATS.

    `servers` are URLs (`nats://host:4222`, `tls://host:4222`), tried in turn. `name` appears in the server's
    monitoring. `refused_interval` is the pause in seconds between two trials of subscriptions that the server refuses.
    Log in with a `credentials` file, `user` and `password`, a `token`, or a user in the URL. `ca` (a PEM
    file) or a `tls://` URL requires TLS. Subjects of answers begin with `inbox`. `reconnect_wait` is the range of the
    pause between two attempts in seconds.
    Raises BusOptionError for an unusable option.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        name: str,
        credentials: Path | None = None,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        ca: Path | None = None,
        inbox: str = "_INBOX",
        limits: BusLimits = LIMITS,
        connect_timeout: float = 1.0,
        ping_interval: float = 1.0,
        refused_interval: float = REFUSED_INTERVAL,
        reconnect_wait: tuple[float, float] = (0.05, 0.15),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.servers = checked_servers([servers] if isinstance(servers, str) else list(servers))
        check_login(credentials, user, password, token)
        self.name = name
        self._credentials = None if credentials is None else CredentialsFile(credentials)
        self._user, self._password, self._token = user, password, token
        self._tls = tls_context(self.servers, ca)
        self._expirations = {} if self._tls is None or ca is None else {"nats_ca": first_expiry(self._tls)}
        self._inbox_prefix = inbox
        self.limits = limits
        self._connect_timeout = connect_timeout
        self._ping_interval = ping_interval
        self._refused_interval = refused_interval
        self._reconnect_wait = reconnect_wait
        self._clock = clock
        self._log = structlog.get_logger()

        self._client: Client | None = None
        """The client of the connection that is up."""
        self._link: Client | None = None
        """The client of the connection that is up or about to be: subscriptions are made on it."""
        self._names = ServerNames()
        self._lost = asyncio.Event()
        self._up = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._closing = False
        """Asked for besides the cancellation, which asyncio.wait_for of Python 3.11, and so nats-py, may swallow."""
        self._closers: set[asyncio.Task[None]] = set()
        self._subscriptions: set[Subscription] = set()
        self._on_connect: list[Callable[[], None]] = []
        self._on_disconnect: list[Callable[[], None]] = []
        self._inbox = self._peer_inbox = ""
        self._replies, self._peer_replies = Replies(), Replies()

        self.since = clock()
        """When the present state, connected or not, began."""
        self.error = "not started"
        """Why there is no connection; of no meaning while there is one."""
        self.connections = 0
        self.dropped = 0
        """Publishes that were dropped because there was no connection."""
        self.handler_errors = 0
        self.slow_consumers = 0
        self.malformed = MalformedLog(clock)
        """Messages that can't be decoded, or say what can't be true, or that the server refused."""
        self._lost_messages = SenderLog(clock, "lost")
        self._unreadable = SenderLog(clock, "unreadable")

    # State

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    @property
    def max_payload(self) -> int:
        """Bytes of a message, headers and all, that the server takes; while there is none, that servers usually do."""
        return MAX_PAYLOAD if self._client is None else self._client.max_payload

    def readiness(self) -> str | None:
        """None while connected, otherwise why not and for how long."""
        if self.connected:
            return None
        servers = ", ".join(map(without_secrets, self.servers))
        return f"not connected to NATS at {servers} for {self._clock() - self.since:.1f} s: {self.error}"

    def on_connect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back at once if connected, and at every connection, after the subscriptions. Returns a remover."""
        self._on_connect.append(callback)
        if self.connected:
            callback()
        return lambda: self._on_connect.remove(callback)

    def on_disconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when a connection is lost. Returns a remover."""
        self._on_disconnect.append(callback)
        return lambda: self._on_disconnect.remove(callback)

    async def wait_connected(self, timeout: float | None = None) -> None:
        """Wait for a connection. Raises NotConnected, with the reason, when there is none in time."""
        while not self.connected:
            self._up.clear()
            if not await set_within(self._up, timeout):
                raise NotConnected(self.readiness() or "no connection in time")

    # Life

    async def start(self) -> None:
        """Connect and stay connected, in the background."""
        if self._supervisor is None:
            self._closing = False
            self.error = "connecting"
            self._supervisor = asyncio.create_task(self._supervise(), name="bus")

    async def close(self) -> None:
        """Send what was published, and disconnect for good."""
        supervisor, self._supervisor = self._supervisor, None
        client = self._client
        if client is not None and client.is_connected:
            try:
                await client.flush(timeout=CLOSE_TIMEOUT)  # type: ignore[arg-type]
            except nats.errors.Error:
                pass  # the server doesn't answer; there is nobody to send it to
        self._closing = True  # not before: the supervisor lets go of the connection when it sees this
        if supervisor is not None:
            await cancel(supervisor)
        self._down("closed")
        if self._closers:
            await asyncio.wait(self._closers)

    async def __aenter__(self) -> "Bus":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _supervise(self) -> None:
        servers = list(self.servers)
        random.shuffle(servers)
        for server in cycle(servers):
            if self._closing:
                return
            client = NatsClient(self._ended, self._note_unreadable)
            refused = RefusedSubscriptions(client, self._subjects, partial(self._ended, client), self._refused_interval)
            client.tls_required = self._tls is not None
            self._lost.clear()
            try:
                await self._connect(client, server, refused)
                if client.is_connected and not self._closing:
                    await self._lost.wait()
                if refused.permitted:
                    reason = "connection made anew: subscriptions are permitted again"
                elif client.last_error is None:
                    reason = "connection lost"
                else:
                    reason = f"connection lost: {str(client.last_error) or type(client.last_error).__name__}"
                self._down(reason)
            except (OSError, nats.errors.Error, BusError, TimeoutError, ssl.SSLError) as error:
                reason = str(error) or (
                    "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
                )
                host = urlsplit(server).hostname or ""
                if trouble := self._names.trouble(host):
                    reason += f", at the last known address: the look-up of {host} {trouble}"
                if reason != self.error:
                    self._log.warning("bus.connect.failed", server=without_secrets(server), reason=reason)
                self.error = reason
            except Exception as error:  # noqa: BLE001 - the top of the task: it must never stop trying
                reason = f"{type(error).__name__}: {error}"
                if reason != self.error:
                    self._log.exception("bus.connect.failed", server=without_secrets(server))
                self.error = reason
            finally:
                self._link = None
                refused.close()
                closer = asyncio.create_task(close_client(client), name="bus-close")
                self._closers.add(closer)
                closer.add_done_callback(self._closers.discard)
            await asyncio.sleep(random.uniform(*self._reconnect_wait))

    async def _connect(self, client: NatsClient, server: str, refused: RefusedSubscriptions) -> None:
        last_error: list[Exception] = []
        url = urlsplit(server)
        client.addresses = await self._names.addresses(url.hostname or "", url.port or 0, self._connect_timeout)

        async def on_error(error: Exception) -> None:
            last_error.append(error)
            if isinstance(error, nats.errors.SlowConsumerError):
                self.slow_consumers += 1
                self._lost_messages.report(
                    UNKNOWN_SENDER, "they come faster than they are handled", subject=error.subject
                )
            elif PERMISSIONS_ERR in str(error):
                self.malformed.refused.report("this process", error)
                refused.note(error)
            elif client is self._client:
                self._log.info("bus.error", reason=str(error) or type(error).__name__)

        async def on_lame_duck() -> None:
            # The server is about to stop; with another one in the list there is no need to wait for that.
            if len(self.servers) > 1:
                self._lost.set()

        # nats-py takes a URL's user and password as they are written, escapes and all.
        user, password, token = login_of(server)
        if self._credentials or self._user or self._token:
            user, password, token = self._user, self._password, self._token
        try:
            # One attempt takes at most three waits: for TCP, for the server's INFO and for its PONG.
            async with asyncio.timeout(3 * self._connect_timeout):
                await client.connect(
                    [without_secrets(server)],
                    name=self.name,
                    error_cb=on_error,
                    lame_duck_mode_cb=on_lame_duck,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=self._connect_timeout,  # type: ignore[arg-type]
                    ping_interval=self._ping_interval,  # type: ignore[arg-type]
                    max_outstanding_pings=_OUTSTANDING_PINGS,
                    pending_size=0,
                    no_echo=True,
                    inbox_prefix=self._inbox_prefix,
                    tls=self._tls,
                    user=user,
                    password=password,
                    token=token,
                    user_jwt_cb=None if self._credentials is None else self._credentials.jwt,
                    signature_cb=None if self._credentials is None else self._credentials.sign,
                )
        except nats.errors.NoServersError as error:
            # nats-py hides what happened to the only server of its list behind this one.
            raise (last_error[-1] if last_error else error) from error
        if self._closing:
            return
        version = client.connected_server_version
        if (version.major, version.minor) < MINIMUM_SERVER:
            raise BusError(
                f"nats-server {version.major}.{version.minor}.{version.patch} is too old, "
                f"{'.'.join(map(str, MINIMUM_SERVER))} or newer is needed"
            )
        await self._attach(client)
        if not self._closing:
            self._hold(client, server)

    def _subjects(self) -> Iterator[str]:
        """Those that a connection subscribes to."""
        yield from (f"{self._inbox}.*", f"{self._peer_inbox}.*")
        yield from (subscription.subject for subscription in self._subscriptions)

    async def _attach(self, client: Client) -> None:
        self._inbox = client.new_inbox()
        self._peer_inbox = f"{self._inbox_prefix}.{PEERS}.{self._inbox.rpartition('.')[2]}"
        self._link = client
        await client.subscribe(f"{self._inbox}.*", cb=self._replies.receive)
        await client.subscribe(f"{self._peer_inbox}.*", cb=self._peer_replies.receive)
        for subscription in list(self._subscriptions):
            await subscription.attach(client)
        # Until the server has them, readers that know of the connection would miss what others publish.
        await client.flush(timeout=self._connect_timeout)  # type: ignore[arg-type]

    def expirations(self) -> Mapping[str, float]:
        """When the certificates that the connection uses expire, in seconds since the epoch: the CA's, and the
        server's that it was last connected to."""
        return self._expirations

    def _hold(self, client: NatsClient, server: str) -> None:
        self._client = client
        if (expiry := client.server_expires()) is not None:
            self._expirations = {**self._expirations, "nats_server": expiry}
        self.error = "connection lost"
        self.since = self._clock()
        self.connections += 1
        self._up.set()
        self._log.info("bus.connected", server=without_secrets(server), connections=self.connections)
        for callback in list(self._on_connect):
            self._call(callback)

    def _ended(self, client: Client) -> None:
        if client is self._link:
            self._lost.set()

    def _down(self, reason: str) -> None:
        client, self._client, self._link = self._client, None, None
        self.error = reason
        if client is None:
            return
        self.since = self._clock()
        self._replies.fail(reason)
        self._peer_replies.fail(reason)
        self._log.info("bus.disconnected", reason=reason)
        for callback in list(self._on_disconnect):
            self._call(callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # noqa: BLE001 - one part's mistake must not keep the others from hearing of it
            self._note_failure()
            self._log.exception("bus.callback.failed")

    def _note_failure(self) -> None:
        self.handler_errors += 1

    def _note_unreadable(self, error: Exception) -> None:
        self.handler_errors += 1
        self._unreadable.report(UNKNOWN_SENDER, f"{type(error).__name__}: {error}")

    # Messages

    async def publish(
        self, subject: str, payload: bytes = b"", *, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> bool:
        """Send a message. Returns False if there is no connection. Raises BusError for a subject or payload NATS
        refuses."""
        if (size := _bytes(subject) + _bytes(reply)) > MAX_SUBJECTS:
            shown = subject[:SHOWN]
            raise BusError(f"{shown}…: it takes {size} bytes with its reply subject; {MAX_SUBJECTS} are allowed")
        client = self._client
        if client is not None:
            try:
                await client.publish(subject, payload, reply, None if headers is None else dict(headers))
            except (
                nats.errors.ConnectionClosedError,
                nats.errors.ConnectionDrainingError,
                nats.errors.OutboundBufferLimitError,
            ):
                pass  # counted below
            except nats.errors.Error as error:
                raise BusError(f"{subject}: {error}") from error
            else:
                return True
        self.dropped += 1
        return False

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """Have a subject's messages handled, now and after every reconnect. Wildcards as in NATS: `*` and `>`."""
        subscription = Subscription(
            subject, handler, self.limits, failed=self._note_failure, ended=self._subscriptions.discard
        )
        self._subscriptions.add(subscription)
        if self._link is not None:
            try:
                await subscription.attach(self._link)
            except nats.errors.BadSubjectError as error:
                self._subscriptions.discard(subscription)
                raise BusError(f"{subject!r} can't be subscribed to") from error
            except nats.errors.Error:
                pass  # the connection just broke: the next one brings the subscription
        return subscription

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        timeout: float = 1.0,
        headers: Mapping[str, str] | None = None,
        peer: bool = False,
    ) -> Msg:
        """Send a request and return the answer. Raises NotConnected, also meanwhile, NoResponders, RequestTimeout,
        BusError.

        A `peer` is a process with the same login. Its answers have an inbox of their own: it may publish there, and
        can't answer other requests."""
        return await self.request_many(
            subject, payload, last=lambda _: True, timeout=timeout, headers=headers, peer=peer
        )

    async def request_many(
        self,
        subject: str,
        payload: bytes,
        *,
        last: Callable[[Msg], object],
        timeout: float = 1.0,
        headers: Mapping[str, str] | None = None,
        peer: bool = False,
    ) -> Msg:
        """Send a request that has several answers. `last` gets each, and says which one is the last: that is returned.
        Raises as `request`."""
        with (self._peer_replies if peer else self._replies).expect(last) as reply:
            inbox = self._peer_inbox if peer else self._inbox
            if not await self.publish(subject, payload, headers=headers, reply=f"{inbox}.{reply.token}"):
                raise NotConnected(self.readiness() or "the connection has just been lost")
            try:
                async with asyncio.timeout(timeout):
                    answer = await reply.complete
            except TimeoutError as error:
                raise RequestTimeout(f"{subject}: no answer in {timeout:g} s") from error
        if is_no_responders(answer):
            raise NoResponders(f"{subject}: no process answers requests")
        return answer

    def __repr__(self) -> str:
        state = "connected" if self.connected else f"disconnected ({self.error})"
        return (
            f"<Bus {self.name!r} {state} for {self._clock() - self.since:.1f} s, "
            f"connections={self.connections} subscriptions={len(self._subscriptions)} dropped={self.dropped}>"
        )


def _bytes(subject: str) -> int:
    return len(subject) if subject.isascii() else len(subject.encode(errors="surrogatepass"))
