"""A watcher on Kubernetes: how soon pickers see a pod's readiness, what a change, a start and standing still cost.

    .venv/bin/python -m tests.benchmarks.bench_watcher [visible|change|start|idle]

Every watcher is a process of its own, as it is installed; there is a nats-server, and two views as pickers have them.

- visible: a real kube-apiserver and its etcd, or skipped where they can't be had. A pod's `Ready` condition is patched
  back and forth; from there to the view of the slower picker, once counted from the server's answer to the patch and
  once from its sending. With 10 and with 1 000 pods in the pool, all ready, 300 changes each with a pause in between.
- change: a stand-in API server with 10 and with 5 000 pods, of which one changes its readiness every 20 ms; the CPU
  time that the watcher takes for one change, and the ratio of the two. The publisher's check every 10 s is part of it:
  after a delete it reads the bucket, which with 5 000 facts takes a quarter of a second.
- start: a stand-in API server (for the real one makes pods too slowly) with 5 000 pods of 6 kB of JSON; from the start
  of the process to `synced` in the pickers' views, and the watcher's memory then and at its highest.
- idle: the same watcher for 20 s in which nothing changes; its share of a core.

On two cores everything else runs beside it: times include waiting for a core.
"""

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop
from aiohttp import web

from services.picker.state.view import View
from shared.bus.connection import Bus
from shared.bus.facts import Delete, Event, Reset, Upsert
from shared.bus.replica import Replica
from shared.bus.subjects import Subjects, parse_key, pool_token
from shared.service import logs
from tests.benchmarks.bench_collector import Child, _cpu, _resident, child
from tests.benchmarks.bench_kubernetes import PAGE, PODS_LISTED, pod
from tests.benchmarks.bench_scrape import held
from tests.fake_kubernetes.server import ApiServer as StandIn
from tests.kubernetes.api import Api
from tests.kubernetes.apiserver import CRDS, ApiServer
from tests.kubernetes.peers import PeersMissing, find_or_build
from tests.kubernetes.pods import Pods
from tests.kubernetes.watching import LABELS, POOL, pool_document
from tests.nats import NatsServer, free_port, nats_server

CHANGES = 300
PAUSE = 0.02
"""Seconds between a change that was seen and the next one."""
IDLE = 20.0
CHANGED_EVERY = 0.02
"""Seconds between two changes of the stand-in, more than the watcher waits to put changes together."""
TIMEOUT = 30.0
ALONE = ("--endpoint-selector=app=vllm-llama3-8b-instruct", "--endpoint-target-ports=8000")
"""The stand-in has no InferencePool."""


class PickersView:
    """What one picker knows: the view, and who waits for it to have an endpoint or not."""

    def __init__(self, url: str, namespace: str) -> None:
        self.view = View()
        self._bus = Bus(url, name="picker")
        self.replica = Replica(self._bus, Subjects(), pool_token(namespace, POOL), self._take)
        self.changes = 0
        """Facts that were published one by one."""
        self._waiting: dict[tuple[str, bool], asyncio.Future[float]] = {}

    async def __aenter__(self) -> "PickersView":
        await self.replica.start()
        await self._bus.start()
        await self._bus.wait_connected(5.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.replica.close()
        await self._bus.close()

    def expect(self, id: str, present: bool) -> asyncio.Future[float]:
        """The monotonic time at which an endpoint is there, or is no more."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[id, present] = future
        return future

    async def complete(self, endpoints: int) -> float:
        """Until it is synced with so many; the monotonic time of that."""
        async with asyncio.timeout(TIMEOUT):
            while not self.replica.synced or len(self.view.layout) != endpoints:  # noqa: ASYNC110 -- two conditions
                await asyncio.sleep(0.002)
        return time.monotonic()

    def _take(self, event: Event) -> None:
        match event:
            case Reset(facts=facts):
                self.view.reset(facts)
            case Upsert(key=key, fact=fact):
                self.changes += 1
                self.view.upsert(key, fact)
                self._notify(parse_key(key).name, True)
            case Delete(key=key):
                self.changes += 1
                self.view.delete(key)
                self._notify(parse_key(key).name, False)

    def _notify(self, id: str, present: bool) -> None:
        future = self._waiting.pop((id, present), None)
        if future is not None:
            future.set_result(time.monotonic())


@asynccontextmanager
async def watcher(nats: NatsServer, namespace: str, kubeconfig: str, *flags: str) -> AsyncIterator[Child]:
    """As it is installed, with its defaults."""
    async with child(
        *("pointsman", "watcher", f"--nats-url={nats.url}", "--kubernetes", f"--kubeconfig={kubeconfig}"),
        *(f"--pool-namespace={namespace}", f"--pool-name={POOL}", "--admin-host=127.0.0.1"),
        *(f"--admin-port={free_port()}", "--log-level=error", *flags),
    ) as process:
        yield process


@asynccontextmanager
async def views(nats: NatsServer, namespace: str) -> AsyncIterator[list[PickersView]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(PickersView(nats.url, namespace)) for _ in range(2)]


# A real server


async def measure_visible(nats: NatsServer, directory: Path) -> None:
    try:
        peers = find_or_build(print)
    except PeersMissing as error:
        print(f"skipped: from a pod's readiness to the views of two pickers. {error}")
        return
    async with ApiServer(peers, directory / "apiserver") as server, server.client() as admin:
        await admin.install(CRDS)
        print(f"from a pod's readiness to the views of two pickers, {CHANGES} changes")
        print(
            "  pods     after the answer: p50, p99, max, ms     after the sending: p50, p99, max, ms   watcher, cores"
        )
        for count in (10, 1000):
            await _visible(nats, server, admin, directory, count)


async def _visible(nats: NatsServer, server: ApiServer, admin: Api, directory: Path, count: int) -> None:
    namespace = await admin.create_namespace()
    pods = Pods(admin, namespace)
    await admin.create(pool_document(), namespace)
    limit = asyncio.Semaphore(16)

    async def create(number: int) -> None:
        async with limit:
            await pods.create(f"p{number}", f"10.1.{number >> 8}.{number & 255}", labels=LABELS)

    await asyncio.gather(*map(create, range(count)))
    kubeconfig = str(server.kubeconfig(directory / "kubeconfig", namespace=namespace))
    async with watcher(nats, namespace, kubeconfig) as process, views(nats, namespace) as seen:
        for watch in seen:
            await watch.complete(count)
        used, began = _cpu(process.pid), time.monotonic()
        answered, sent = [], []
        for change in range(CHANGES):
            name, ready = f"p{change // 2 % count}", change % 2 == 1
            expected = [watch.expect(f"{namespace}/{name}-rank-0", ready) for watch in seen]
            at = time.monotonic()
            await pods.report(name, ready=ready)
            acknowledged = time.monotonic()
            last = max(await asyncio.wait_for(asyncio.gather(*expected), TIMEOUT))
            answered.append(max(0.0, last - acknowledged))
            sent.append(last - at)
            await asyncio.sleep(PAUSE)
        cores = (_cpu(process.pid) - used) / (time.monotonic() - began)
        figures = ["".join(f"{1000 * seconds:8.1f}" for seconds in _spread(times)) for times in (answered, sent)]
        aim = held(1000 * _spread(answered)[1], 50, " ms for the first p99")
        print(f"  {count:<8} {figures[0]}                       {figures[1]}               {cores:8.3f}   {aim}")


def _spread(times: list[float]) -> tuple[float, float, float]:
    p50, p99 = np.percentile(times, [50, 99])
    return float(p50), float(p99), max(times)


# A stand-in


async def serve(count: int, changes: bool) -> None:
    """Pods in pages that are encoded beforehand, and watches on which nothing happens, or a pod changes again and
    again. Prints its address."""
    found = [pod(number) for number in range(count)]
    pages = []
    for start in range(0, count, PAGE):
        more = {} if start + PAGE >= count else {"continue": str(start // PAGE + 1)}
        metadata = {"resourceVersion": "2000000", **more}
        pages.append(msgspec.json.encode({"metadata": metadata, "items": found[start : start + PAGE]}))
    resources = {"resources": [{"name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["list", "watch"]}]}

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path in ("/api", "/apis"):
            return web.json_response({"kind": "APIGroupList"})
        if request.path == "/api/v1":
            return web.json_response(resources)
        if not request.path.endswith("/pods"):
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if request.query.get("watch") != "true":
            return web.Response(body=pages[int(request.query.get("continue", "0"))], content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for number in itertools.count(2_000_001) if changes else ():
            await asyncio.sleep(CHANGED_EVERY)
            await response.write(_toggled(found[(number - 1) // 2 % count], number))
        await asyncio.sleep(float(request.query["timeoutSeconds"]))
        return response

    server = StandIn()
    server.paths["/"] = handle
    await server.start()
    print(server.url, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def _toggled(item: dict[str, Any], version: int) -> bytes:
    """The event by which a pod becomes ready, or by which it no longer is."""
    metadata = {**item["metadata"], "resourceVersion": str(version)}
    conditions = [{"type": "Ready", "status": str(version % 2 == 0)}]
    changed = {**item, "metadata": metadata, "status": {**item["status"], "conditions": conditions}}
    return msgspec.json.encode({"type": "MODIFIED", "object": changed}) + b"\n"


async def measure_change(directory: Path) -> None:
    print(f"CPU time of the watcher for one pod's change, {CHANGES} changes")
    costs = []
    for count in (10, PODS_LISTED):
        async with (
            nats_server(directory / f"nats-{count}") as nats,
            child("tests.benchmarks.bench_watcher", "serve", str(count), "changes") as server,
            views(nats, "default") as seen,
        ):
            kubeconfig = StandIn().kubeconfig(directory / f"{count}", server=await server.line())
            async with watcher(nats, "default", kubeconfig, *ALONE) as process:
                await seen[0].complete(count)
                await asyncio.sleep(2.0)
                used, began = _cpu(process.pid), seen[0].changes
                while seen[0].changes < began + CHANGES:  # noqa: ASYNC110 -- another process is waited for
                    await asyncio.sleep(CHANGED_EVERY)
                costs.append((_cpu(process.pid) - used) / (seen[0].changes - began))
        print(f"  with {count:<5} pods                            {1000 * costs[-1]:8.2f} ms")
    print(f"  ratio                                      {costs[1] / costs[0]:8.1f}")


async def measure_large(nats: NatsServer, directory: Path, parts: set[str]) -> None:
    async with (
        child("tests.benchmarks.bench_watcher", "serve", str(PODS_LISTED)) as server,
        views(nats, "default") as seen,
    ):
        kubeconfig = StandIn().kubeconfig(directory / "large", server=await server.line())
        began = time.monotonic()
        async with watcher(nats, "default", kubeconfig, *ALONE) as process:
            synced = max([await watch.complete(PODS_LISTED) for watch in seen]) - began
            used = _cpu(process.pid)
            if "start" in parts:
                print(f"{PODS_LISTED} pods")
                print(f"  from the start of the process to `synced`  {synced:8.2f} s       {held(synced, 5)}")
                print(f"  CPU until then                             {used:8.2f} s")
                print(f"  resident memory                            {_resident(process.pid) / 2**20:8.0f} MiB")
                print(f"  at its highest                             {_highest(process.pid) / 2**20:8.0f} MiB")
            if "idle" in parts:
                await asyncio.sleep(3.0)
                used, began = _cpu(process.pid), time.monotonic()
                await asyncio.sleep(IDLE)
                share = (_cpu(process.pid) - used) / (time.monotonic() - began)
                print(f"  share of a core while nothing changes      {share:8.2%}         {held(share * 100, 1, ' %')}")


def _highest(pid: int) -> int:
    """Bytes of resident memory at their highest (proc(5), VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no VmHWM")


async def main(parts: set[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if "visible" in parts:
            async with nats_server(directory / "nats") as nats:
                await measure_visible(nats, directory)
        if "change" in parts:
            await measure_change(directory)
        if parts & {"start", "idle"}:
            async with nats_server(directory / "nats-large") as nats:
                await measure_large(nats, directory, parts)


if __name__ == "__main__":
    logs.configure("error", "console")
    match sys.argv[1:]:
        case ["serve", count, *more]:
            asyncio.run(serve(int(count), bool(more)))
        case wanted:
            uvloop.run(main(set(wanted) or {"visible", "change", "start", "idle"}))
