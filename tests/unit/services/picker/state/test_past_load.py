"""The load in flight that decisions keep is that of their moment, whatever comes later."""

from typing import Any

import numpy as np
import pytest

from services.picker.state.inflight import InFlight
from services.picker.state.layout import Layout
from services.picker.state.past_load import MAX_CHANGES
from shared.bus.columns import endpoint_hash, pack_counts, pack_hashes
from shared.bus.messages import Load
from shared.model import Endpoint

A, B = (Endpoint(id=f"pool/{name}", name=name, address=f"10.0.0.{at}", port=8000) for at, name in enumerate("ab", 1))


@pytest.fixture
def table() -> InFlight:
    table = InFlight()
    table.relayout(Layout([A, B]))
    return table


def peer_load(requests: int, **fields: Any) -> Load:
    ids, counts = pack_hashes([endpoint_hash(B.id)]), pack_counts([requests])
    return Load(sender="peer", run=1, sent=1.0, ids=ids, requests=counts, tokens=counts, **fields)


def expected(table: InFlight) -> list[list[float]]:
    rows = np.arange(2)
    return [table.expected_requests(rows).tolist(), table.expected_tokens(rows).tolist()]


def test_every_snapshot_stays_what_the_table_was(table: InFlight) -> None:
    kept: list[tuple[Any, Any]] = []
    charges: list[Any] = []
    for step in range(2 * MAX_CHANGES):
        if step % 3 == 2:
            charges.pop(0).release()
        else:
            charges.append(table.charge((A, B)[step % 2].id, step))
        if step == MAX_CHANGES // 2:
            table.apply(peer_load(5, sequence=1), 1.0)
        if step == MAX_CHANGES:
            table.published()
        if step == MAX_CHANGES + MAX_CHANGES // 2:
            table.apply(peer_load(0, sequence=2, leaving=True), 1.1)
        kept.append((table.snapshot(), expected(table)))

    for snapshot, then in kept:
        assert [column.tolist() for column in snapshot.tables()] == then


def test_snapshots_between_two_changes_of_peers_share_a_table(table: InFlight) -> None:
    first = table.snapshot()
    table.charge(A.id, 7)

    assert table.snapshot().table is first.table


def test_another_layout_leaves_snapshots_alone(table: InFlight) -> None:
    table.charge(B.id, 7)
    before = table.snapshot()
    table.relayout(Layout([B]))
    table.charge(B.id, 1)

    assert [column.tolist() for column in before.tables()] == [[0.0, 1.0], [0.0, 7.0]]
    assert [column.tolist() for column in table.snapshot().tables()] == [[2.0], [8.0]]
