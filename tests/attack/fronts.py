"""What the fronts share: acts in a seeded order, paced, a few at a time, and the journal of acts and breaches.

Each method `act_…` of a front is an act. `tables` adds acts that send one of several things.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from msgspec import Struct

from pointsman.local.stack import LocalStack

Act: TypeAlias = Callable[[Random], Awaitable[None]]
"""One attack. It ends, draws everything from this generator, and stays on this machine."""
REFUSALS = (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError)
"""How an attacker is turned away."""


@dataclass
class Entry:
    """One act. Times are monotonic seconds."""

    act: str
    began: float
    ended: float = math.inf


@dataclass
class Breach:
    """Something that must not happen, how often it did, and the acts that were under way."""

    what: str
    acts: list[str]
    times: int = 1


@dataclass
class Journal:
    """All acts, in the order in which they began, and all breaches."""

    entries: list[Entry] = field(default_factory=list)
    breaches: dict[str, Breach] = field(default_factory=dict)

    def under_way(self, since: float, until: float) -> list[str]:
        """The acts of these seconds."""
        return sorted({entry.act for entry in self.entries if entry.began <= until and entry.ended >= since})

    def breach(self, what: str, since: float | None = None, until: float | None = None) -> None:
        """Note a breach, by default of this moment. Equal ones are counted."""
        if what in self.breaches:
            self.breaches[what].times += 1
            return
        until = time.monotonic() if until is None else until
        self.breaches[what] = Breach(what, self.under_way(until - 1.0 if since is None else since, until))

    def counts(self) -> Counter[str]:
        """Acts by front."""
        return Counter(entry.act.partition(".")[0] for entry in self.entries)


class Scene(Struct, frozen=True):
    """What a front attacks."""

    stack: LocalStack
    report: Callable[[str], None]
    """Takes a breach, in words that are equal for equal faults."""
    closed: bool
    """Whether the pool serves only the models that it names."""


class Front:
    """One way in."""

    name: str
    period = 0.4
    """Seconds between two acts."""
    at_once = 3
    patience = 12.0
    """Seconds after which an act ends."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.stack = scene.stack

    def tables(self) -> Mapping[str, Act]:
        return {}

    def acts(self) -> Mapping[str, Act]:
        methods = (name for name in dir(self) if name.startswith("act_"))
        return {**self.tables(), **{name[4:].replace("_", "-"): getattr(self, name) for name in methods}}

    @asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        """What the acts need."""
        yield


class Attack:
    """Runs one front in rounds. In each round, every act has one turn; the seed decides the order."""

    def __init__(self, front: Front, seed: int, journal: Journal, only: str = "") -> None:
        self._front = front
        self._seed = f"{seed} {front.name}"
        self._journal = journal
        self.acts = {
            name: act for name, act in front.acts().items() if only in (front.name, f"{front.name}.{name}", "")
        }
        self._slots = asyncio.Semaphore(front.at_once)

    async def run(self, stop: asyncio.Event) -> None:
        """Act until `stop` is set, and wait for the last acts."""
        choose, number = Random(self._seed), 0
        async with self._front.ready(), asyncio.TaskGroup() as group:
            while self.acts and not stop.is_set():
                for name in choose.sample(sorted(self.acts), len(self.acts)):
                    await self._slots.acquire()
                    if stop.is_set():
                        return
                    number += 1
                    group.create_task(self._act(name, Random(f"{self._seed} {number}")))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._front.period):
                            await stop.wait()

    async def _act(self, name: str, random: Random) -> None:
        entry = Entry(f"{self._front.name}.{name}", time.monotonic())
        self._journal.entries.append(entry)
        try:
            async with asyncio.timeout(self._front.patience):
                await self.acts[name](random)
        except REFUSALS:
            pass
        except Exception as error:  # noqa: BLE001 - the top of a task: the attack goes on, and reports it
            self._journal.breach(f"the attacker itself failed in {entry.act}: {error!r}")
        finally:
            entry.ended = time.monotonic()
            self._slots.release()
