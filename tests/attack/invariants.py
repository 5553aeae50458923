"""What must hold whatever the attackers do: checked while they act, and once more when they are gone."""

import asyncio
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from pointsman.local.process import Process
from pointsman.local.services import ROOT, ServiceProcess
from pointsman.local.stack import LocalStack
from tests.attack.fronts import Journal
from tests.faults.system.conftest import settled
from tests.waiting import TIMEOUT

PERIOD = 0.5
"""Seconds between two checks."""
MIB = 2**20
MAX_RESIDENT = {"watcher": 400 * MIB, "collector": 200 * MIB, "picker": 600 * MIB}
"""Bytes that a process of a tier may ever have resident."""
PORTS = re.compile(r'"port_value":\s*(\d+)')
PAUSES, LONGEST = "pointsman_event_loop_pause_seconds_count", "pointsman_event_loop_longest_pause_seconds"


class Watch:
    """Checks all processes until it is stopped, and notes breaches in the journal."""

    def __init__(self, stack: LocalStack, journal: Journal) -> None:
        self._stack = stack
        self._journal = journal
        self.services: list[ServiceProcess] = [*stack.watchers, *stack.collectors, *stack.pickers]
        self._good = {f"default/{server.name}" for server in stack.simulators}
        self.oldest = 0.0
        """Seconds: the greatest age of a good endpoint's metrics at a picker."""
        self.slowest = 0.0
        """Seconds: the slowest admin page."""
        self.unanswered = 0
        """Requests to admin ports without a response."""

    async def run(self, stop: asyncio.Event) -> None:
        async def repeat(check: Callable[[], Awaitable[None]]) -> None:
            while not stop.is_set():
                await check()
                await asyncio.sleep(PERIOD)

        async with asyncio.TaskGroup() as group:
            group.create_task(repeat(self.look_around))
            for service in self.services:
                group.create_task(repeat(partial(self._check, service)))

    async def look_around(self) -> None:
        """The checks that need no response."""
        for process in self._stack.processes:
            if not process.running:
                last = "".join(process.tail(1))[:300]
                self._journal.breach(f"{process.name} has ended with {process.exit_code}: {last}")
        for service in self.services:
            if resident(service, "VmHWM") > MAX_RESIDENT[service.tier]:
                self._journal.breach(f"{service.name} has more than {MAX_RESIDENT[service.tier] // MIB} MiB resident")
        listed = set(PORTS.findall(self._stack.eds_file.read_text(encoding="utf-8")))
        for simulator in self._stack.simulators:
            if str(simulator.http.port) not in listed:
                self._journal.breach(f"Envoy's list doesn't have {simulator.name}")

    async def _check(self, service: ServiceProcess) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(TIMEOUT):
                state: dict[str, Any] = await service.state()
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            self.unanswered += 1
            if isinstance(error, TimeoutError):
                self._journal.breach(f"{service.name} didn't respond for {TIMEOUT:g} s", began)
            return
        self.slowest = max(self.slowest, time.monotonic() - began)
        if service.tier != "picker":
            return
        known = {endpoint["id"]: endpoint for endpoint in state["endpoints"]}
        for missing in sorted(self._good - known.keys()):
            self._journal.breach(f"{service.name} doesn't know {missing}", began)
        for id in self._good & known.keys():
            ages = [value["age"] for value in known[id]["attributes"].values() if value["age"] is not None]
            self.oldest = max([self.oldest, *ages])


async def calm(stack: LocalStack, journal: Journal) -> None:
    """Wait until nothing is in flight and all views are equal; then the same with a restarted picker."""
    try:
        await settled(stack)
        await stack.pickers[0].restart()
        await settled(stack)
    except Exception as error:  # noqa: BLE001 - whatever prevents it is the finding
        journal.breach(f"afterwards: {error!r} because of {error.__cause__!r}"[:2000], -math.inf)


async def memory_and_pauses(services: Sequence[ServiceProcess], before: Mapping[str, int]) -> AsyncIterator[str]:
    """A line for each service: its memory, and how often and how long its event loop stood still above 50 ms."""
    for service in services:
        bound, now, most = MAX_RESIDENT[service.tier], resident(service), resident(service, "VmHWM")
        size = f"{before[service.name] // MIB:4} -> {now // MIB:4} MiB, at most {most // MIB:4} of {bound // MIB}"
        try:
            page = await service.metrics()
        except httpx.HTTPError:
            page = ""  # it has ended, which is noted
        found = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[:1] != "#")
        pauses, longest = int(float(found.get(PAUSES, 0))), float(found.get(LONGEST, 0))
        yield f"{service.name:<12} {size}; {pauses} pauses of the event loop, {longest:.2f} s at most"


def resident(process: Process, what: str = "VmRSS") -> int:
    """Bytes that a process has resident, or with VmHWM had at most; 0 without /proc."""
    lines = _read(f"/proc/{process.pid}/status").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:")), 0)


def cpu(pid: int | None) -> float:
    """Seconds of CPU time that a process has used; 0 without /proc."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def machine_cpu() -> float:
    """Seconds of CPU time that this machine has used: user, nice, system, irq, softirq; 0 without /proc."""
    fields = _read("/proc/stat").split(maxsplit=8)[1:8]
    return sum(int(fields[at]) for at in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _logged(stack: LocalStack, mark: str) -> Iterator[tuple[ServiceProcess, dict[str, Any]]]:
    """Lines of the services' logs that contain the mark."""
    for service in (*stack.watchers, *stack.collectors, *stack.pickers):
        for line in service.log.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Traceback"):
                line = json.dumps({"event": "a traceback beside the log", "exception": line})
            if mark in line:
                yield service, json.loads(line)


def culprits(stack: LocalStack) -> list[str]:
    """What held event loops for longest by CPU time, as far as it was logged: a line in ten seconds."""
    found = sorted(
        (entry["cpu_seconds"], f"{service.name} in {entry['at']}, task {entry['task']}")
        for service, entry in _logged(stack, '"event_loop.paused"')
    )
    return [
        f"  held its event loop for {cpu * 1000:.0f} ms of CPU time: {what}"
        for cpu, what in found[:-4:-1]
        if cpu > 0.02
    ]


def exceptions(stack: LocalStack) -> list[str]:
    """Unexpected exceptions in the services' logs, each with its number."""
    found: Counter[str] = Counter()
    for service, entry in _logged(stack, '"exception"'):
        trace = entry["exception"].splitlines()
        places = [line.strip() for line in trace if line.strip().startswith("File ") and str(ROOT) in line]
        place = places[-1].replace(f"{ROOT}/", "") if places else ""
        kind = trace[-1].partition(":")[0]
        found[f"{service.tier}: {entry['event']} {entry.get('task', '')}: {kind} in {place}"] += 1
    return [f"{times} times in a {what}" for what, times in sorted(found.items())]
