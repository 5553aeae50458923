"""A picker with one and with two workers under the same load: h2load over four connections, plaintext.

    .venv/bin/python -m tests.benchmarks.bench_workers

Needs h2load (Debian's package nghttp2-client) and nats-server. A request is a whole conversation, four messages with a
body of 1 kB, sent at once. `CPU each` is the time of the picker's processes per conversation, `supervisor` its part;
`split` has the conversations of each worker. On a machine with two cores the client takes a part of one of them, so
conversations/s grow by less than the cores.
"""

import asyncio
import os
import re
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct

from services.picker.transport.ext_proc import METHOD
from tests.benchmarks.bench_conversation import lean
from tests.nats import free_port, nats_server
from tests.protocol.collector.harness import Owner, endpoint
from tests.waiting import eventually

WORKERS = (1, 2)
ENDPOINTS = (8, 100)
CONVERSATIONS = 20_000
ROUNDS = 3
CONNECTIONS = 4
STREAMS = 8
"""At a time on each connection."""
TICK = os.sysconf("SC_CLK_TCK")


class Round(Struct):
    """What one run has taken."""

    per_second: float
    cpu: list[float]
    """Seconds of the picker, or of the supervisor and of each worker."""
    split: list[int]


class Picker:
    """The processes, and what they have done."""

    def __init__(self, process: asyncio.subprocess.Process, client: httpx.AsyncClient) -> None:
        self._process = process
        self._client = client

    async def ready(self) -> bool:
        try:
            return (await self._client.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    async def look(self) -> tuple[int, list[float], list[int]]:
        """(port, CPU seconds of each process, routed requests of each worker)."""
        state: dict[str, Any] = (await self._client.get("/debug/state")).json()
        workers: dict[str, Any] = state.get("workers", {})
        pids = [self._process.pid, *(worker["pid"] for worker in workers.values())]
        pickers = [worker["picker"] for worker in workers.values()] or [state]
        picks = [sum(endpoint["picks"] for endpoint in picker["endpoints"]) for picker in pickers]
        return state["grpc_port"], [_cpu(pid) for pid in pids], picks


async def measure(workers: int, url: str, messages: Path) -> list[Round]:
    port = free_port()
    ports = (f"--admin-port={port}", "--admin-host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0")
    quiet = ("--log-level=error", "--secure-serving=false", "--drain-delay=0s", f"--nats-url={url}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pointsman", "picker", f"--workers={workers}", *ports, *quiet)
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            picker = Picker(process, client)
            await eventually(picker.ready)
            await drive(picker, messages, CONVERSATIONS // 10)  # warm
            return [await drive(picker, messages, CONVERSATIONS) for _ in range(ROUNDS)]
    finally:
        process.terminate()
        await process.wait()


async def drive(picker: Picker, messages: Path, conversations: int) -> Round:
    port, cpu, picks = await picker.look()
    load = ("-n", str(conversations), "-c", str(CONNECTIONS), "-m", str(STREAMS), "-d", str(messages))
    headers = ("-H", "content-type: application/grpc", "-H", "te: trailers")
    h2load = await asyncio.create_subprocess_exec(
        *("h2load", *load, *headers, f"http://127.0.0.1:{port}{METHOD}"), stdout=asyncio.subprocess.PIPE
    )
    output = (await h2load.communicate())[0].decode()
    rate = re.search(r"finished in .*?, ([0-9.]+) req/s", output)
    _, cpu_after, picks_after = await picker.look()
    split = [after - before for before, after in zip(picks, picks_after, strict=True)]
    if rate is None or sum(split) != conversations:
        raise RuntimeError(f"{split} of {conversations} conversations were decided:\n{output}")
    used = [after - before for before, after in zip(cpu, cpu_after, strict=True)]
    return Round(float(rate[1]), used, split)


def _cpu(pid: int) -> float:
    """CPU seconds that a process has used (proc(5), fields utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


async def main() -> None:
    print(f"{'endpoints':>9}  {'workers':>7}  {'conversations/s':>15}  {'CPU each':>9}  {'supervisor':>10}  split")
    with tempfile.TemporaryDirectory() as folder:
        messages = Path(folder) / "messages"
        messages.write_bytes(b"".join(struct.pack(">BL", 0, len(one)) + one for one in lean(1_000)))
        async with nats_server(Path(folder) / "nats") as nats:
            owner = Owner(nats.url)
            await owner.start()
            for endpoints in ENDPOINTS:
                await owner.publish([endpoint(f"e{number}", 8000 + number) for number in range(endpoints)])
                for workers in WORKERS:
                    best = max(await measure(workers, nats.url, messages), key=lambda one: one.per_second)
                    each, supervisor = sum(best.cpu) / CONVERSATIONS, best.cpu[0] if workers > 1 else 0.0
                    row = f"{endpoints:>9}  {workers:>7}  {best.per_second:>15.0f}  {each * 1e3:>6.3f} ms"
                    print(f"{row}  {supervisor / CONVERSATIONS * 1e3:>7.3f} ms  {best.split}")
            await owner.close()


if __name__ == "__main__":
    asyncio.run(main())
