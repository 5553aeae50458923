"""Tables: what they say, what is refused, and what peers make of them."""

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.flow_control.band import MAX_COST
from services.picker.flow_control.peers import EXPIRY, MAX_PEER_BANDS, MAX_ROWS, TABLE_WEIGHT, News, Peers
from services.picker.flow_control.queue_table import REST, unpack
from shared.bus.columns import flow_hash
from shared.bus.messages import MAX_BANDS, MAX_FLOWS, QueueTable
from tests.unit.services.picker.flow_control.flows import Picker, Room, Row, band, settings, table, tell


def rows(packed: QueueTable) -> list[Row]:
    assert packed.fault() is None
    return list(zip(*(column.tolist() for column in unpack(packed)), strict=True))


def test_a_table_says_what_waits_and_runs() -> None:
    picker = Picker(settings(bands={7: band()}), Room(1))
    done = picker.add("done", "a", tokens=10)
    picker.dispatch()
    picker.finish(done, 100, 50)
    picker.now = 1.0
    picker.add("runs", "a", tokens=20)
    picker.dispatch()
    picker.now = 2.0
    picker.add("waits", "b", tokens=30)
    picker.now = 2.5
    picker.add("waits too", "b", tokens=5)
    picker.add("high", "b", 7, tokens=2**40)
    a, b = flow_hash("a"), flow_hash("b")
    assert rows(picker.controller.table(3.0)) == [
        (7, b, 1, 2**32 - 1, 500, 0, 0, 0),
        (0, a, 0, 0, 0, 1, 2, 200),
        (0, b, 2, 35, 1000, 0, 0, 0),
    ]


def test_an_idle_flow_stays_until_peers_have_heard_of_it() -> None:
    picker = Picker()
    item = picker.add("x", "a")
    picker.dispatch()
    picker.finish(item, 5, 0)
    assert rows(picker.controller.table(1.4)) == [(0, flow_hash("a"), 0, 0, 0, 0, 1, 5)]
    assert rows(picker.controller.table(1.6)) == []


def test_what_servers_say_of_their_tokens_has_a_limit() -> None:
    picker = Picker()
    for number in range(300):  # two to the 63rd together
        item = picker.add(number, "a")
        picker.dispatch()
        picker.finish(item, 3 * 2**53, 2**53)
    [(*_, dispatched, served)] = rows(picker.controller.table(0.0))
    assert (dispatched, served) == (300, 300 * MAX_COST % 2**32)


def test_a_long_table_sums_up_the_smallest_flows() -> None:
    picker = Picker(settings(bands={7: band()}, max_rows=3), Room(0))
    for name in ["high", *"aaabbcdd"]:
        picker.add(name, name, 7 if name == "high" else 0)
        picker.now += 1
    rows_sent = rows(picker.controller.table(picker.now))
    assert rows_sent[:3] == [
        (7, flow_hash("high"), 1, 1, 9000, 0, 0, 0),
        (0, flow_hash("a"), 3, 3, 8000, 0, 0, 0),
        (0, flow_hash("b"), 2, 2, 5000, 0, 0, 0),
    ]
    assert rows_sent[3:] == [(0, REST, 3, 3, 3000, 0, 0, 0)]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"flows": b"x" * 7}, "flows has 7 bytes"),
        ({"priorities": b""}, "priorities has 0 bytes, 4 are needed"),
        ({"requests": b"x" * 8}, "requests has 8 bytes"),
        ({"served": b"x" * 5}, "served has 5 bytes"),
        ({"flows": b"x" * 8 * (MAX_FLOWS + 1)}, f"{MAX_FLOWS + 1} flows"),
        (
            {name: bytes(8 * 101 if name == "flows" else 4 * 101) for name in QueueTable.__struct_fields__}
            | {"priorities": np.arange(101, dtype="<i4").tobytes()},
            "101 bands",
        ),
    ],
)
def test_an_inconsistent_table_is_refused(change: dict[str, bytes], fault: str | None) -> None:
    found = msgspec.structs.replace(table((0, 1, 1, 1, 1, 1, 1, 1)), **change).fault()
    assert found is None if fault is None else found is not None and found.startswith(fault)


def test_a_table_is_the_same_after_its_way() -> None:
    sent = table((-5, 2**64 - 1, 1, 2, 3, 4, 5, 6))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=QueueTable) == sent
    assert rows(QueueTable()) == []


def columns(rows: int) -> st.SearchStrategy[dict[str, bytes]]:
    """Columns of so many rows of whatever, seldom with one that is too long."""
    sizes = {name: 8 if name == "flows" else 4 for name in QueueTable.__struct_fields__}
    extremes = st.sampled_from([b"\xff", b"\x00", b"\x7f", b"\x80"])
    return st.fixed_dictionaries(
        {
            name: st.binary(min_size=size * rows, max_size=size * rows + (rows == 3))
            | extremes.map(lambda byte, length=size * rows: byte * length)  # type: ignore[misc]
            for name, size in sizes.items()
        }
    )


@given(st.lists(st.integers(0, 3).flatmap(columns), max_size=4))
def test_any_bytes_are_refused_or_taken_in(tables: list[dict[str, bytes]]) -> None:
    picker = Picker(pool=Room(1))
    picker.add("a")
    picker.add("b")
    for number, bytes_of in enumerate(tables):
        foreign = QueueTable(**bytes_of)
        if foreign.fault() is None:
            picker.controller.apply("peer", 1, float(number), foreign, 0.0)
            picker.dispatch()
    picker.now = 10.0
    picker.dispatch()
    assert len(picker.running) == 1


@dataclass
class Heard:
    """A table that comes from a peer."""

    rows: list[Row]
    sent: float = 1.0
    run: int = 1
    sender: str = "one"
    at: float = 1.0


def hear(*tables: Heard) -> tuple[Peers, list[News]]:
    """(what is known after these tables, what was new with the last of them)."""
    peers, news = Peers(), []
    for heard in tables:
        news = peers.apply(heard.sender, heard.run, heard.sent, table(*heard.rows), heard.at)
    return peers, news


def known(peers: Peers, priority: int) -> dict[str, tuple[int, int]]:
    return {sender: (peer_band.requests, peer_band.running) for sender, _, peer_band in peers.of(priority)}


@pytest.mark.parametrize(
    ("tables", "expected", "waiting"),
    [
        ([Heard([(5, 1, 2, 0, 0, 3, 0, 0), (0, 1, 4, 0, 0, 0, 0, 0)])], {"one": (2, 3)}, {5: 2, 0: 4}),
        ([Heard([(5, 1, 2, 0, 0, 3, 0, 0)]), Heard([(5, 1, 1, 0, 0, 4, 0, 0)], 2.0)], {"one": (1, 4)}, {5: 1}),
        ([Heard([(5, 1, 2, 0, 0, 0, 0, 0)]), Heard([], 2.0)], {}, {}),
        # overtaken by a later one of its run; a new run begins its own time
        ([Heard([(5, 1, 2, 0, 0, 0, 0, 0)], 2.0), Heard([], 1.0)], {"one": (2, 0)}, {5: 2}),
        ([Heard([(5, 1, 2, 0, 0, 0, 0, 0)], 2.0), Heard([], 1.0, run=2)], {}, {}),
        (
            [Heard([(5, 1, 2, 0, 0, 0, 0, 0)]), Heard([(5, 1, 3, 0, 0, 1, 0, 0)], sender="a two")],
            {"a two": (3, 1), "one": (2, 0)},
            {5: 5},
        ),
        (
            [Heard([(5, 1, 2, 0, 0, 0, 0, 0)]), Heard([(5, 1, 9, 0, 0, 0, 0, 0)] * MAX_FLOWS, 2.0)],
            {"one": (9 * MAX_FLOWS, 0)},
            {5: 9 * MAX_FLOWS},
        ),
    ],
)
def test_the_last_table_of_a_peer_stands(
    tables: list[Heard], expected: dict[str, tuple[int, int]], waiting: dict[int, int]
) -> None:
    peers, _ = hear(*tables)
    assert known(peers, 5) == expected
    assert peers.waiting == waiting


A, B = (0, 1, 0, 0, 0, 0), (0, 2, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, [(*A, 5, 7)], []),  # nobody knows since when
        ([(*A, 5, 7)], [(*A, 5, 7)], []),
        ([(*A, 5, 7)], [(*A, 6, 9)], [News(0, 1, 1, 2)]),
        ([(*A, 5, 7)], [(*B, 3, 1), (*A, 6, 7)], [News(0, 2, 3, 1), News(0, 1, 1, 0)]),
        ([], [(*A, 3, 1)], [News(0, 1, 3, 1)]),
        ([(*A, 2**32 - 1, 2**32 - 5)], [(*A, 1, 5)], [News(0, 1, 2, 10)]),
        ([(*A, 5, 1000)], [(*A, 6, 2)], [News(0, 1, 1, 2)]),  # forgotten in between
        ([(*A, 5, 7), (0, REST, 1, 0, 0, 0, 9, 9)], [(*A, 6, 7), (*B, 3, 1)], [News(0, 1, 1, 0)]),
        ([(*A, 5, 7)], [(0, REST, 1, 0, 0, 0, 9, 9)], []),
        ([(7, 1, 0, 0, 0, 0, 5, 5)], [(*A, 6, 7), (7, 1, 0, 0, 0, 0, 5, 6)], [News(0, 1, 6, 7), News(7, 1, 0, 1)]),
    ],
)
def test_what_is_new_in_a_table(before: list[Row] | None, after: list[Row], expected: list[News]) -> None:
    first = [] if before is None else [Heard(before)]
    _, news = hear(*first, Heard(after, 2.0))
    assert news == expected


def test_a_silent_peer_stops_counting() -> None:
    peers, _ = hear(Heard([(5, 1, 2, 0, 0, 0, 0, 0)], at=10.0))
    assert peers.next_expiry() == 10.0 + EXPIRY
    assert peers.expire(9.999 + EXPIRY) == []
    assert peers.expire(10.0 + EXPIRY) == ["one"]
    assert (peers.waiting, len(peers)) == ({}, 0)


def test_a_peer_that_leaves_stops_counting() -> None:
    peers, _ = hear(Heard([(5, 1, 2, 0, 0, 0, 0, 0)]))
    peers.forget("one")
    peers.forget("nobody")
    assert (peers.waiting, len(peers)) == ({}, 0)


def test_rows_of_a_band_need_not_be_together() -> None:
    rows_sent = [(row % 3, row, row, 2 * row, row, 3 * row, 4 * row, 0) for row in range(1, 31)]
    peers, _ = hear(Heard(rows_sent))
    for priority in range(3):
        ((_, _, peer_band),) = peers.of(priority)
        mine = [row for row in range(1, 31) if row % 3 == priority]
        assert peer_band.flows.tolist() == mine
        assert peer_band.demands.tolist() == [4 * row for row in mine]
        sums = peer_band.requests, peer_band.tokens, peer_band.running, peer_band.dispatched
        assert sums == tuple(times * sum(mine) for times in (1, 2, 3, 4))
        assert peer_band.age == max(mine) / 1000


def many(rows: int, bands: int = 1, first: int = 0) -> list[Row]:
    return [(first + row % bands, row, 1, 1, 0, 0, 0, 0) for row in range(1, rows + 1)]


@pytest.mark.parametrize(
    ("tables", "counted"),
    [
        # senders and rows, one after the other
        ([("a", 2000), ("b", 2000), ("c", 2000), ("d", 2000), ("e", 2000)], "abcd"),
        ([("a", 2000), ("b", 2000), ("c", 2000), ("d", 2000), ("e", 1000), ("f", 1500), ("g", 900)], "efgbcd"),
        ([("a", 2000), ("b", 2000), ("c", 2000), ("d", 2000), ("e", 2000), ("a", 10), ("e", 1500)], "abcde"),
        ([(letter, 0) for letter in "abcdefgh"], "abcdefgh"),
    ],
)
def test_where_there_is_no_room_the_largest_tables_are_not_counted(tables: list[tuple[str, int]], counted: str) -> None:
    peers, _ = hear(
        *(Heard(many(rows), sender=sender, sent=float(sent)) for sent, (sender, rows) in enumerate(tables, 1))
    )
    waits = {sender for sender, _, _ in peers.of(0)}
    assert len(peers) == len(counted)
    assert waits == {sender for sender, rows in tables if rows and sender in counted}


def test_tables_without_rows_are_limited_too() -> None:
    peers, _ = hear(*(Heard([], sender=str(number)) for number in range(1000)))
    assert len(peers) == MAX_ROWS / TABLE_WEIGHT


def test_all_pickers_find_room_for_their_tables() -> None:
    pickers = {str(number): Picker(settings(band(max_requests=1000)), Room(0), str(number)) for number in range(13)}
    for picker in pickers.values():
        for number in range(1000):
            picker.add(number, f"flow-{number}")
    for round in range(1, 10):
        tell(pickers, now=round / 50)
    assert [picker.controller.peers.waiting for picker in pickers.values()] == [{0: 12_000}] * 13


def test_a_picker_tells_of_its_highest_bands() -> None:
    picker = Picker(settings(bands={priority: band() for priority in range(-100, 100)}), Room(0))
    for priority in range(-100, 100, 1):
        if priority % 4:
            picker.add(priority, priority=priority)
    rows_sent = rows(picker.controller.table(0.0))
    assert [row[0] for row in rows_sent] == [priority for priority in range(99, -100, -1) if priority % 4][:MAX_BANDS]


def test_bands_without_flows_take_no_room_in_a_table() -> None:
    picker = Picker(pool=Room(0))
    picker.controller.ensure_bands(range(90))
    for number in range(9):
        picker.controller.apply(str(number), 1, 1.0, table(), 1.0)
    for flow in ("a", "b", "c"):
        picker.add(flow, flow)
    assert {row[1] for row in rows(picker.controller.table(1.0))} == {flow_hash(flow) for flow in "abc"}


def test_bands_that_only_peers_know_are_limited() -> None:
    """Those that are known here count in any case."""
    picker = Picker(pool=Room(0))
    picker.controller.ensure_bands([-7])
    for number in range(30):
        rows_sent = table(*many(100, 100, 1000 * number), (-7, 1, 1, 1, 0, 0, 0, 0))
        picker.controller.apply(str(number), 1, 1.0, msgspec.structs.replace(rows_sent), 1.0)
    totals = picker.controller.totals(1.0)
    assert len(totals) == MAX_PEER_BANDS + 2
    assert list(totals) == sorted(totals, reverse=True)
    assert totals[-7][0] > 0
