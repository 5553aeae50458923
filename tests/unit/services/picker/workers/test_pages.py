"""How the admin pages of workers become those of their supervisor."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

import httpx
import pytest
from fastapi import Response
from fastapi.responses import StreamingResponse
from prometheus_client import CollectorRegistry, Gauge
from starlette.types import Message

from services.picker.admin.decisions import decision_routes
from services.picker.workers.exposition import STEP, Family
from services.picker.workers.pages import AT_ONCE, WorkerPages
from services.picker.workers.worker import Unanswered
from shared.service.admin import build_app
from shared.service.pages import PIECE
from shared.service.process import Service
from shared.service.readiness import Readiness
from tests.waiting import eventually

SCOPE: dict[str, Any] = {"type": "http", "asgi": {"spec_version": "2.4"}}
CONFIGURED = {"pool": "a/b", "origin": "pool.yaml", "revision": "1"}
LATER = {**CONFIGURED, "revision": "2"}


async def wait_for_ever() -> Message:
    """A client that says nothing more."""
    await asyncio.Event().wait()
    raise AssertionError


class FakeWorker:
    """Answers from a table of paths; without an entry it is busy."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.restarts = 0
        self.pages: dict[str, tuple[int, Any]] = {}

    async def get(self, path: str, timeout: float) -> tuple[int, bytes]:
        if path not in self.pages:
            raise Unanswered("busy")
        status, page = self.pages[path]
        return status, page.encode() if isinstance(page, str) else json.dumps(page).encode()

    def about(self) -> dict[str, object]:
        return {"pid": 1}


class Supervisor:
    """With two workers."""

    id, tier = "p", "picker"

    def __init__(self) -> None:
        self.readiness, self.registry = Readiness(), CollectorRegistry()
        self.workers: Any = [FakeWorker("p-0"), FakeWorker("p-1")]
        self.worker_pages = WorkerPages(cast(Service, self), self.workers)

    def state(self) -> Mapping[str, Any]:
        return {"grpc_port": 9002}

    def say(self, path: str, *pages: Any, status: int = 200) -> None:
        """The workers answer with these; None: not at all."""
        for worker, page in zip(self.workers, pages, strict=True):
            worker.pages = {} if page is None else {path: (status, page)}


@pytest.fixture
def supervisor() -> Supervisor:
    return Supervisor()


@pytest.fixture
async def client(supervisor: Supervisor) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app(
        supervisor.worker_pages, decision_routes(supervisor.worker_pages.newest, supervisor.worker_pages.of_request)
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield client


def said(reasons: Mapping[str, str] | None = None, notes: Mapping[str, str] | None = None, **config: str) -> Any:
    return {"reasons": reasons or {}, "notes": notes or {}, "configurations": [{**CONFIGURED, **config}]}


READINESS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("all are ready", [said(), said()], {"ready": True, "reasons": {}, "notes": {}, "configurations": [CONFIGURED]}),
    (
        "they say the same",
        [said({"view": "empty"}, {"bus": "odd"}), said({"view": "empty"}, {"bus": "odd"})],
        {"ready": False, "reasons": {"view": "empty"}, "notes": {"bus": "odd"}},
    ),
    (
        "one says it",
        [said(), said({"view": "empty"}, {"bus": "odd"})],
        {"ready": False, "reasons": {"view (p-1)": "empty"}, "notes": {"bus (p-1)": "odd"}},
    ),
    (
        "they say different things",
        [said({"view": "empty"}), said({"view": "old"}, revision="2")],
        {"reasons": {"view (p-0)": "empty", "view (p-1)": "old"}, "configurations": [CONFIGURED, LATER]},
    ),
    ("one gives no answer", [None, said()], {"ready": False, "reasons": {"p-0": "the worker is busy"}}),
]


@pytest.mark.parametrize(("answers", "page"), [case[1:] for case in READINESS], ids=[case[0] for case in READINESS])
async def test_readiness_is_that_of_all_workers(
    answers: list[Any], page: dict[str, Any], client: httpx.AsyncClient, supervisor: Supervisor
) -> None:
    supervisor.say("/readyz", *answers, status=503)
    answer = await client.get("/readyz")
    assert page.items() <= answer.json().items()
    assert answer.status_code == (200 if answer.json()["ready"] else 503)


async def test_the_supervisor_has_reasons_of_its_own(client: httpx.AsyncClient, supervisor: Supervisor) -> None:
    supervisor.readiness.require("process", lambda: "stopping")
    supervisor.say("/readyz", said(), said())
    assert (await client.get("/readyz")).json()["reasons"] == {"process": "stopping"}


async def test_the_state_has_that_of_each_worker(client: httpx.AsyncClient, supervisor: Supervisor) -> None:
    state = {"id": "p-0", "configurations": [CONFIGURED], "value": 1.5}
    supervisor.say("/debug/state", state, None)
    found = (await client.get("/debug/state")).json()
    assert found["workers"] == {
        "p-0": {"pid": 1, "picker": state, "missing": None},
        "p-1": {"pid": 1, "picker": None, "missing": "busy"},
    }
    assert (found["id"], found["grpc_port"], found["configurations"]) == ("p", 9002, [CONFIGURED])


def decisions(*times: str, total: int = 0) -> Any:
    return {"total": total, "decisions": [{"request_id": time, "at": f"2026-05-04T09:30:{time}Z"} for time in times]}


async def test_decisions_are_in_the_order_of_time(client: httpx.AsyncClient, supervisor: Supervisor) -> None:
    supervisor.say("/debug/decisions?limit=3", decisions("05.1", "02.0", total=9), decisions("05.0", "01.0", total=4))
    page = (await client.get("/debug/decisions?limit=3")).json()
    assert [decision["request_id"] for decision in page["decisions"]] == ["05.1", "05.0", "02.0"]
    assert page.keys() == {"total", "decisions"}
    assert page["total"] == 13


async def test_decisions_name_a_missing_worker(client: httpx.AsyncClient, supervisor: Supervisor) -> None:
    supervisor.say("/debug/decisions?limit=100", None, decisions("01.0", total=1))
    page = (await client.get("/debug/decisions")).json()
    assert (page["total"], page["missing"]) == (1, {"p-0": "busy"})


async def test_decisions_on_a_request_are_those_of_whichever_worker(
    client: httpx.AsyncClient, supervisor: Supervisor
) -> None:
    path = "/debug/decisions/a%2Fb%3Fc?limit=10"
    supervisor.say(path, {"error": "none"}, decisions("01.0"), status=404)
    page = (await client.get(path)).json()
    assert [decision["request_id"] for decision in page["decisions"]] == ["01.0"]


async def test_a_request_without_a_decision_is_not_found(client: httpx.AsyncClient, supervisor: Supervisor) -> None:
    supervisor.say("/debug/decisions/x?limit=10", {"error": "none"}, None, status=404)
    answer = await client.get("/debug/decisions/x")
    assert (answer.status_code, answer.json()) == (
        404,
        {"error": "no worker has a decision on a request 'x'; p-1 is busy"},
    )


async def test_metrics_are_those_of_the_workers_and_the_supervisor(
    client: httpx.AsyncClient, supervisor: Supervisor
) -> None:
    def page(value: int) -> str:
        return f"# HELP picks_total Picks\n# TYPE picks_total counter\npicks_total {value}.0\n"

    Gauge("up", "Up", registry=supervisor.registry).set(1)
    own = "# HELP up Up\n# TYPE up gauge\nup 1.0\n"
    supervisor.say("/metrics", page(1), page(2))
    assert (await client.get("/metrics")).text == page(3) + own
    supervisor.say("/metrics", page(5), None)
    assert (await client.get("/metrics")).text == page(7) + own
    assert dict(supervisor.worker_pages.missing) == {"p-1": "busy"}
    supervisor.worker_pages.ended(supervisor.workers[0])
    supervisor.say("/metrics", page(1), page(2))
    assert (await client.get("/metrics")).text == page(8) + own


async def test_a_worker_that_ends_while_its_page_is_joined_counts_once() -> None:
    """Whenever it ends."""
    page = "# TYPE picks_total counter\npicks_total{} 1000.0\n"
    page += "# TYPE other_total counter\n" + "".join(f'other_total{{n="{n}"}} 1.0\n' for n in range(2 * STEP))
    found: list[float] = []
    for turns in range(30):
        supervisor = Supervisor()
        pages, ending = supervisor.worker_pages, supervisor.workers[0]

        async def picks(pages: WorkerPages = pages) -> float:
            response = cast(StreamingResponse, await pages.metrics())
            text = b"".join([cast(bytes, piece) async for piece in response.body_iterator]).decode()
            [line] = [line for line in text.splitlines() if line.startswith("picks_total{")]
            return float(line.split()[1])

        async def end(turns: int = turns, pages: WorkerPages = pages, ending: Any = ending) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            pages.ended(ending)
            ending.restarts += 1

        supervisor.say("/metrics", page, page)
        await picks()
        ends = asyncio.create_task(end())
        found.append(await picks())
        await ends
    assert found == [2000.0] * 30


@pytest.mark.parametrize("found", [2, 1, 0])
async def test_the_views_of_workers_are_sent_one_by_one(supervisor: Supervisor, found: int) -> None:
    pages: list[Any] = [{"endpoints": [number]} for number in range(found)]
    supervisor.say("/debug/view", *pages, *[None] * (2 - found))
    pieces: list[bytes] = []

    async def send(message: Message) -> None:
        pieces.append(message.get("body", b""))

    await (await supervisor.worker_pages.view())(SCOPE, wait_for_ever, send)
    answer = json.loads(b"".join(pieces))
    assert answer.pop("workers") == {f"p-{number}": page for number, page in enumerate(pages)}
    assert list(answer.get("missing", ())) == [f"p-{number}" for number in range(found, 2)]
    assert sum(b"endpoints" in piece for piece in pieces) == found


@pytest.mark.parametrize("path", ["view", "state", "decisions", "decisions/r"])
async def test_few_large_pages_are_made_at_once(supervisor: Supervisor, path: str) -> None:
    """Clients that read slowly make others wait, and keep no more answers of workers in memory."""
    asked: list[str] = []
    decisions = [{"at": "2026", "text": "x" * 10_000}] * 100
    page = json.dumps({"configurations": [], "decisions": decisions, "total": 1}).encode()

    async def get(path: str, timeout: float) -> tuple[int, bytes]:
        asked.append(path)
        return 200, page

    for worker in supervisor.workers:
        worker.get = get
    pages = supervisor.worker_pages
    routes: dict[str, Callable[[], Awaitable[Response]]] = {
        "view": pages.view,
        "state": pages.debug_state,
        "decisions": partial(pages.newest, 200),
        "decisions/r": partial(pages.of_request, "r", 100),
    }
    reads = asyncio.Event()
    most = 0

    async def send(message: Message) -> None:
        nonlocal most
        most = max(most, len(message.get("body", b"")))
        await reads.wait()

    async def request() -> None:
        await (await routes[path]())(SCOPE, wait_for_ever, send)

    clients = [asyncio.create_task(request()) for _ in range(3 * AT_ONCE)]
    for _ in range(1000):
        await asyncio.sleep(0)
    assert len(asked) == AT_ONCE * len(supervisor.workers)
    for leaving in clients[:AT_ONCE]:
        leaving.cancel()
    reads.set()
    await asyncio.wait(clients)
    assert len(asked) == 3 * AT_ONCE * len(supervisor.workers)
    assert most <= 2 * PIECE


async def test_of_metrics_that_a_client_reads_slowly_only_the_text_stays(supervisor: Supervisor) -> None:
    page = "# HELP slow Slow\n# TYPE slow gauge\n" + "".join(f'slow{{n="{number}"}} 1\n' for number in range(3_000))
    under_way = most = 0

    async def get(path: str, timeout: float) -> tuple[int, bytes]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return 200, page.encode()

    for worker in supervisor.workers:
        worker.get = get
    reads, sent = asyncio.Event(), list[int]()

    async def send(message: Message) -> None:
        if body := message.get("body"):
            sent.append(len(body))
            await reads.wait()

    async def request() -> None:
        await (await supervisor.worker_pages.metrics())(SCOPE, wait_for_ever, send)

    clients = [asyncio.create_task(request()) for _ in range(3 * AT_ONCE)]
    await eventually(lambda: len(sent) == len(clients))
    assert not [kept for kept in gc.get_objects() if isinstance(kept, Family) and kept.name == "slow"]
    assert most <= AT_ONCE * len(supervisor.workers)
    reads.set()
    await asyncio.wait(clients)
    assert max(sent) <= PIECE
