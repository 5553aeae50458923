"""What a picker knows is told in slices, however much it is."""

from types import SimpleNamespace
from typing import Any

import msgspec

from services.picker.reports.view import view
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
