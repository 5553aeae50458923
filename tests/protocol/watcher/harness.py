"""What the watcher's tests share: a reader of what it publishes, watchers in this process and as processes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from services.watcher.app import WatcherService
from services.watcher.lookup import Lookup
from services.watcher.settings import WatcherSettings
from shared.bus.connection import Bus
from shared.bus.facts import Delete, Event, Reset, Upsert
from shared.bus.replica import Replica
from shared.bus.subjects import Subjects, parse_key, pool_token
from shared.model import Fact
from tests.in_process import serving
from tests.nats import NatsServer
from tests.protocol.process import TierProcess
from tests.waiting import TIMEOUT, eventually

POOL = pool_token("default", "default")


class Reader:
    """A picker's view of the facts: what there is now, and every event that led to it."""

    def __init__(self, url: str | Sequence[str], pool: str = POOL, **login: Any) -> None:
        self.bus = Bus(url, name="reader", **login)
        self.events: list[Event] = []
        self.replica = Replica(self.bus, Subjects(), pool, self.events.append)

    async def start(self) -> None:
        await self.replica.start()
        await self.bus.start()

    async def close(self) -> None:
        await self.replica.close()
        await self.bus.close()

    def facts(self, kind: str) -> dict[str, Fact]:
        """The facts of a kind by name."""
        found = ((parse_key(key), fact) for key, fact in self.replica.facts().items())
        return {key.name: fact for key, fact in found if key.kind == kind}

    @property
    def endpoints(self) -> list[str]:
        """Names of the endpoints, without the namespace."""
        return sorted(id.removeprefix("default/") for id in self.facts("endpoint"))

    async def sees(self, *names: str) -> None:
        await eventually(lambda: self.replica.synced and self.endpoints == list(names), f"endpoints {names}")

    def ever_had(self, since: int = 0) -> set[str]:
        """The names of all endpoints that events from position `since` on brought."""
        names: set[str] = set()
        for event in self.events[since:]:
            keys = list(event.facts) if isinstance(event, Reset) else [event.key] if isinstance(event, Upsert) else []
            names |= {key.name for each_key in keys if (key := parse_key(each_key)).kind == "endpoint"}
        return {name.removeprefix("default/") for name in names}

    def deleted(self, since: int = 0) -> set[str]:
        """The names of all endpoints that a Delete, or a Reset without them, took away."""
        return {
            parse_key(event.key).name.removeprefix("default/")
            for event in self.events[since:]
            if isinstance(event, Delete) and parse_key(event.key).kind == "endpoint"
        }


R = TypeVar("R", bound=Reader)


def reader(url: str | Sequence[str], **login: Any) -> AbstractAsyncContextManager[Reader]:
    """A reader of the default pool."""
    return started(Reader(url, **login))


@asynccontextmanager
async def started(made: R) -> AsyncIterator[R]:
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def watcher(url: str, lookup: Lookup | None = None, **settings: Any) -> AsyncIterator[WatcherService]:
    """A watcher in this process, started."""
    common = {"nats_url": (url,), "admin_host": "127.0.0.1", "admin_port": 0, "drain_timeout": 2.0}
    options = WatcherSettings(**{**common, "rescan_interval": 0.2, **settings})
    async with serving(WatcherService(options, lookup)) as service:
        yield service


class WatcherProcess(TierProcess):
    tier = "watcher"

    def __init__(self, url: str, id: str, log: Path, *flags: str) -> None:
        super().__init__(url, id, log, "--rescan-interval=200ms", *flags)

    async def leads(self) -> bool:
        leads: bool = (await self.state())["leadership"]["leads"]
        return leads


@asynccontextmanager
async def pair(nats: NatsServer, directory: Path, files: Path) -> AsyncIterator[tuple[WatcherProcess, WatcherProcess]]:
    """Two processes on the same files: the active one, and the one on standby."""
    with ExitStack() as stack:
        started: list[WatcherProcess] = []
        for id in ("first", "second"):
            started.append(WatcherProcess(nats.url, id, directory / f"{id}.log", f"--endpoints-file={files}"))
            stack.callback(started[-1].close)
        for each in started:
            await each.ready()
        yield await by_role(*started)


async def by_role(watcher_process: WatcherProcess, other: WatcherProcess) -> tuple[WatcherProcess, WatcherProcess]:
    """The active one of two, and the one on standby, once one leads: one that stood still has lost the lease."""

    async def sorted_out() -> tuple[WatcherProcess, ...]:
        leading = (await watcher_process.leads(), await other.leads())
        return {(True, False): (watcher_process, other), (False, True): (other, watcher_process)}.get(leading, ())

    leader, standby = await eventually(sorted_out, "one of them leads")
    return leader, standby


def endpoints_text(*names: str) -> str:
    """An endpoints file: `name` is at an address of its own."""
    if not names:
        return "endpoints: []\n"
    return "endpoints:\n" + "".join(
        f"- {{name: {name}, address: 10.0.0.{1 + sum(map(ord, name)) % 250}, port: 8000}}\n" for name in names
    )


def replace(path: Path, text: str) -> None:
    """Put a new file in the place of an old one, as a careful writer does."""
    part = path.with_name(f".{path.name}.new")
    part.write_text(text)
    part.rename(path)


async def model_servers(admin_port: int) -> set[str]:
    """The endpoints of Envoy's cluster, as `address:port`."""
    async with httpx.AsyncClient(timeout=TIMEOUT) as client:
        answer = await client.get(f"http://127.0.0.1:{admin_port}/clusters")
    assert answer.status_code == 200
    lead, tail = "model-servers::", "::cx_active::"  # one line an endpoint: model-servers::[::1]:8002::cx_active::0
    return {
        line.removeprefix(lead).split(tail)[0]
        for line in answer.text.splitlines()
        if line.startswith(lead) and tail in line
    }
