"""What the fronts have in common: acts in a seeded order, paced, a few at a time, each of which ends."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import TypeAlias

from msgspec import Struct

from pointsman.local.stack import LocalStack
from tests.attack.journal import Journal

Act: TypeAlias = Callable[[Random], Awaitable[None]]
"""One attack. Whatever it does is bounded, comes from this generator alone, and stays on this machine."""
Report: TypeAlias = Callable[[str], None]
"""Told of what must never happen, in words that are equal for equal faults."""

UNANSWERED = (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError)
"""How an attacker finds itself turned away."""


class Scene(Struct, frozen=True):
    """What a front attacks."""

    stack: LocalStack
    report: Report
    closed: bool
    """Whether the pool serves only the models that it names."""


class Front:
    """One way in. A context: what it needs is there within."""

    name: str
    period = 0.4
    """Seconds between two acts."""
    at_once = 3
    patience = 12.0
    """Seconds after which an act ends."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.stack = scene.stack

    def acts(self) -> Mapping[str, Act]:
        """All that it does, by name."""
        raise NotImplementedError

    @asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        """What the acts need."""
        yield


class Attack:
    """Runs one front. The acts come in rounds; in each every act has its turn, and the seed says in which order."""

    def __init__(self, front: Front, seed: int, journal: Journal, only: str = "") -> None:
        self._front = front
        self._seed = f"{seed} {front.name}"
        self._journal = journal
        self.acts: Mapping[str, Act] = {
            name: act for name, act in front.acts().items() if only in (front.name, f"{front.name}.{name}", "")
        }
        self._gate = asyncio.Semaphore(front.at_once)

    async def run(self, stop: asyncio.Event) -> None:
        """Act until `stop` is set, and until what has begun has ended."""
        choose, number = Random(self._seed), 0
        async with self._front.ready(), asyncio.TaskGroup() as group:
            while self.acts and not stop.is_set():
                for name in choose.sample(sorted(self.acts), len(self.acts)):
                    await self._gate.acquire()
                    if stop.is_set():
                        return
                    number += 1
                    group.create_task(self._one(name, Random(f"{self._seed} {number}")))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._front.period):
                            await stop.wait()

    async def _one(self, name: str, random: Random) -> None:
        entry = self._journal.begin(f"{self._front.name}.{name}")
        try:
            async with asyncio.timeout(self._front.patience):
                await self.acts[name](random)
        except UNANSWERED:
            pass
        except Exception as error:  # noqa: BLE001 - the top of a task: the attack goes on, and says so
            self._journal.breach(f"the attacker itself failed in {entry.act}: {error!r}")
        finally:
            entry.ended = time.monotonic()
            self._gate.release()
