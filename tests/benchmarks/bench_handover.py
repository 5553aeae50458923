"""How soon a standby watcher leads when the leading one stops, dies or stands still.

    .venv/bin/python -m tests.benchmarks.bench_handover [TIMES]

It starts a nats-server, and two watcher processes with their defaults on an endpoints file of 100 endpoints. TIMES (30)
times each, the leader is stopped (SIGTERM), killed (SIGKILL) or frozen (SIGSTOP), at a random moment between two
renewals of its lease. Meanwhile the file changes, so that the standby has something to publish. Then another watcher
starts in its place. It prints the seconds, median and longest,

- until a standby leads: its epoch is in a picker's view;
- until that view is complete, with the change.

The longest possible time is computed beside them: the standby sees the last renewal at its next look, waits for
`lease.MARGIN` times as long as the holder holds, and writes.
"""

import asyncio
import inspect
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import uvloop

from shared.bus.lease import MARGIN, Lease
from shared.service import logs
from tests import zygote
from tests.benchmarks.bench_scrape import held
from tests.nats import nats_server
from tests.protocol.watcher.harness import Reader, WatcherProcess, by_role, endpoints_text, reader, replace
from tests.waiting import eventually

ENDPOINTS = tuple(f"e{number:03}" for number in range(100))
PLANNED, UNPLANNED = 0.3, 2.0
STEP = 0.002


async def hand_over(seen: Reader, leader: WatcherProcess, end: str, files: Path, names: tuple[str, ...]) -> list[float]:
    """Seconds until another watcher leads, and until the view has what it publishes."""
    epoch, began = seen.replica.epoch, time.monotonic()
    {"stopped": leader.terminate, "killed": leader.kill, "frozen": leader.pause}[end]()
    replace(files, endpoints_text(*names))
    await eventually(lambda: seen.replica.epoch > epoch, "a new epoch", step=STEP)
    leads = time.monotonic() - began
    await eventually(lambda: seen.replica.synced and seen.endpoints == list(names), "the change", step=STEP)
    return [leads, time.monotonic() - began]


async def measure(times: int) -> None:
    defaults = {name: parameter.default for name, parameter in inspect.signature(Lease).parameters.items()}
    hold, attempt = defaults["hold"], defaults["attempt"]
    draw = random.Random(5)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        files = directory / "endpoints.yaml"
        replace(files, endpoints_text(*ENDPOINTS))
        count = 0

        async def start(url: str) -> WatcherProcess:
            nonlocal count
            count += 1
            watcher = WatcherProcess(url, f"w{count}", directory / "log", f"--endpoints-file={files}")
            await watcher.ready()
            return watcher

        async with nats_server(directory / "nats") as nats, reader(nats.url) as seen:
            running = [await start(nats.url), await start(nats.url)]
            try:
                for end, most in (("stopped", PLANNED), ("killed", UNPLANNED), ("frozen", UNPLANNED)):
                    taken = []
                    for turn in range(times):
                        leader, standby = await by_role(running[0], running[1])
                        await asyncio.sleep(1.0 + draw.random())
                        taken.append(await hand_over(seen, leader, end, files, ENDPOINTS[turn % 2 :]))
                        leader.close()
                        running = [standby, await start(nats.url)]
                    leads, complete = np.array(taken).T
                    print(
                        f"{end:8} {times} times: a standby leads after {np.median(leads):.3f} s, at most "
                        f"{leads.max():.3f} s {held(leads.max(), most, ' s')}; the view is complete after "
                        f"{np.median(complete):.3f} s, at most {complete.max():.3f} s"
                    )
            finally:
                for process in running:
                    process.close()
    print(f"by design at most {attempt + hold * MARGIN:.3f} s, and the writing")


if __name__ == "__main__":
    logs.configure("error", "console")
    zygote.install()  # a watcher starts with a tenth of the CPU time
    uvloop.run(measure(int(sys.argv[1]) if sys.argv[1:] else 30))
