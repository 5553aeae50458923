"""What must hold whatever the attackers do: asked of the system while they act, and once more when they are gone."""

import asyncio
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from pointsman.local.process import Process
from pointsman.local.services import ROOT, ServiceProcess
from pointsman.local.stack import LocalStack
from tests.attack.journal import Journal
from tests.faults.system.conftest import settled
from tests.waiting import TIMEOUT

PERIOD = 0.5
"""Seconds between two looks."""
UNANSWERED = TIMEOUT
"""Seconds after which an admin port that doesn't answer is noted."""
MIB = 2**20
MOST_RESIDENT = {"watcher": 400 * MIB, "collector": 200 * MIB, "picker": 600 * MIB}
"""Bytes that a process of a tier may ever have resident."""
LONGEST = "pointsman_event_loop_longest_pause_seconds"
PORTS = re.compile(r'"port_value":\s*(\d+)')
PAUSES = "pointsman_event_loop_pause_seconds_count"


class Watch:
    """Looks at all processes until it is stopped, and notes in the journal what doesn't hold."""

    def __init__(self, stack: LocalStack, journal: Journal) -> None:
        self._stack = stack
        self._journal = journal
        self._services: list[ServiceProcess] = [*stack.watchers, *stack.collectors, *stack.pickers]
        self._good = {f"default/{one.name}" for one in stack.simulators}
        self.oldest = 0.0
        """Seconds: the greatest age of a good endpoint's metrics that a picker had."""
        self.slowest = 0.0
        """Seconds that an admin page took at most."""
        self.unanswered = 0
        """Looks at a process that came to nothing."""

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(stop, self.look_around))
            for one in self._services:
                group.create_task(self._again(stop, partial(self._look_at, one)))

    async def _again(self, stop: asyncio.Event, look: Callable[[], Awaitable[None]]) -> None:
        while not stop.is_set():
            await look()
            await asyncio.sleep(PERIOD)

    async def look_around(self) -> None:
        """What needs no answer."""
        for process in self._stack.processes:
            if not process.running:
                self._journal.breach(f"{process.name} has ended with {process.exit_code}: {_last_line(process)}")
        for one in self._services:
            if resident(one, "VmHWM") > MOST_RESIDENT[one.tier]:
                self._journal.breach(f"{one.name} has more than {MOST_RESIDENT[one.tier] // MIB} MiB resident")
        listed = set(PORTS.findall(self._stack.eds_file.read_text(encoding="utf-8")))
        for simulator in self._stack.simulators:
            if str(simulator.http.port) not in listed:
                self._journal.breach(f"Envoy's list doesn't have {simulator.name}")

    async def _look_at(self, service: ServiceProcess) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(UNANSWERED):
                state = await service.state()
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            self.unanswered += 1
            if isinstance(error, TimeoutError):
                self._journal.breach(f"{service.name} didn't answer for {UNANSWERED:g} s", began)
            return
        self.slowest = max(self.slowest, time.monotonic() - began)
        if service.tier == "picker":
            self._check_view(service.name, state, began)

    def _check_view(self, name: str, state: dict[str, Any], began: float) -> None:
        known = {one["id"]: one for one in state["endpoints"]}
        for missing in sorted(self._good - known.keys()):
            self._journal.breach(f"{name} doesn't know {missing}", began)
        for id in sorted(self._good & known.keys()):
            ages = [value["age"] for value in known[id]["attributes"].values() if value["age"] is not None]
            self.oldest = max([self.oldest, *ages])


async def calm(stack: LocalStack, journal: Journal) -> None:
    """Wait until nothing is in flight and all views are one; then the same of a picker that has just started."""
    try:
        await settled(stack)
        await stack.pickers[0].restart()
        await settled(stack)
    except Exception as error:  # noqa: BLE001 - whatever keeps it from that is the finding
        journal.breach(f"afterwards: {error!r} because of {error.__cause__!r}"[:2000], -math.inf)


async def pauses(stack: LocalStack) -> dict[str, tuple[int, float]]:
    """Of each process that runs: how often its event loop stood still for more than 50 ms, and for how long at most."""
    found = {}
    for service in (*stack.watchers, *stack.collectors, *stack.pickers):
        try:
            page = await service.metrics()
        except httpx.HTTPError:
            continue  # it has ended, or would be noted for not answering
        lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[:1] != "#")
        found[service.name] = int(float(lines.get(PAUSES, 0))), float(lines.get(LONGEST, 0))
    return found


def resident(process: Process, what: str = "VmRSS") -> int:
    """Bytes that a process has resident, or with VmHWM had at most; 0 where there is no /proc."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:")), 0)


def cpu(process: Process) -> float:
    """`cpu_of` a process of the stack."""
    return cpu_of(process.pid)


def cpu_of(pid: int | None) -> float:
    """Seconds of CPU time that a process has used; 0 where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_cpu() -> float:
    """Seconds of CPU time that everything on this machine has used; 0 where there is no /proc."""
    try:
        user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
    except OSError:
        return 0.0
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def culprits(stack: LocalStack) -> list[str]:
    """What held event loops for longest by its own CPU time, as far as it was logged: a line in ten seconds."""
    found = []
    for service in (*stack.watchers, *stack.collectors, *stack.pickers):
        for line in service.log.read_text(encoding="utf-8", errors="replace").splitlines():
            if '"event_loop.paused"' in line:
                said = json.loads(line)
                found.append((said["cpu_seconds"], f"{service.name} in {said['at']}, task {said['task']}"))
    return [f"{seconds * 1000:.0f} ms of CPU time: {what}" for seconds, what in sorted(found)[:-4:-1] if seconds > 0.02]


def exceptions(stack: LocalStack) -> list[str]:
    """What our processes' logs show of exceptions that nobody expected: each once, with how often it came."""
    found: Counter[str] = Counter()
    for service in (*stack.watchers, *stack.collectors, *stack.pickers):
        for line in service.log.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Traceback"):
                found[f"{service.tier}: a traceback beside the log"] += 1
            elif '"exception"' in line:
                said = json.loads(line)
                trace = said["exception"].splitlines()
                places = [one.strip() for one in trace if one.strip().startswith("File ") and str(ROOT) in one]
                place = places[-1].replace(f"{ROOT}/", "") if places else ""
                kind = trace[-1].partition(":")[0]
                found[f"{service.tier}: {said['event']} {said.get('task', '')}: {kind} in {place}"] += 1
    return [f"{times} times in a {what}" for what, times in sorted(found.items())]


def _last_line(process: Process) -> str:
    return "".join(process.tail(1))[:300]
