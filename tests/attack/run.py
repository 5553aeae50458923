"""One run: a quiet time for comparison, the attack beside the well-behaved load, and the calm afterwards."""

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from pointsman.local.stack import LocalStack
from tests.attack import invariants
from tests.attack.admin import Admin
from tests.attack.bus import Bus
from tests.attack.clients import Clients
from tests.attack.files import Files
from tests.attack.fronts import Attack, Journal, Scene
from tests.attack.honest import Request, honest_process
from tests.attack.model_servers import ModelServers
from tests.attack.proxies import Proxies
from tests.attack.target import closed, plan

WARM_UP = 2.0
"""Seconds in which the well-behaved load starts, and the first requests open connections."""
NICE = 15
"""The attackers' priority where times are judged: they have machines of their own, and take no time of these."""
OWN_CPU = ("watcher", "collector"), 10
"""Tiers off the way of a request, and their priority: in a deployment they have CPUs of their own."""
MAX_P99 = 0.05
"""Seconds to the first byte of a well-behaved request."""
MAX_AGE = 2.0
"""Seconds: `staleMetrics.after`, beyond which a good server's metrics count for nothing."""
MAX_OTHERS = 0.25
"""Of a core: what other work may take while bounds in time are judged."""


class Outcome(Struct, kw_only=True):
    """The results of a run."""

    journal: Journal
    exceptions: list[str]
    served: int
    """Well-behaved requests that got their response during the attack."""
    lines: list[tuple[str, bool]]
    """The report, and whether what a line states is within its bound."""


async def run(
    seed: int, directory: Path, *, seconds: float, quiet: float, only: str = "", patient: bool = False
) -> Outcome:
    """Attack for so many seconds, after some quiet ones. `only` is a front, or a front and an act (`bus.epochs`)."""
    journal = Journal()
    async with LocalStack(plan(seed, directory, patient=patient), directory) as stack:
        scene = Scene(stack, journal.breach, closed(seed))
        servers = ModelServers(scene)
        await servers.start()
        watch = invariants.Watch(stack, journal)
        fronts = (Clients(scene), Proxies(scene), servers, Bus(scene), Files(scene, servers), Admin(scene))
        attacks = [Attack(front, seed, journal, only) for front in fronts]
        if not any(attack.acts for attack in attacks):
            raise ValueError(f"{only!r} is no front and no act of one")
        over, ended = asyncio.Event(), asyncio.Event()
        async with honest_process(stack.url, seed) as (load_pid, finish):
            await asyncio.sleep(WARM_UP + quiet)
            if not patient:
                lower_priority(os.getpid(), NICE)
                tiers, niceness = OWN_CPU
                for service in stack.processes:
                    if service.pid is not None and service.name.startswith(tiers):
                        lower_priority(service.pid, niceness)
            pids = {process.name: process.pid for process in stack.processes}
            pids |= {"the attackers": os.getpid(), "the well-behaved": load_pid}
            before = {service.name: invariants.resident(service) for service in watch.services}
            began, all_used = time.monotonic(), invariants.machine_cpu()
            used = {name: invariants.cpu(pid) for name, pid in pids.items()}
            watching = asyncio.create_task(watch.run(ended), name="watch")
            async with asyncio.TaskGroup() as group:
                for attack in attacks:
                    group.create_task(attack.run(over), name="attack")
                await asyncio.sleep(seconds)
                over.set()
            lasted = time.monotonic() - began
            shares = {name: (invariants.cpu(pid) - used[name]) / lasted for name, pid in pids.items()}
            others = max(0.0, (invariants.machine_cpu() - all_used) / lasted - sum(shares.values()))
            record = await finish()
        ended.set()
        await watching
        await servers.stop()
        memory = [line async for line in invariants.memory_and_pauses(watch.services, before)]
        await invariants.calm(stack, journal)
        await watch.look_around()
        culprits = invariants.culprits(stack)
        exceptions = invariants.exceptions(stack)
    for request in record.requests:
        if request.failure:
            until = request.began + request.first_byte
            journal.breach(f"a well-behaved request failed: {request.failure}", request.began - 1.0, until)
    attacked = [request for request in record.requests if began <= request.began < began + lasted]
    busy = others > MAX_OTHERS
    counts = ", ".join(f"{front} {number}" for front, number in sorted(journal.counts().items()))
    taken = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    quiet_text, _ = _latency([request for request in record.requests if request.began < began])
    text, p99 = _latency(attacked)
    lines = [
        (f"seed {seed}, {lasted:.0f} s of attack; acts: {counts}", True),
        (f"shares of a core: {taken}; others on this machine {others:.0%}", True),
        *([(f"others took more than {MAX_OTHERS:.0%}: bounds in time aren't judged", True)] if busy else []),
        (f"quiet:    {quiet_text}", True),
        (f"attacked: {text}; bound p99 {MAX_P99 * 1000:.0f} ms", busy or p99 <= MAX_P99),
    ]
    for request in sorted(attacked, key=lambda request: -request.first_byte)[:5]:
        acts = journal.under_way(request.began, request.began + request.first_byte)
        lines.append((f"  {request.first_byte * 1000:6.0f} ms beside {', '.join(acts)}", True))
    lines += [
        (f"  (the load's own process stood still for {record.late * 1000:.0f} ms at most)", True),
        (
            f"oldest metrics of a good server: {watch.oldest:.2f} s; bound {MAX_AGE:g} s",
            busy or watch.oldest <= MAX_AGE,
        ),
        (f"slowest /debug/state: {watch.slowest:.2f} s; {watch.unanswered} without a response", True),
        *((line, True) for line in (*memory, *culprits)),
        *((f"unexpected exception: {line}", False) for line in exceptions),
    ]
    for breach in journal.breaches.values():
        lines.append((f"{breach.times} times: {breach.what}\n    beside {', '.join(breach.acts) or 'nothing'}", False))
    served = sum(not request.failure for request in attacked)
    return Outcome(journal=journal, exceptions=exceptions, served=served, lines=lines)


def lower_priority(pid: int, niceness: int) -> None:
    """Lowers the priority of a process that leads its session: among sessions, and of each of its threads, as Linux
    counts. Where sessions are scheduled as groups, the first is what counts."""
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
    session = Path(f"/proc/{pid}/autogroup")
    if session.exists():
        session.write_text(str(niceness), encoding="ascii")


def _latency(requests: Sequence[Request]) -> tuple[str, float]:
    """The times to the first byte as text, and the p99 in seconds."""
    values = [request.first_byte for request in requests if not request.failure] or [0.0]
    p50, p99, worst = np.percentile(values, (50, 99, 100))
    figures = f"p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, at most {worst * 1000:.0f} ms"
    return f"{len(requests)} well-behaved requests, first byte: {figures}", float(p99)
