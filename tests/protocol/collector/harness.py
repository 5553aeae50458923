"""What the collector's tests share: somebody who owns the facts, a reader of frames, collectors, and odd servers."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from services.collector.app import CollectorService
from services.collector.settings import CollectorSettings
from shared.attributes import AttributeKey
from shared.bus.columns import unpack_ages, unpack_floats
from shared.bus.connection import Bus
from shared.bus.frame_reader import FrameReader
from shared.bus.messages import Frame
from shared.bus.publisher import FactPublisher
from shared.bus.subjects import Subjects, fact_key, pool_token
from shared.model import Configuration, Endpoint, Fact
from tests.in_process import serving
from tests.protocol.process import TierProcess
from tests.waiting import TIMEOUT, eventually

POOL = pool_token("default", "default")


def endpoint(name: str, port: int, *, address: str = "127.0.0.1", **labels: str) -> Endpoint:
    engine = labels.pop("engine", "")
    named = {"llm-d.ai/engine-type": engine} if engine else {}
    return Endpoint(id=f"default/{name}", name=name, address=address, port=port, labels=named | labels)


class Owner:
    """Stands for the watcher: owns the endpoints and the configuration of the pool."""

    def __init__(self, url: str) -> None:
        self._bus = Bus(url, name="owner")
        self._publisher = FactPublisher(self._bus, Subjects(), "owner")
        self._task: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        await self._bus.start()
        await self._bus.wait_connected(TIMEOUT)
        self._task = asyncio.create_task(self._publisher.run())

    async def publish(self, endpoints: Sequence[Endpoint], config: str | None = None, *others: Fact) -> None:
        """Have exactly these facts on the bus."""
        self.offer(endpoints, config, *others)
        await eventually(lambda: self._publisher.published, lambda: self._publisher)

    def offer(self, endpoints: Sequence[Endpoint], config: str | None = None, *others: Fact) -> None:
        """Have them on the bus as soon as there is one."""
        configs = [] if config is None else [Configuration(text=config, origin="test")]
        facts: list[Fact] = [*endpoints, *configs, *others]
        self._publisher.update({fact_key(POOL, fact): fact for fact in facts}, [POOL])

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._bus.close()


class Frames:
    """A picker's view of the attributes: the newest value of each, from whom, and how old it is."""

    def __init__(self, url: str) -> None:
        self.bus = Bus(url, name="reader")
        self.reader = FrameReader(self.bus, Subjects(), POOL, self._take)
        self._seen: dict[tuple[str, str], tuple[Any, float, str]] = {}
        """(endpoint, wire name) -> value, when it was seen (monotonic), sender."""
        self.senders: list[str] = []
        """Of every frame that came."""

    async def start(self) -> None:
        await self.reader.start()
        await self.bus.start()
        await self.bus.wait_connected(TIMEOUT)

    async def close(self) -> None:
        await self.reader.close()
        await self.bus.close()

    def _take(self, frame: Frame, extra: float) -> None:
        now = time.monotonic()
        self.senders.append(frame.sender)
        for wire, packed in frame.ages.items():
            ages = unpack_ages(packed)
            values = frame.objects.get(wire)
            if values is None:
                values = [
                    None if np.isnan(unpack_float) else float(unpack_float)
                    for unpack_float in unpack_floats(frame.columns[wire])
                ]
            for id, value, age in zip(frame.ids, values, ages, strict=True):
                seen = now - float(age) - extra
                before = self._seen.get((id, wire))
                if value is not None and (before is None or seen > before[1]):
                    self._seen[(id, wire)] = (value, seen, frame.sender)

    def value(self, name: str, key: AttributeKey[Any]) -> Any:
        found = self._seen.get((f"default/{name}", key.wire))
        return None if found is None else found[0]

    def values(self, name: str) -> dict[str, Any]:
        """All attributes of an endpoint, by their short names."""
        return {
            wire.partition("/")[0]: value for (id, wire), (value, _, _) in self._seen.items() if id == f"default/{name}"
        }

    def age(self, name: str, key: AttributeKey[Any]) -> float:
        found = self._seen.get((f"default/{name}", key.wire))
        return float("inf") if found is None else time.monotonic() - found[1]

    def sender(self, name: str, key: AttributeKey[Any]) -> str | None:
        found = self._seen.get((f"default/{name}", key.wire))
        return None if found is None else found[2]


@asynccontextmanager
async def collector(url: str, **settings: Any) -> AsyncIterator[CollectorService]:
    """A collector in this process, started; stopped cleanly at the end."""
    common = {"nats_url": (url,), "admin_host": "127.0.0.1", "admin_port": 0, "drain_timeout": 2.0}
    async with serving(CollectorService(CollectorSettings(**{**common, **settings}))) as service:
        yield service


class CollectorProcess(TierProcess):
    tier = "collector"


Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Answers one request on a connection; the request has been read."""


def answer(body: bytes, *, status: str = "200 OK", headers: str = "Content-Type: text/plain; version=0.0.4") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class OddServer:
    """A server that answers as a test wants it to, down to the byte."""

    def __init__(self, behaviour: Behaviour | bytes, *, ssl: Any = None) -> None:
        self.behaviour = behaviour
        self._ssl = ssl
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.requests: list[float] = []
        """When each request came, in monotonic seconds."""
        self.heads: list[bytes] = []
        self.connections = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.port = 0

    async def __aenter__(self) -> "OddServer":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._ssl)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.connections += 1
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                self.requests.append(time.monotonic())
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                try:
                    if isinstance(self.behaviour, bytes):
                        writer.write(self.behaviour)
                    else:
                        await self.behaviour(reader, writer)
                    await writer.drain()
                finally:
                    self.in_flight -= 1
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has left
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            self._connections.discard(task)
            writer.close()


def vllm(waiting: float, running: float = 1.0) -> bytes:
    """A small page of a vLLM server."""
    return answer(
        b"# TYPE vllm:num_requests_waiting gauge\n"
        + f'vllm:num_requests_waiting{{model_name="m"}} {waiting}\n'.encode()
        + f'vllm:num_requests_running{{model_name="m"}} {running}\n'.encode()
    )
