"""A subscription of the bus: handles its messages one after the other, and lets others have their turn."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.limits import BusLimits
from shared.tasks import TURN

Handler: TypeAlias = Callable[[Msg], None]
"""Takes a message: `subject`, `data`, `headers` (or None), `reply`. Runs in the event loop and must not block."""

SILENT = 1.0
"""Seconds after a traceback in the log in which a subscription's further ones aren't."""
_HANDING_OVER = 5e-6
"""Seconds that nats-py takes for a message beside its handler."""


class Subscription:
    """A subscription that the bus renews at every connection until `unsubscribe`.

    `failed` is called for each message whose handler fails, `ended` when the subscription does.
    """

    def __init__(
        self,
        subject: str,
        handler: Handler,
        limits: BusLimits,
        *,
        failed: Callable[[], None],
        ended: Callable[["Subscription"], None],
    ) -> None:
        self.subject = subject
        self._handler = handler
        self._limits = limits
        self._failed = failed
        self._ended = ended
        self._client: Client | None = None
        self._inner: object | None = None
        self._spent = 0.0
        self._silent_until = 0.0

    async def attach(self, client: Client) -> None:
        """Subscribe at this client, unless that is done. What exceeds the limits is lost, as without a connection."""
        if self._client is not client:
            self._client = client
            self._inner = await client.subscribe(
                self.subject,
                cb=self._handle,
                pending_msgs_limit=self._limits.max_pending_messages,
                pending_bytes_limit=max(self._limits.max_pending_bytes, 2 * client.max_payload),
            )

    async def _handle(self, message: Msg) -> None:
        began = time.monotonic()
        try:
            self._handler(message)
        except Exception:  # noqa: BLE001 - the top of the subscription's task: one bad message must not end it
            self._failed()
            if began >= self._silent_until:
                self._silent_until = began + SILENT
                structlog.get_logger().exception("bus.handler.failed", subject=message.subject)
        # nats-py hands over all that has come without a pause
        self._spent += time.monotonic() - began + _HANDING_OVER
        if self._spent >= TURN:
            self._spent = 0.0
            await asyncio.sleep(0)

    async def unsubscribe(self) -> None:
        self._ended(self)
        inner, self._inner, self._client = self._inner, None, None
        if inner is not None:
            try:
                await inner.unsubscribe()  # type: ignore[attr-defined]
            except nats.errors.Error:
                pass  # the connection is gone, and the subscription with it

    def __repr__(self) -> str:
        return f"<Subscription {self.subject!r}>"
