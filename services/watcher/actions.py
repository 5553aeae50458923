"""Does what people ask for over the bus, one thing after the other, while this watcher leads."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog
from msgspec import Struct
from nats.aio.msg import Msg

from services.watcher.drain_file import DrainError
from shared.bus.action_messages import ActionResult, Drain
from shared.bus.actions import TIMEOUT
from shared.bus.codec import encode
from shared.bus.connection import Bus
from shared.bus.errors import BusError
from shared.bus.query_messages import MAX_ERROR
from shared.bus.reply_subjects import is_answerable
from shared.bus.subjects import READER, Subjects
from shared.model import Endpoint

log = structlog.get_logger(__name__)

WAITING = 32
"""Actions that wait for their turn; further ones get no answer."""


class _PendingAction(Struct, frozen=True):
    pool: str
    reply: str
    action: Drain
    at: float
    """When it came, in monotonic seconds."""


class Actions:
    """The actions on the endpoints of these pools (by their tokens), which `drain` carries out. It raises DrainError
    if it can't."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        id: str,
        pools: Callable[[], Mapping[str, Mapping[str, Endpoint]]],
        drain: Callable[[Endpoint, bool], Awaitable[None]],
        *,
        leads: Callable[[], bool],
    ) -> None:
        """`pools` has the endpoints of each pool, by id."""
        self._bus, self._subjects, self._id = bus, subjects, id
        self._pools, self._drain, self._leads = pools, drain, leads
        self._queue: asyncio.Queue[_PendingAction] = asyncio.Queue(WAITING)

    async def start(self) -> None:
        """Listen. Subscriptions end with the connection."""
        for pool in self._pools():
            await self._bus.subscribe(self._subjects.actions(pool), partial(self._receive, pool))

    async def run(self) -> None:
        """Act, for ever."""
        while True:
            pending = await self._queue.get()
            if time.monotonic() - pending.at > TIMEOUT:
                continue  # the requester has given up and reported a failure
            action = pending.action
            error = await self._act(pending.pool, action)
            outcome = {"refused": error} if error else {}
            what = "action.drain" if action.drain else "action.undrain"
            log.info(what, endpoint=action.endpoint, by=action.by, **outcome)
            try:
                await self._bus.publish(pending.reply, encode(ActionResult(sender=self._id, error=error[:MAX_ERROR])))
            except BusError as failure:
                log.warning("action.answer.failed", reason=str(failure))

    def _receive(self, pool: str, message: Msg) -> None:
        if not self._leads() or not is_answerable(message, self._subjects, READER, self._bus.malformed):
            return
        action = self._bus.malformed.decode(Drain, message.data, message.subject)
        if action is not None and not self._queue.full():
            self._queue.put_nowait(_PendingAction(pool, message.reply, action, time.monotonic()))

    async def _act(self, pool: str, action: Drain) -> str:
        """Why it couldn't be done; empty if it is."""
        endpoint = self._pools()[pool].get(action.endpoint)
        if endpoint is None:
            return f"the pool has no endpoint {action.endpoint!r}"
        try:
            await self._drain(endpoint, action.drain)
        except DrainError as error:
            return str(error)
        except Exception as error:
            log.exception("action.failed", endpoint=action.endpoint)
            return f"{type(error).__name__}: {error}"
        return ""

    def __repr__(self) -> str:
        return f"<Actions {self._queue.qsize()} waiting>"
