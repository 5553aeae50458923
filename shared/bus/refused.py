"""Subscriptions that a server's permissions refuse: when they are permitted again, the connection is made anew.

A server that loads other permissions ends the subscriptions that these refuse, and doesn't begin them again after it
has loaded the former ones.
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from contextlib import suppress

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

INTERVAL = 5.0
"""Seconds between two trials."""
_SUBJECT = re.compile(r'permissions violation for subscription to "([^"]*)"')


class RefusedSubscriptions:
    """Those of one connection. `subjects` returns the ones that the connection is to have; `on_permitted` is called
    when one that was refused is permitted again."""

    def __init__(
        self, client: Client, subjects: Callable[[], Iterable[str]], on_permitted: Callable[[], None], interval: float
    ) -> None:
        self._client, self._subjects, self._on_permitted = client, subjects, on_permitted
        self.permitted = False
        """Whether it was called."""
        self._interval = interval
        self._refused = set[str]()
        """nats-py writes errors in lower case."""
        self._trials: asyncio.Task[None] | None = None

    def note(self, error: Exception) -> None:
        """The server has sent this error."""
        if (found := _SUBJECT.search(str(error))) is None:
            return
        self._refused.add(found[1])
        if self._trials is None:
            self._trials = asyncio.create_task(self._try(), name="refused subscriptions")

    async def _try(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            refused, self._refused = self._refused, set()
            wanted = {subject for subject in self._subjects() if subject.lower() in refused}
            if not wanted:
                self._trials = None
                return
            trials: list[Subscription] = []
            try:
                for subject in wanted:
                    trials.append(await self._client.subscribe(subject, cb=_ignore))
                await self._client.flush(timeout=self._interval)  # type: ignore[arg-type]
            except nats.errors.Error:
                self._refused |= refused  # nothing is known yet
            for trial in trials:
                with suppress(nats.errors.Error):
                    await trial.unsubscribe()
            if any(subject.lower() not in self._refused for subject in wanted):
                self.permitted = True
                self._on_permitted()
                return

    def close(self) -> None:
        """The connection is over."""
        if self._trials is not None:
            self._trials.cancel()

    def __repr__(self) -> str:
        return f"<RefusedSubscriptions {sorted(self._refused)}>"


async def _ignore(_: Msg) -> None:
    """The connection's own subscription handles messages when it is permitted."""
