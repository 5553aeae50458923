import asyncio
import gc
import weakref
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from fastapi.testclient import TestClient
from msgspec import structs
from prometheus_client import CollectorRegistry
from starlette.types import Message

from services.picker.admin.decisions import IN_FULL, DecisionRing, ring_routes
from services.picker.decision import SHOWN, Decision, RequestSummary
from services.picker.request import Refusal
from services.picker.scheduling.cycle import Samples
from services.picker.state.layout import Layout
from shared.service.admin import ProcessPages, build_app
from shared.service.pages import SLICE
from shared.service.readiness import Readiness
from tests.asgi import pieces
from tests.unit.services.picker.world import endpoint, request


def decision(request_id: str, at: float = 0.0) -> Decision:
    asked = RequestSummary.of(request(id=request_id))
    return Decision(request=asked, outcome=Refusal(status=503, message="no"), layout=Layout(), at=at)


def ring(*ids: str, size: int = 3) -> DecisionRing:
    made = DecisionRing(size)
    for at, id in enumerate(ids):
        made.add(decision(id, at))
    return made


def get(made: DecisionRing, path: str) -> tuple[int, Any]:
    app = build_app(ProcessPages(Readiness(), CollectorRegistry(), dict), ring_routes(made))
    answer = TestClient(app).get(path)
    return answer.status_code, answer.json()


def test_the_newest_are_kept() -> None:
    made = ring("a", "b", "c", "d")
    assert [decision.request.id for decision in made.newest(9)] == ["d", "c", "b"]
    assert [decision.request.id for decision in made.newest(2)] == ["d", "c"]
    assert (len(made), made.total, repr(made)) == (3, 4, "<DecisionRing 3 of 4>")


def test_a_ring_of_size_0_keeps_none() -> None:
    made = ring("a", size=0)
    assert (made.newest(9), made.total) == ([], 1)


@pytest.mark.parametrize(
    ("layouts", "size", "kept"),
    [
        ("aabbc", 9, [2, 3, 4]),
        ("aaaaa", 9, [0, 1, 2, 3, 4]),
        ("abcde", 9, [3, 4]),
        ("abcde", 1, [4]),
        ("aabbb", 2, [3, 4]),
        ("abbbc", 3, [2, 3, 4]),
    ],
)
def test_decisions_on_the_oldest_layouts_go_first(layouts: str, size: int, kept: list[int]) -> None:
    """Two layouts are kept."""
    named = {name: Layout() for name in layouts}
    made = DecisionRing(size, layouts=2)
    for at, name in enumerate(layouts):
        made.add(structs.replace(decision("x", at), layout=named[name]))
    assert [decision.at for decision in reversed(made.newest(9))] == kept


@pytest.mark.parametrize("id", ["a", "x" * 5 * SHOWN])
def test_several_decisions_on_one_request_id_of_any_length_are_all_found_the_newest_first(id: str) -> None:
    made = ring(id, "b", id)
    assert [decision.at for decision in made.of_request(id, 9)] == [2, 0]
    assert [decision.at for decision in made.of_request(id, 1)] == [2]
    assert made.of_request("c", 9) == []


def test_decisions_are_listed() -> None:
    status, body = get(ring("a", "b"), "/debug/decisions?limit=1")
    assert (status, body["total"], [decision["request_id"] for decision in body["decisions"]]) == (200, 2, ["b"])


def test_a_decision_is_explained_by_its_request_id_whatever_characters_it_has() -> None:
    status, body = get(ring("a/b?c d"), "/debug/decisions/a/b%3Fc%20d")
    assert status == 200
    assert [decision["request_id"] for decision in body["decisions"]] == ["a/b?c d"]


def test_at_most_as_many_are_explained_as_asked_for() -> None:
    made = ring(*["a"] * 20, size=20)
    assert len(get(made, "/debug/decisions/a")[1]["decisions"]) == 10
    assert len(get(made, "/debug/decisions/a?limit=15")[1]["decisions"]) == 15


def test_an_unknown_request_id_is_a_404_that_says_how_many_were_looked_at() -> None:
    status, body = get(ring("a"), "/debug/decisions/b")
    assert (status, body) == (404, {"error": "no decision on a request 'b' among the last 1"})


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "1.5", "many", "", "٣", "9" * 20])
def test_a_limit_out_of_range_is_refused_by_name_and_value(limit: str) -> None:
    status, body = get(ring("a"), f"/debug/decisions?limit={limit}")
    assert (status, body) == (400, {"error": ANY})
    assert body["error"].startswith("limit: Input should be ")
    assert body["error"].endswith(f", not {limit!r}")
    assert get(ring("a"), "/debug/decisions/a?limit=101")[0] == 400


async def test_a_decision_is_sent_in_pieces_of_some_endpoints() -> None:
    made, layout = DecisionRing(1), Layout([endpoint(f"a{number}") for number in range(3 * SLICE)])
    samples = {"queue": Samples(layout.all_rows, np.zeros(len(layout)))}
    made.add(structs.replace(decision("a"), layout=layout, samples=samples))
    app = build_app(ProcessPages(Readiness(), CollectorRegistry(), dict), ring_routes(made))
    counts = [piece.count(b'"fresh"') for piece in await pieces(app, "/debug/decisions/a")]
    assert (max(counts), sum(counts)) == (SLICE, 3 * SLICE)


async def test_few_decisions_stay_for_clients_that_read_slowly() -> None:
    made, reads = DecisionRing(1), asyncio.Event()
    app = build_app(ProcessPages(Readiness(), CollectorRegistry(), dict), ring_routes(made))
    statuses: list[int] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        await reads.wait()

    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.4"},
        "method": "GET",
        "path": "/debug/decisions/a",
        "query_string": b"",
        "headers": [],
    }
    layouts: list[weakref.ref[Layout]] = []
    clients: list[asyncio.Task[None]] = []
    for _ in range(3 * IN_FULL):
        layout = Layout()
        layouts.append(weakref.ref(layout))
        made.add(structs.replace(decision("a"), layout=layout))
        clients.append(asyncio.create_task(app(scope, receive, send)))
        for _ in range(50):
            await asyncio.sleep(0)
    del layout
    gc.collect()
    assert sum(layout() is not None for layout in layouts) == IN_FULL + 1  # that of the ring
    reads.set()
    await asyncio.wait(clients)
    assert statuses == [200] * len(clients)
