"""The demo: the stack of `pointsman up` with simulated model servers, a load, a script of events, and a summary."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from pointsman.demo.access_log import AccessLog
from pointsman.demo.client import Client
from pointsman.demo.journal import Entry, Journal, Tone
from pointsman.demo.monitor import Monitor
from pointsman.demo.plan import engine_label, stack_plan
from pointsman.demo.report import is_good, summary, try_it, versions
from pointsman.demo.script import Pace, Script
from pointsman.demo.settings import DemoSettings
from pointsman.demo.tally import Tally
from pointsman.demo.view import Picture, render, status_line
from pointsman.demo.workload import Workload
from pointsman.local.ports import ENVOY_PORT, PortTaken
from pointsman.local.process import Process
from pointsman.local.services import console_token
from pointsman.local.session import BAD, GOOD, INTERRUPTED, Session, SessionError, first_of
from pointsman.local.stack import LocalStack
from pointsman.top.format import clock as as_clock
from pointsman.top.format import count
from pointsman.top.screen import Screen
from shared.bus.connection import Bus
from shared.bus.subjects import Subjects, pool_token
from shared.pool_view.reader import PoolReader
from shared.tasks import cancel

PICTURE_INTERVAL = 0.5
"""Seconds between two pictures."""
WARM_UP_TIMEOUT = 60.0
"""Seconds for the whole pool to be known."""
SETTLE_TIMEOUT = 20.0
"""Seconds for the pickers to agree at the end that nothing is in flight."""
_MARKS: dict[Tone, str] = {"step": "▶", "seen": " ", "bad": "!"}
_STYLES: dict[Tone, str] = {"step": "bold cyan", "seen": "", "bad": "bold red"}


class Demo(Session):
    """One run of the demo, with its files and logs in `directory`."""

    def __init__(
        self, settings: DemoSettings, screen: Screen, directory: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(screen, directory, clock)
        self._settings = settings
        self._tally = Tally()
        self._round_robin = Tally() if settings.compare else None

    async def run(self) -> int:
        self.screen.line(await versions())
        return await super().run()

    def make(self) -> LocalStack:
        """The stack on the requested port; by default on the usual one, or else on any."""
        settings = self._settings
        token = console_token() if settings.allow_actions else ""
        plan = partial(stack_plan, compare=settings.compare, pd=settings.pd, token=token, tracing=settings.tracing)
        if port := settings.port:
            try:
                return LocalStack(plan(port), self.directory)
            except PermissionError as error:
                raise SessionError(f"--port: {port} needs privileges ({error}); use 1024 or higher") from error
        try:
            return LocalStack(plan(ENVOY_PORT), self.directory)
        except PortTaken as error:
            if error.port != ENVOY_PORT:
                raise
            stack = LocalStack(plan(0), self.directory)
            self.screen.line(f"Envoy listens on another port than usual: {error}.")
            return stack

    def role(self, stack: LocalStack, process: Process) -> tuple[str, str]:
        for plan, server in zip(stack.plan.simulators, stack.simulators, strict=True):
            if process is server:
                return server.url, f"model server, {engine_label(plan)}"
        return super().role(stack, process)

    async def meanwhile(self, stack: LocalStack) -> int:
        plan = stack.plan
        token, name = pool_token(plan.pool_namespace, plan.pool_name), f"{plan.pool_namespace}/{plan.pool_name}"
        async with Bus(stack.nats.url, name="pointsman-demo") as bus, PoolReader(bus, Subjects(), token) as reader:
            return await self._show(stack, Monitor(stack, reader, name))

    async def _show(self, stack: LocalStack, monitor: Monitor) -> int:
        settings, tally = self._settings, self._tally
        await self._warm_up(stack, monitor)
        if self.stopping.is_set():
            self.screen.line("Interrupted before the first request.")
            return INTERRUPTED
        for line in ["", *try_it(stack), ""]:
            self.screen.line(line)
        journal = Journal(self.clock, self._entry)
        journal.seen(f"Everything is up. {settings.rate:g} requests/s through Envoy, seed {settings.seed}.")
        script = Script(stack, monitor, tally, journal, self.clock)
        async with AsyncExitStack() as clients:
            own = Client(
                stack.url, self._workload(), tally, responding_server=_responding_server(stack), clock=self.clock
            )
            running = [await clients.enter_async_context(own)]
            if self._round_robin is not None:
                urls = [server.url for server in stack.simulators if server not in stack.listed]
                other = Client(urls, self._workload(), self._round_robin, clock=self.clock)
                running.append(await clients.enter_async_context(other))
                journal.seen("The same requests go round robin to servers of their own, for comparison.")
            await self._load(stack.url, running, monitor, script, journal)
        elapsed = journal.elapsed
        await self._settle(monitor, journal)
        self.screen.close()
        decisions = {picker.name: await monitor.read(picker) for picker in stack.pickers}
        retries = await monitor.retries()
        for line in ["", *summary(elapsed, tally, retries, decisions, journal, self._round_robin)]:
            self.screen.line(line)
        return GOOD if is_good(tally, journal) else BAD

    def _workload(self) -> Workload:
        return Workload(self._settings.rate, self._settings.seed)

    def _entry(self, entry: Entry) -> None:
        style = _STYLES[entry.tone]
        self.screen.columns((as_clock(entry.at), "dim"), (_MARKS[entry.tone], style), (entry.text, style))

    async def _warm_up(self, stack: LocalStack, monitor: Monitor) -> None:
        """Wait until the whole pool is known. Raises SessionError."""
        deadline = self.clock() + WARM_UP_TIMEOUT
        while (missing := self._missing(stack, monitor)) and not self.stopping.is_set():
            if self.clock() > deadline:
                raise SessionError(f"after {WARM_UP_TIMEOUT:g} s {missing}; logs are in {self.directory}")
            await asyncio.sleep(0.1)

    def _missing(self, stack: LocalStack, monitor: Monitor) -> str:
        system = monitor.look()
        known = {row.name for row in system.endpoints if row.age is not None}
        if unknown := [server.name for server in stack.listed if server.name not in known]:
            return f"there are no metrics of {', '.join(unknown)}"
        members = {row.id for row in system.members}
        if silent := [each.name for each in [*stack.pickers, *stack.collectors] if each.name not in members]:
            return f"there is no sign of {', '.join(silent)}"
        return ""

    async def _load(self, url: str, clients: list[Client], monitor: Monitor, script: Script, journal: Journal) -> None:
        """Send requests until the script and the time are over or a user interrupts; then wait for the last ones.

        Raises ProcessError if a process ends by itself.
        """
        watching = asyncio.create_task(self._watch(monitor, journal, url))
        sending = [client.run() for client in clients]
        try:
            await self.until_stopped(_the_end_of(watching), self._play(script, journal), *sending)
            journal.seen(f"The load ends; waiting for the last {count(self._tally.open, 'request')}.")
            await first_of(_finish(clients), _the_end_of(watching))
        finally:
            await cancel(watching)

    async def _watch(self, monitor: Monitor, journal: Journal, url: str) -> None:
        reported: set[str] = set()
        while True:
            system = monitor.look()
            for reason in self._tally.reasons.keys() - reported:
                reported.add(reason)
                journal.failure(f"A request failed: {reason}")
            now, elapsed, other = self.clock(), journal.elapsed, self._round_robin
            picture = Picture(
                elapsed=elapsed,
                seconds=self._settings.seconds,
                url=url,
                load=self._tally.figures(now, elapsed),
                round_robin=None if other is None else other.figures(now, elapsed),
                system=system,
            )
            self.screen.picture(partial(render, picture), partial(status_line, picture))
            await asyncio.sleep(PICTURE_INTERVAL)

    async def _play(self, script: Script, journal: Journal) -> None:
        """The script, and the rest of the time. A comparison has no events, so that both pools are alike."""
        if not self._settings.compare:
            await script.run(Pace.of(self._settings.seconds))
        elif not self._settings.seconds:
            await self.stopping.wait()
        await asyncio.sleep(max(self._settings.seconds - journal.elapsed, 0))

    async def _settle(self, monitor: Monitor, journal: Journal) -> None:
        """Check that the pickers count nothing in flight any more."""
        deadline = self.clock() + SETTLE_TIMEOUT
        while left := sum(row.in_flight for row in monitor.look().endpoints):
            if self.clock() > deadline:
                journal.problem(f"All responses are complete, but pickers count {count(left, 'request')} in flight.")
                return
            await asyncio.sleep(0.1)
        journal.seen("All responses are complete, and the pickers agree that nothing is in flight.")


async def _finish(clients: list[Client]) -> None:
    for client in clients:
        await client.finish()


async def _the_end_of(task: asyncio.Task[None]) -> None:
    """Ends when the task does, without cancelling it."""
    await asyncio.wait({task})
    task.result()


def _responding_server(stack: LocalStack) -> Callable[[str], Awaitable[str]]:
    """A function that returns the name of the server that had begun to respond to a request, according to Envoy."""
    assert stack.envoy is not None, "the demo's plan has an Envoy"
    log = AccessLog(stack.envoy.log)
    names = {server.authority: server.name for server in stack.simulators}

    async def responding_server(request_id: str) -> str:
        return names.get(await log.responding_server(request_id), "")

    return responding_server
