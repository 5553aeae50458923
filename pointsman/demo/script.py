"""The events of the demo: a picker is restarted, a collector and a model server are killed. In a pool of prefill and
decode servers, all prefill servers are killed instead of a collector.

Each step ends when the system has recovered, and reports in the journal what was done and what happened. Each round
has other victims.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct

from pointsman.demo.journal import Journal
from pointsman.demo.monitor import Monitor
from pointsman.demo.plan import PREFILL
from pointsman.demo.tally import Kill, Tally
from pointsman.local.process import Process
from pointsman.local.services import Picker, ServiceProcess
from pointsman.local.stack import LocalStack
from pointsman.top.format import count
from shared.model import ROLE

ROUND = 30.0
"""Seconds of a round in a demo without end."""
PAUSE = 30.0
"""Seconds between two rounds."""
RECOVERY_TIMEOUT = 60.0
"""Seconds for the system to recover; on an idle machine it takes two."""
STARTS = (0.1, 0.38, 0.62)
"""When the steps of a round begin, as shares of its length, unless the previous step takes longer."""
FALLBACKS = 3
"""Servers that the configuration has pickers name."""
FRESH = 0.5
"""Greatest age in seconds of a metric whose server is scraped."""
_INTERVAL = 0.05


class Pace(Struct, frozen=True):
    """How the rounds are spread over the demo."""

    round: float = ROUND
    """Seconds of one round."""
    rounds: int | None = None
    """None: one after the other until the demo ends."""

    @classmethod
    def of(cls, seconds: float) -> "Pace":
        """One round in the given time, and further ones if they fit; 0 seconds: without end."""
        if not seconds:
            return cls()
        return cls(min(seconds, ROUND), 1 + int(max(seconds - ROUND, 0) // (ROUND + PAUSE)))


class Script:
    """Runs the steps on a stack."""

    def __init__(
        self,
        stack: LocalStack,
        monitor: Monitor,
        tally: Tally,
        journal: Journal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stack = stack
        self._monitor = monitor
        self._tally = tally
        self._journal = journal
        self._clock = clock
        self.rounds = 0
        """Completed rounds."""
        self._last_server = ""
        self._prefills = [
            server
            for plan, server in zip(stack.plan.simulators, stack.simulators, strict=True)
            if plan.labels.get(ROLE) == PREFILL
        ]

    async def run(self, pace: Pace) -> None:
        """Raises ProcessError if a process doesn't start again."""
        second = self._kill_prefills if self._prefills else self._kill_collector
        steps = (self._restart_picker, second, self._kill_server)
        while pace.rounds is None or self.rounds < pace.rounds:
            if self.rounds:
                await asyncio.sleep(PAUSE)
            began = self._clock()
            for start, step in zip(STARTS, steps, strict=True):
                await asyncio.sleep(max(began + start * pace.round - self._clock(), 0))
                await step()
            self.rounds += 1
            if pace.rounds is None:
                self._journal.seen(f"Everything is up. The next round begins in {PAUSE:g} s; Ctrl-C ends the demo.")

    async def _restart_picker(self) -> None:
        picker: Picker = self._stack.pickers[self.rounds % len(self._stack.pickers)]
        others = [other.name for other in self._stack.pickers if other is not picker]
        failed, began = self._tally.failed, self._clock()
        self._journal.step(
            f"{picker.name} restarted",
            f"SIGTERM to {picker.name}: it fails Envoy's health checks, finishes its requests and exits.",
        )
        await self._monitor.read(picker)
        self._monitor.stopped(picker)
        code = await picker.stop()
        text = f"{picker.name} stopped after {self._clock() - began:.1f} s with exit code {code}; "
        text += f"{' and '.join(others)} decides alone. {self._failures(failed)}"
        (self._journal.problem if code else self._journal.seen)(text)
        began = self._clock()
        await self._start(picker)

        async def knows_peers() -> bool:
            state = await self._monitor.state(picker)
            return state is not None and len(state["peers"]) >= len(others)

        if await self._until(knows_peers) is None:
            self._journal.problem(
                f"{picker.name} is back, but in {RECOVERY_TIMEOUT:g} s it has not heard of its peers."
            )
        else:
            self._journal.seen(
                f"{picker.name} is back {self._clock() - began:.1f} s after its start, with the whole state. "
                f"{self._failures(failed)}"
            )

    async def _kill_collector(self) -> None:
        shares = {collector.name: self._share(collector) for collector in self._stack.collectors}
        busy = [collector for collector in self._stack.collectors if shares[collector.name]] or list(
            self._stack.collectors
        )
        busy.sort(key=lambda collector: len(shares[collector.name]), reverse=True)
        victim = busy[self.rounds % len(busy)]
        heir = next(collector for collector in self._stack.collectors if collector is not victim)
        share, failed, began = shares[victim.name], self._tally.failed, self._clock()
        servers = ", ".join(sorted(share)) or "nothing"
        self._journal.step(
            f"{victim.name} killed",
            f"SIGKILL to {victim.name}, which scrapes {servers}: their metrics age until {heir.name} takes over.",
        )
        self._monitor.stopped(victim)
        await victim.kill()
        oldest = 0.0

        async def taken_over() -> bool:
            nonlocal oldest
            age = self._oldest_age(share)
            oldest = max(oldest, age if math.isfinite(age) else 0.0)
            return share <= self._share(heir) and age < FRESH

        took = await self._until(taken_over)
        if took is None:
            self._journal.problem(f"In {RECOVERY_TIMEOUT:g} s {heir.name} has not taken over {servers}.")
        else:
            self._journal.seen(
                f"{heir.name} has taken over after {took:.1f} s; no metric was older than {oldest:.1f} s. "
                f"{self._failures(failed)}"
            )
        await self._start(victim)

        async def has_share() -> bool:
            return share <= self._share(victim)

        if await self._until(has_share) is None:
            self._journal.problem(f"{victim.name} is back, but in {RECOVERY_TIMEOUT:g} s it has no endpoints.")
        else:
            self._journal.seen(
                f"{victim.name} is back after {self._clock() - began:.1f} s and scrapes its endpoints again. "
                f"{self._failures(failed)}"
            )

    async def _kill_prefills(self) -> None:
        """One after the other: each costs the requests from which the pickers learn that it is gone."""
        names, failed = [server.name for server in self._prefills], self._tally.failed
        before = await self._monitor.skipped(PREFILL)
        kills = []
        for server in self._prefills:
            self._journal.step(
                f"{server.name} killed",
                f"SIGKILL to {server.name}: decode servers answer with 502 until the pickers know.",
            )
            kills.append(self._tally.add_kill(server.name, self._clock(), prefills=True))
            self._monitor.stopped(server)
            await server.kill()
            await asyncio.sleep(1.5)

        async def does_without() -> bool:
            return await self._monitor.skipped(PREFILL) > before

        if await self._until(does_without) is None:
            self._journal.problem(f"In {RECOVERY_TIMEOUT:g} s no request was served by a decode server alone.")
        else:
            lost = sum(kill.interrupted for kill in kills)
            self._journal.seen(
                f"Without {' and '.join(names)}, decode servers compute the prompts, and the pickers say so. "
                f"{count(lost, 'request')} met a dead prefill server and {'was' if lost == 1 else 'were'} sent again. "
                f"{self._failures(failed)}"
            )
        for server, kill in zip(self._prefills, kills, strict=True):
            await self._start(server)

            async def is_scraped(name: str = server.name) -> bool:
                return self._oldest_age(frozenset({name})) < FRESH

            if await self._until(is_scraped) is None:
                self._journal.problem(
                    f"{server.name} is back, but in {RECOVERY_TIMEOUT:g} s no picker has its metrics."
                )
            kill.back = self._clock()
        self._journal.seen(f"{' and '.join(names)} are back and compute prompts again. {self._failures(failed)}")

    def _share(self, collector: ServiceProcess) -> frozenset[str]:
        return frozenset(name for name, row in self._monitor.rows().items() if row.collector == collector.name)

    def _oldest_age(self, servers: frozenset[str]) -> float:
        """The greatest age of their metrics; infinite if one is unknown."""
        ages = [row.age for name, row in self._monitor.rows().items() if name in servers]
        return max((math.inf if age is None else age for age in ages), default=0.0)

    async def _kill_server(self) -> None:
        before = await self._monitor.retries()
        spared = {self._last_server, *(server.name for server in self._prefills)}
        rows = self._monitor.rows()
        busy = {name: row.in_flight for name, row in rows.items() if name not in spared}
        named = min(FALLBACKS, len(rows) - len(self._prefills))
        self._last_server = name = max(busy, key=lambda server: busy[server])
        server = next(server for server in self._stack.simulators if server.name == name)
        failed, began = self._tally.failed, self._clock()
        self._journal.step(
            f"{name} killed",
            f"SIGKILL to {name}, with {count(busy[name], 'request')} in flight. Pickers name {named} servers for each "
            "request: Envoy sends those without a response to the next one.",
        )
        kill = self._tally.add_kill(name, began)
        self._monitor.stopped(server)
        await server.kill()
        await asyncio.sleep(1.5)
        retried = count((await self._monitor.retries())["servers"] - before["servers"], "request")
        self._journal.seen(f"Envoy retried {retried} at another server. {_interrupted(kill)} {self._failures(failed)}")
        await self._start(server)

        async def is_scraped() -> bool:
            return self._oldest_age(frozenset({name})) < FRESH

        if await self._until(is_scraped) is None:
            self._journal.problem(f"{name} is back, but in {RECOVERY_TIMEOUT:g} s no picker has its metrics.")
        else:
            self._journal.seen(
                f"{name} is back after {self._clock() - began:.1f} s with an empty cache, and the pickers know its "
                f"metrics. {self._failures(failed)}"
            )

    async def _start(self, process: Process) -> None:
        await process.start()
        self._monitor.started(process)

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> float | None:
        """Seconds until the condition holds; None after the time-out."""
        began = self._clock()
        while not await condition():
            if self._clock() - began > RECOVERY_TIMEOUT:
                return None
            await asyncio.sleep(_INTERVAL)
        return self._clock() - began

    def _failures(self, before: int) -> str:
        failed = self._tally.failed - before
        return f"{count(failed, 'request')} failed!" if failed else "No request failed."

    def __repr__(self) -> str:
        return f"<Script {self.rounds} rounds, {self._journal!r}>"


def _interrupted(kill: Kill) -> str:
    if not kill.interrupted:
        return "No response was in progress."
    unseen = f", {kill.unseen} of them before Envoy had passed on the headers" if kill.unseen else ""
    return f"{count(kill.interrupted, 'response')} in progress broke off{unseen}; the client sent those requests again."
