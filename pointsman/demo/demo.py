"""The demo from start to end: start the stack, load it, run the script of events, sum up, stop the stack.

However it ends, nothing is left running: the stack stops its processes in order, and the kernel kills them if this
process is killed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from pointsman.demo.access_log import AccessLog
from pointsman.demo.client import Client
from pointsman.demo.format import count, duration
from pointsman.demo.journal import Journal
from pointsman.demo.monitor import Monitor
from pointsman.demo.plan import engine_label, stack_plan
from pointsman.demo.report import is_good, summary, try_it, versions
from pointsman.demo.screen import Screen
from pointsman.demo.script import Pace, Script
from pointsman.demo.settings import DEFAULT_PORT, DemoSettings
from pointsman.demo.tally import Tally
from pointsman.demo.view import Picture
from pointsman.demo.workload import Workload
from pointsman.local.ports import PortTaken
from pointsman.local.process import Process
from pointsman.local.stack import LocalStack

GOOD, BAD, INTERRUPTED = 0, 1, 130
"""Exit codes; the last one is for an interrupt before the first request."""
PICTURE_INTERVAL = 0.5
"""Seconds between two pictures."""
WARM_UP_TIMEOUT = 20.0
"""Seconds for the pickers to know the whole pool."""
SETTLE_TIMEOUT = 5.0
"""Seconds for the pickers to agree at the end that nothing is in flight."""


class DemoError(Exception):
    """The demo can't continue; the message says why."""


class Demo:
    """One run of the demo, with its files and logs in `directory`."""

    def __init__(
        self, settings: DemoSettings, screen: Screen, directory: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._screen = screen
        self.directory = directory
        self._clock = clock
        self._stopping = asyncio.Event()
        self._stack: LocalStack | None = None
        self._tally = Tally()

    def stop(self) -> None:
        """End early, as soon as the open requests have an outcome."""
        self._stopping.set()

    def kill(self) -> None:
        """End every process at once."""
        if self._stack is not None:
            self._stack.close()

    async def run(self) -> int:
        """The exit code. Raises PortTaken, BinaryMissing, ConfigurationError, ProcessError or DemoError."""
        self._screen.line(await versions())
        self._screen.line(f"Files and logs of this run: {self.directory}")
        self._stack = stack = self._build()
        if not await self._start(stack):
            self._screen.line("Interrupted during the start. Everything is stopped again.")
            return INTERRUPTED
        try:
            return await self._show(stack)
        finally:
            began = self._clock()
            try:
                self._screen.close()
                self._screen.line("Stopping everything …")
            finally:  # also after a broken pipe
                await stack.stop()
            self._screen.line(f"Stopped after {duration(self._clock() - began)}; nothing is left running.")

    def _build(self) -> LocalStack:
        """The stack on the requested port; by default on the usual one, or else on any."""
        if port := self._settings.port:
            try:
                return LocalStack(stack_plan(port, pd=self._settings.pd), self.directory)
            except PermissionError as error:
                raise DemoError(f"--port: {port} needs privileges ({error}); use 1024 or higher") from error
        try:
            return LocalStack(stack_plan(DEFAULT_PORT, pd=self._settings.pd), self.directory)
        except PortTaken as error:
            if error.port != DEFAULT_PORT:
                raise
            stack = LocalStack(stack_plan(0, pd=self._settings.pd), self.directory)
            self._screen.line(f"Envoy listens on another port than usual: {error}.")
            return stack

    async def _start(self, stack: LocalStack) -> bool:
        """Start everything; False, with nothing left running, after an interrupt."""
        began = self._clock()

        def on_ready(process: Process) -> None:
            url, role = _role(process, stack)
            self._screen.line(f"  {process.name:<11}  {url:<22}  {role:<29}  {duration(self._clock() - began):>6}")

        self._screen.line("Starting, and waiting until each is ready:")
        starting = asyncio.create_task(stack.start(on_ready=on_ready))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.wait({starting})
                if starting.cancelled():
                    return False
            starting.result()
            return True
        finally:
            stopping.cancel()
            if not starting.done():  # this task was cancelled
                starting.cancel()
                await asyncio.wait({starting})

    async def _warm_up(self, monitor: Monitor) -> None:
        """Wait until every picker knows every server's metrics and its peers. Raises DemoError."""
        deadline = self._clock() + WARM_UP_TIMEOUT
        while (missing := self._missing(monitor)) and not self._stopping.is_set():
            if self._clock() > deadline:
                raise DemoError(f"after {WARM_UP_TIMEOUT:g} s {missing}; logs are in {self.directory}")
            await asyncio.sleep(0.1)
            await monitor.look()

    def _missing(self, monitor: Monitor) -> str:
        system = monitor.latest
        if unknown := [row.name for row in system.endpoints if row.age is None]:
            return f"the pickers have no metrics of {', '.join(unknown)}"
        if lonely := [row.name for row in system.pickers if row.peers < len(system.pickers) - 1]:
            return f"{', '.join(lonely)} has not heard of its peers"
        return "" if system.endpoints else "no picker responds"

    async def _show(self, stack: LocalStack) -> int:
        settings, tally = self._settings, self._tally
        async with Monitor(stack, self._clock) as monitor:
            await self._warm_up(monitor)
            if self._stopping.is_set():
                self._screen.line("Interrupted before the first request.")
                return INTERRUPTED
            for line in ["", *try_it(stack), ""]:
                self._screen.line(line)
            journal = Journal(self._clock, self._screen.entry)
            journal.seen(f"Everything is up. {settings.rate:g} requests/s through Envoy, seed {settings.seed}.")
            script = Script(stack, monitor, tally, journal, self._clock)
            workload, begun_by = Workload(settings.rate, settings.seed), _begun_by(stack)
            async with Client(stack.url, workload, tally, begun_by=begun_by, clock=self._clock) as client:
                await self._load(stack.url, client, monitor, script, journal)
            elapsed = journal.elapsed
            await self._settle(monitor, journal)
            self._screen.close()
            decisions = {picker.name: monitor.decision_seconds(picker.name) for picker in stack.pickers}
            for line in ["", *summary(elapsed, tally, monitor.latest, decisions, journal)]:
                self._screen.line(line)
        return GOOD if is_good(tally, journal) else BAD

    async def _load(self, url: str, client: Client, monitor: Monitor, script: Script, journal: Journal) -> None:
        """Send requests until the script and the time are over or a user interrupts; then wait for the last ones.

        Raises ProcessError if a process ends by itself.
        """
        sending = asyncio.create_task(client.run())
        watching = asyncio.create_task(self._watch(monitor, journal, url))
        playing = asyncio.create_task(self._play(script, journal))
        stopping = asyncio.create_task(self._stopping.wait())
        tasks = {sending, watching, playing, stopping}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            sending.cancel()
            playing.cancel()
            journal.seen(f"The load ends; waiting for the last {count(self._tally.open, 'request')}.")
            finishing = asyncio.create_task(client.finish())
            tasks.add(finishing)
            await asyncio.wait({finishing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, monitor: Monitor, journal: Journal, url: str) -> None:
        reported: set[str] = set()
        while True:
            system = await monitor.look()
            for reason in self._tally.reasons.keys() - reported:
                reported.add(reason)
                journal.failure(f"A request failed: {reason}")
            elapsed = journal.elapsed
            load = self._tally.figures(self._clock(), elapsed)
            seconds = self._settings.seconds
            self._screen.picture(Picture(elapsed=elapsed, seconds=seconds, url=url, load=load, system=system))
            await asyncio.sleep(PICTURE_INTERVAL)

    async def _play(self, script: Script, journal: Journal) -> None:
        """The script, and the rest of the time."""
        await script.run(Pace.of(self._settings.seconds))
        await asyncio.sleep(max(self._settings.seconds - journal.elapsed, 0))

    async def _settle(self, monitor: Monitor, journal: Journal) -> None:
        """Check that the pickers count nothing in flight any more."""
        deadline = self._clock() + SETTLE_TIMEOUT
        while True:
            system = await monitor.look()
            left = sum(row.in_flight for row in system.endpoints) + sum(row.in_flight for row in system.pickers)
            if not left:
                journal.seen("All responses are complete, and the pickers agree that nothing is in flight.")
                return
            if self._clock() > deadline:
                journal.problem(f"All responses are complete, but pickers count {count(left, 'request')} in flight.")
                return
            await asyncio.sleep(0.1)

    def __repr__(self) -> str:
        return f"<Demo {self.directory}, {self._tally!r}>"


def _begun_by(stack: LocalStack) -> Callable[[str], Awaitable[str]]:
    """A function that returns the name of the server that had begun to respond to a request, according to Envoy."""
    assert stack.envoy is not None, "the demo's plan has an Envoy"
    log = AccessLog(stack.envoy.log)
    names = {server.authority: server.name for server in stack.simulators}

    async def begun_by(request_id: str) -> str:
        return names.get(await log.begun_by(request_id), "")

    return begun_by


def _role(process: Process, stack: LocalStack) -> tuple[str, str]:
    """Where a process listens, and what it is for."""
    for plan, server in zip(stack.plan.simulators, stack.simulators, strict=True):
        if process is server:
            return server.url, f"model server, {engine_label(plan)}"
    if process is stack.nats:
        return stack.nats.url, "nats-server"
    if process is stack.envoy:
        return stack.url, "the proxy that clients call"
    tiers = {"watcher": "publishes the endpoints", "collector": "scrapes the servers", "picker": "picks for Envoy"}
    for service in [*stack.watchers, *stack.collectors, *stack.pickers]:
        if process is service:
            return service.url, tiers[service.tier]
    raise ValueError(f"{process!r} doesn't belong to the stack")
