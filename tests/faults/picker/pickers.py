"""Pickers that share a pool: what each is asked, and what each knows."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import httpx

from services.picker.app import PickerService
from shared.model import Endpoint
from tests.in_process import picker, serving
from tests.nats import NatsServer, free_port
from tests.protocol.collector.harness import Owner, endpoint
from tests.protocol.picker.test_prefix_sharing import answered, ask
from tests.protocol.process import TierProcess
from tests.soak.promises import Promise, measured
from tests.waiting import eventually


class PickerProcess(TierProcess):
    tier = "picker"

    def __init__(self, url: str, id: str, log: Path) -> None:
        ports = [f"--grpc-port={free_port()}", f"--grpc-health-port={free_port()}"]
        super().__init__(url, id, log, "--secure-serving=false", "--grpc-host=127.0.0.1", *ports)


def names(number: int, first: int = 0) -> list[Endpoint]:
    """So many endpoints."""
    return [endpoint(f"m{at}", 8000 + at) for at in range(first, first + number)]


class Pickers:
    """Pickers of one pool, in this process or in their own."""

    def __init__(self, nats: NatsServer, owner: Owner, stack: AsyncExitStack) -> None:
        self.nats = nats
        self._owner = owner
        self._stack = stack
        self._ports: list[int] = []
        self._numbers = count()
        self._wanted: set[str] = set()

    async def start(self, id: str, url: str = "", stack: AsyncExitStack | None = None) -> PickerService:
        """One in this process, once it is ready; it stops with the stack."""
        service = picker(url or self.nats.url, id=id)
        await (stack or self._stack).enter_async_context(serving(service))
        await eventually(lambda: service.readiness.ready, service.readiness.reasons)
        self._ports.append(service.admin_port)
        return service

    async def start_process(self, id: str) -> PickerProcess:
        """One of its own, once it is ready."""
        process = PickerProcess(self.nats.url, id, self.nats.directory / f"{id}.log")
        self._stack.callback(process.kill)
        await process.ready()
        self._ports.append(process.port)
        return process

    async def publish(self, endpoints: Sequence[Endpoint]) -> None:
        """The pool has exactly these; returns when NATS has them."""
        self._wanted = {endpoint.id for endpoint in endpoints}
        await self._owner.publish(endpoints)

    def offer(self, endpoints: Sequence[Endpoint]) -> None:
        """The pool has exactly these, as soon as there is a NATS."""
        self._wanted = {endpoint.id for endpoint in endpoints}
        self._owner.offer(endpoints)

    def pick(self, service: PickerService) -> None:
        """A prompt that nobody has asked before is routed, and answered."""
        stream = ask(service, f"{next(self._numbers)} " * 500)
        (decision,) = service.ring.newest(1)
        assert decision.picked, decision
        answered(stream, 200)
        stream.end()

    async def know_the_same(self) -> None:
        """Until what all know is equal byte for byte, and right."""
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:

            async def so() -> bool:
                urls = [f"http://127.0.0.1:{port}/debug/view" for port in self._ports]
                views = [answer.text for answer in await asyncio.gather(*(client.get(url) for url in urls))]
                assert all(view == views[0] for view in views), views
                assert {fact["fact"]["id"] for fact in json.loads(views[0])["facts"]} == self._wanted
                return True

            await eventually(so)

    async def measure(self, promise: Promise, since: float) -> None:
        """The time until all know the same."""
        await self.know_the_same()
        measured(promise, time.monotonic() - since)

    def __repr__(self) -> str:
        return f"<Pickers at {self._ports}>"
