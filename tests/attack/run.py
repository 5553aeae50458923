"""One run: a quiet time for comparison, the attack beside the well-behaved load, and the calm afterwards."""

import asyncio
import os
import resource
import time
from pathlib import Path

import numpy as np
from msgspec import Struct

from pointsman.local.services import ROOT
from pointsman.local.stack import LocalStack
from tests.attack import invariants
from tests.attack.admin import Admin
from tests.attack.bus import Bus
from tests.attack.clients import Clients
from tests.attack.files import Files
from tests.attack.fronts import Attack, Scene
from tests.attack.honest import HonestProcess, Record
from tests.attack.journal import Journal
from tests.attack.model_servers import ModelServers
from tests.attack.proxies import Proxies
from tests.attack.target import closed, plan

WARM_UP = 2.0
"""Seconds in which the well-behaved load starts, and the first requests open connections."""
ASIDE = 15
"""How nice the attackers are where times are judged: they have machines of their own, and take no time of these."""


class Latency(Struct, frozen=True):
    """Seconds to the first byte."""

    requests: int
    p50: float
    p99: float
    worst: float


class Outcome(Struct, kw_only=True):
    """What a run showed."""

    seed: int
    seconds: float
    """Of the attack."""
    journal: Journal
    quiet: Latency
    """Before the attack."""
    attacked: Latency
    slowest: list[tuple[float, list[str]]]
    """The slowest requests' seconds, and the acts that were under way."""
    load_late: float
    """The longest time for which the well-behaved load's own process stood still."""
    resident: dict[str, tuple[int, int, int]]
    """Of each process: bytes before, at most, and afterwards."""
    pauses: dict[str, tuple[int, float]]
    culprits: list[str]
    """What held event loops for longest."""
    oldest: float
    slowest_page: float
    unanswered: int
    exceptions: list[str]
    shares: dict[str, float]
    """Of one core: what each process took meanwhile, the attackers' own among them."""
    others: float
    """Of one core: what was taken by what has nothing to do with this."""


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
        services = [*stack.watchers, *stack.collectors, *stack.pickers]
        over, ended = asyncio.Event(), asyncio.Event()
        async with HonestProcess(stack.url, seed, str(ROOT)) as honest:
            await asyncio.sleep(WARM_UP + quiet)
            if not patient:
                os.nice(ASIDE)
            before = {one.name: invariants.resident(one) for one in services}
            began, own, all_used = time.monotonic(), _cpu(), invariants.machine_cpu()
            used = {one.name: invariants.cpu(one) for one in stack.processes}
            watching = asyncio.create_task(watch.run(ended), name="watch")
            async with asyncio.TaskGroup() as group:
                for attack in attacks:
                    group.create_task(attack.run(over), name="attack")
                await asyncio.sleep(seconds)
                over.set()
            lasted = time.monotonic() - began
            shares = {one.name: (invariants.cpu(one) - used[one.name]) / lasted for one in stack.processes}
            shares["the attackers"] = (_cpu() - own) / lasted
            everybody = (invariants.machine_cpu() - all_used) / lasted
            shares["the well-behaved"] = invariants.cpu_of(honest.pid) / (lasted + quiet)
            record = await honest.finish()
        ended.set()
        await watching
        await servers.stop()
        pauses = await invariants.pauses(stack)
        peaks = {one.name: invariants.resident(one, "VmHWM") for one in services}
        after = {one.name: invariants.resident(one) for one in services}
        await invariants.calm(stack, journal)
        await watch.look_around()
        culprits = invariants.culprits(stack)
        exceptions = invariants.exceptions(stack)
    for failed in record.failed:
        journal.breach(f"a well-behaved request failed: {failed.what}", failed.began - 1.0, failed.ended)
    return Outcome(
        seed=seed,
        seconds=lasted,
        journal=journal,
        quiet=_latency(record, began - quiet, began),
        attacked=_latency(record, began, began + lasted),
        slowest=_slowest(record, journal, began),
        load_late=record.late,
        resident={name: (before[name], peaks[name], after[name]) for name in before},
        pauses=pauses,
        culprits=culprits,
        oldest=watch.oldest,
        slowest_page=watch.slowest,
        unanswered=watch.unanswered,
        exceptions=exceptions,
        shares=shares,
        others=max(0.0, everybody - sum(shares.values())),
    )


def _latency(record: Record, since: float, until: float) -> Latency:
    values = [one.first_byte for one in record.answered if since <= one.began < until]
    if not values:
        return Latency(0, 0.0, 0.0, 0.0)
    p50, p99, worst = np.percentile(values, (50, 99, 100))
    return Latency(len(values), float(p50), float(p99), float(worst))


def _slowest(record: Record, journal: Journal, since: float) -> list[tuple[float, list[str]]]:
    slow = sorted((one for one in record.answered if one.began >= since), key=lambda one: -one.first_byte)[:5]
    return [(one.first_byte, journal.under_way(one.began, one.began + one.first_byte)) for one in slow]


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
