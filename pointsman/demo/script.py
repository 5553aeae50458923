"""What happens to the system while it serves: a picker is restarted, a collector and a model server are killed.

The steps follow one another, each ends when the system is whole again, and each says in the journal what was done and
what came of it. Rounds take other victims each time.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from pointsman.demo.journal import Journal
from pointsman.demo.snapshot import assigned
from pointsman.demo.tally import Kill, Tally
from pointsman.demo.watch import Conditions, Watch
from pointsman.demo.words import count
from pointsman.local.process import Process
from pointsman.local.services import Picker, ServiceProcess
from pointsman.local.stack import LocalStack

ROUND = 30.0
"""Seconds for a round when there is no end to keep to."""
PAUSE = 30.0
"""Seconds between two rounds."""
PATIENCE = 20.0
"""Seconds for the system to be whole again; on an idle machine it takes two."""
STARTS = (0.1, 0.38, 0.62)
"""When the steps of a round begin, in shares of its length, if the step before is over."""
KILLED, STARTING, DRAINING = "killed", "starting", "draining"
FRESH = 0.5
"""Seconds that a metric is old at most while its server is scraped."""
_LOOK = 0.05

T = TypeVar("T")


class Pace(Struct, frozen=True):
    """How the script is spread over the demo."""

    round: float = ROUND
    """Seconds of one round."""
    rounds: int | None = None
    """None: one after the other until the demo ends."""

    @classmethod
    def of(cls, seconds: float) -> "Pace":
        """One round in as many seconds as there are, and further ones if they fit; 0 seconds are without end."""
        if not seconds:
            return cls()
        return cls(min(seconds, ROUND), 1 + int(max(seconds - ROUND, 0) // (ROUND + PAUSE)))


class Script:
    """Runs the steps on a stack."""

    def __init__(
        self,
        stack: LocalStack,
        watch: Watch,
        conditions: Conditions,
        tally: Tally,
        journal: Journal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stack = stack
        self._watch = watch
        self._conditions = conditions
        self._tally = tally
        self._journal = journal
        self._clock = clock
        self.rounds = 0
        """Rounds that are over."""
        self._last_server = ""

    async def run(self, pace: Pace) -> None:
        """The rounds of the pace. Raises ProcessError when something doesn't start again."""
        steps: tuple[Callable[[int], Awaitable[None]], ...] = (
            self._restart_picker,
            self._kill_collector,
            self._kill_server,
        )
        while pace.rounds is None or self.rounds < pace.rounds:
            if self.rounds:
                await asyncio.sleep(PAUSE)
            began = self._clock()
            for start, step in zip(STARTS, steps, strict=True):
                await asyncio.sleep(max(began + start * pace.round - self._clock(), 0))
                await step(self.rounds)
            self.rounds += 1
            if pace.rounds is None:
                self._journal.seen(f"Everything is up. In {PAUSE:g} s it begins again, with others; Ctrl-C ends it.")

    # ---- a picker leaves and comes back

    async def _restart_picker(self, number: int) -> None:
        picker: Picker = self._stack.pickers[number % len(self._stack.pickers)]
        others = [one for one in self._stack.pickers if one is not picker]
        failed, began = self._tally.failed, self._clock()
        self._journal.step(
            f"{picker.name} restarted",
            f"SIGTERM to {picker.name}: it tells Envoy to send no more requests, finishes those it has, and goes.",
        )
        self._conditions.set(picker, DRAINING)
        code = await picker.stop()
        text = f"{picker.name} has gone after {self._since(began)}, exit code {code}; "
        text += f"{_names(others)} decides alone. {self._failures(failed)}"
        (self._journal.wrong if code else self._journal.seen)(text)
        again = self._clock()
        await self._start(picker)
        if await self._until(lambda: self._knows_peers(picker, len(others))) is not None:
            self._journal.seen(
                f"{picker.name}, started again, is back {self._since(again)} later with the whole view, and picks. "
                f"{self._failures(failed)}"
            )
        else:
            self._journal.wrong(f"{picker.name} is back, but in {PATIENCE:g} s it has not heard of its peers.")

    async def _knows_peers(self, picker: Picker, peers: int) -> bool:
        state = await self._watch.state(picker)
        return state is not None and len(state["peers"]) >= peers

    # ---- a collector dies

    async def _kill_collector(self, number: int) -> None:
        shares = {one.name: await self._share(one) for one in self._stack.collectors}
        busy = [one for one in self._stack.collectors if shares[one.name]] or list(self._stack.collectors)
        busy.sort(key=lambda one: len(shares[one.name]), reverse=True)
        victim = busy[number % len(busy)]
        [heir, *_] = [one for one in self._stack.collectors if one is not victim]
        share, failed, began = shares[victim.name], self._tally.failed, self._clock()
        self._journal.step(
            f"{victim.name} killed",
            f"SIGKILL to {victim.name}, which scrapes {_list(share)}: their metrics age until {heir.name} notices.",
        )
        self._conditions.set(victim, KILLED)
        await victim.kill()
        oldest = 0.0

        async def taken_over() -> bool:
            nonlocal oldest
            age = await self._oldest_age(share)
            oldest = max(oldest, age if math.isfinite(age) else 0.0)
            return share <= await self._share(heir) and age < FRESH

        took = await self._until(taken_over)
        if took is None:
            self._journal.wrong(f"In {PATIENCE:g} s {heir.name} has not taken over {_list(share)}.")
        else:
            self._journal.seen(
                f"{heir.name} has taken over after {took:.1f} s; no metric was older than {oldest:.1f} s. "
                f"{self._failures(failed)}"
            )
        await self._start(victim)
        back = await self._until(lambda: self._has_share(victim, share))
        if back is None:
            self._journal.wrong(f"{victim.name} is back, but in {PATIENCE:g} s it has not got its endpoints again.")
        else:
            self._journal.seen(
                f"{victim.name} is back after {self._since(began)}, with its endpoints. {self._failures(failed)}"
            )

    async def _share(self, collector: ServiceProcess) -> frozenset[str]:
        return frozenset(assigned(await self._watch.state(collector)))

    async def _has_share(self, collector: ServiceProcess, share: frozenset[str]) -> bool:
        return share <= await self._share(collector)

    async def _oldest_age(self, names: frozenset[str]) -> float:
        """Of these servers' metrics, as the pickers see them now; infinite when one isn't known."""
        rows = await self._watch.endpoints()
        ages = [one.age for one in rows if one.name in names]
        return max((math.inf if age is None else age for age in ages), default=0.0)

    # ---- a model server dies

    async def _kill_server(self, _: int) -> None:
        before = await self._watch.look()
        busy = {one.name: one.in_flight for one in before.endpoints if one.name != self._last_server}
        self._last_server = name = max(busy, key=lambda one: busy[one])
        [server] = [one for one in self._stack.simulators if one.name == name]
        failed, began = self._tally.failed, self._clock()
        self._journal.step(
            f"{name} killed",
            f"SIGKILL to {name}, with {count(busy[name], 'request')} in it. Pickers name three servers for each "
            "request: the next one takes what it has not begun to answer.",
        )
        kill = self._tally.killed(name, self._clock())
        self._conditions.set(server, KILLED)
        await server.kill()
        await asyncio.sleep(1.5)
        after = await self._watch.look()
        self._journal.seen(
            f"{count(after.server_retries - before.server_retries, 'request')} went to another server instead. "
            f"{_cut(kill)} {self._failures(failed)}"
        )
        await self._start(server)
        if await self._until(lambda: self._is_fresh(name)) is None:
            self._journal.wrong(f"{name} is back, but in {PATIENCE:g} s no picker has got its metrics.")
        else:
            self._journal.seen(
                f"{name} is back after {self._since(began)}, its cache empty, and the pickers know its metrics. "
                f"{self._failures(failed)}"
            )

    async def _is_fresh(self, server: str) -> bool:
        return await self._oldest_age(frozenset({server})) < FRESH

    # ---- what the steps share

    async def _start(self, process: Process) -> None:
        self._conditions.set(process, STARTING)
        await process.start()
        self._conditions.clear(process)

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> float | None:
        """Seconds until it holds; None when it takes longer than our patience."""
        began = self._clock()
        while not await condition():
            if self._clock() - began > PATIENCE:
                return None
            await asyncio.sleep(_LOOK)
        return self._clock() - began

    def _since(self, began: float) -> str:
        return f"{self._clock() - began:.1f} s"

    def _failures(self, before: int) -> str:
        failed = self._tally.failed - before
        return f"{failed} requests failed!" if failed else "No request failed."

    def __repr__(self) -> str:
        return f"<Script {self.rounds} rounds, {self._journal!r}>"


def _cut(kill: Kill) -> str:
    if not kill.cut:
        return "No answer had begun."
    unseen = f", {kill.unseen} of them while Envoy still held the head" if kill.unseen else ""
    broke = f"{count(kill.cut, 'answer')} that had begun broke off{unseen}"
    return f"{broke}; nobody can save those, the client asked again."


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _names(processes: list[Picker]) -> str:
    return " and ".join(one.name for one in processes)
