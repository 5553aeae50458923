"""What a picker knows is told in slices, however much it is."""

from types import SimpleNamespace
from typing import Any

import msgspec

from services.picker.decision import Progress
from services.picker.reports.view import durations, view
from services.picker.request import Refusal, Route
from shared.bus.query_messages import ViewQuery
from shared.service.pages import SLICE
from tests.unit.services.picker.world import NOW, load, pool

SIZE = 2 * SLICE + 1


def test_no_piece_of_the_tables_of_load_has_more_than_a_slice() -> None:
    names = [f"e{number:05}" for number in range(SIZE)]
    picker = pool(*names)
    for peer in ("a", "c"):
        picker.apply_load(load(peer, dict.fromkeys(reversed(names), (2, 30))), NOW)
    for name in names:
        picker.in_flight.charge(name, 7)
    replica = SimpleNamespace(epoch=1, extent=lambda: (SimpleNamespace(digest=1), 0), entries=list)
    parts: Any = SimpleNamespace(view=picker, replica=replica)
    pieces = list(view(parts, "pool", "b", ViewQuery()))
    document = msgspec.json.decode(b"".join(pieces))
    assert document["load"] == [
        {"picker": id, "endpoints": dict.fromkeys(names, row)}
        for id, row in (("a", [2, 30]), ("b", [1, 7]), ("c", [2, 30]))
    ]
    assert [*document["load"][1]["endpoints"]] == names, "sorted"
    assert max(piece.count(b"[") for piece in pieces) <= SLICE


def test_the_seconds_of_an_endpoints_requests_and_of_the_others() -> None:
    layout = SimpleNamespace(endpoints=[SimpleNamespace(id="slow"), SimpleNamespace(id="fast")])

    def decision(row: int, seconds: float | None, **progress: Any) -> Any:
        made = Progress(seconds=seconds, **progress)
        route = Route(destinations=("10.0.0.1:8000",))
        return SimpleNamespace(progress=made, outcome=route, layout=layout, picked=(row,), monotonic=NOW - 9.0)

    decisions = [
        decision(0, 8.0),
        decision(0, None),  # for nine seconds
        decision(1, None),
        decision(1, 1.0),
        decision(1, 2.0),
        decision(0, 3.0, endpoint="fast"),  # a fallback served
        decision(0, 0.1, aborted=True),
        SimpleNamespace(progress=Progress(), outcome=Refusal(status=429, message="")),
    ]
    assert [*durations(decisions, "slow", NOW).values()] == [2, 8.5, 3, 2.0]
    assert durations(decisions, "fast", NOW)["requests"] == 4
    nobody = durations(decisions[:1], "slow", NOW)
    assert (nobody["requests"], nobody["requests_elsewhere"], nobody["seconds_elsewhere"]) == (1, 0, None)
