import math
import sys
import tracemalloc

import pytest

from shared.attributes import ACTIVE_MODELS, KV_CACHE_USAGE, REACHABLE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from shared.bus.columns import endpoint_hash, pack_ages, pack_counts, pack_floats, pack_hashes
from shared.bus.facts import Delete, Event, Reset, Upsert
from shared.bus.messages import Frame, Load, QueueTable
from shared.bus.subjects import fact_key
from shared.model import Configuration, Endpoint, Fact, Pool
from shared.pool_view import attribute_table, queues
from shared.pool_view.attribute_table import REMEMBERED
from shared.pool_view.rows import EndpointRow
from shared.pool_view.view import COLLECTOR, PICKER, WATCHER, PoolView

EXPIRY = 1.5


def endpoint(name: str, labels: dict[str, str] | None = None, *, draining: bool = False) -> Endpoint:
    labels = labels or {}
    return Endpoint(id=f"default/{name}", name=name, address="10.0.0.1", port=8000, labels=labels, draining=draining)


def facts(*made: Fact) -> dict[str, Fact]:
    return {fact_key("default_llama", fact): fact for fact in made}


def view(*names: str) -> PoolView:
    made = PoolView(EXPIRY)
    made.connected(0.0)
    made.event(Reset(facts(*map(endpoint, names))))
    return made


def frame(names: tuple[str, ...], sender: str = "collector-1", age: float = 0.0, **values: tuple[float, ...]) -> Frame:
    keys = {"queue": WAITING_QUEUE_SIZE, "running": RUNNING_REQUESTS_SIZE, "kv": KV_CACHE_USAGE, "alive": REACHABLE}
    return Frame(
        sender=sender,
        sent=0.0,
        sequence=1,
        ids=tuple(f"default/{name}" for name in names),
        columns={keys[name].wire: pack_floats(column) for name, column in values.items()},
        ages={keys[name].wire: pack_ages([age] * len(names)) for name in values},
    )


def load(sender: str, counts: dict[str, tuple[int, int]], *, sent: float = 0.0, **fields: object) -> Load:
    return Load(
        sender=sender,
        sent=sent,
        sequence=1,
        ids=pack_hashes([endpoint_hash(f"default/{name}") for name in counts]),
        requests=pack_counts([requests for requests, _ in counts.values()]),
        tokens=pack_counts([tokens for _, tokens in counts.values()]),
        **fields,  # type: ignore[arg-type]
    )


def queue(*rows: tuple[int, int, int, int, int, int]) -> QueueTable:
    """Rows of (priority, flow, requests, age in milliseconds, running, dispatched)."""
    priorities, flows, requests, ages, running, dispatched = zip(*rows, strict=True)
    return QueueTable(
        priorities=b"".join(priority.to_bytes(4, "little", signed=True) for priority in priorities),
        flows=pack_hashes(flows),
        requests=pack_counts(requests),
        tokens=pack_counts([10 * count for count in requests]),
        ages=pack_counts(ages),
        running=pack_counts(running),
        dispatched=pack_counts(dispatched),
        served=pack_counts([0] * len(rows)),
    )


def only(made: PoolView, now: float = 0.0) -> EndpointRow:
    [row] = made.rows(now)
    return row


def test_endpoints_are_in_the_natural_order_of_their_names() -> None:
    assert [row.name for row in view("m-10", "m-2", "b", "m-1").rows(0.0)] == ["b", "m-1", "m-2", "m-10"]


def test_of_an_endpoint_without_metrics_nothing_is_known() -> None:
    made = PoolView(EXPIRY)
    made.event(Reset(facts(endpoint("m", {"llm-d.ai/role": "decode"}))))
    assert only(made) == EndpointRow(
        id="default/m", name="m", authority="10.0.0.1:8000", labels={"llm-d.ai/role": "decode"}, role="decode"
    )


def test_an_endpoint_that_drains_is_told_apart() -> None:
    made = PoolView(EXPIRY)
    made.event(Reset(facts(endpoint("a"), endpoint("b", draining=True))))
    assert [row.draining for row in made.rows(0.0)] == [False, True]


def test_a_row_has_the_newest_values_and_the_age_of_the_oldest() -> None:
    made = view("a", "m")
    made.frame(frame(("m", "x"), queue=(3, 9), running=(5, 9), kv=(0.5, 0.9), age=0.25), 10.0, 0.0)
    made.frame(frame(("m",), sender="collector-2", queue=(4,), alive=(1,)), 10.5, 0.1)
    made.frame(frame(("m",), queue=(1,), kv=(math.nan,), running=(-1,)), 10.5, 8.0)
    row = list(made.rows(11.0))[1]
    assert (row.queue, row.running, row.kv, row.reachable) == (4, 5, 0.5, True)
    assert row.age == pytest.approx(1.25)
    assert row.collector == "collector-1"
    attributes = made.attributes("default/m", 11.0)
    assert attributes[WAITING_QUEUE_SIZE.wire].value == 4
    assert attributes[WAITING_QUEUE_SIZE.wire].age == pytest.approx(0.6)


def test_attributes_that_somebody_invents_dont_keep_real_ones_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribute_table, "MAX_ATTRIBUTES", 2)
    made = view("m")

    def hear(now: float, *names: str) -> None:
        columns, ages = ({name: pack([0.0]) for name in names} for pack in (pack_floats, pack_ages))
        made.frame(Frame(sender="c", sent=0.0, sequence=1, ids=("default/m",), columns=columns, ages=ages), now, 0.0)

    def known(now: float) -> list[str]:
        return sorted(made.attributes("default/m", now))

    hear(1.0, "x1", "x2", "x3")
    assert known(1.0) == ["x1", "x2"]
    made.frame(frame(("m",), queue=(3,), running=(5,), kv=(0.5,), alive=(1,)), 2.0, 0.0)
    row = only(made, 2.0)
    assert (row.queue, row.running, row.kv, row.reachable, row.age) == (3, 5, 0.5, True, 0.0)
    rows = [key.wire for key in attribute_table.IN_ROWS]
    hear(3.0, "x2")
    hear(4.0, "own")
    assert known(4.0) == sorted((*rows, "own", "x2"))
    hear(5.0, "x4", "x5", "x6", "own")
    assert known(5.0) == sorted((*rows, "own", "x4"))


def test_what_a_server_is_known_not_to_have_is_unknown_again() -> None:
    made = view("m")
    made.frame(frame(("m",), queue=(3,), kv=(0.5,)), 10.0, 0.0)
    absent = {WAITING_QUEUE_SIZE.wire: [0], ACTIVE_MODELS.wire: [0]}
    made.frame(Frame(sender="c", sent=0.0, sequence=2, ids=("default/m",), absent=absent), 11.0, 0.0)
    assert (only(made, 11.0).queue, only(made, 11.0).kv) == (None, 0.5)


def test_names_of_adapters_are_a_hundred_short_names_or_nothing() -> None:
    made = view("a", "b")
    made.frame(
        Frame(
            sender="c",
            sent=0.0,
            sequence=1,
            ids=("default/a", "default/b"),
            objects={ACTIVE_MODELS.wire: [["sql", "c" * 1000] + ["chat"] * 200, [1, 2]]},
            ages={ACTIVE_MODELS.wire: pack_ages([0, 0])},
        ),
        0.0,
        0.0,
    )
    assert [row.adapters for row in made.rows(0.0)] == [("sql", "c" * 256, *["chat"] * 98), ()]


@pytest.mark.parametrize("late", [1.0, math.inf])
@pytest.mark.parametrize(
    ("names", "absent"), [([["late"]], {}), ([], {ACTIVE_MODELS.wire: [0]})], ids=["list", "absence"]
)
def test_names_of_adapters_stay_where_an_older_frame_comes_later(
    late: float, names: list[list[str]], absent: dict[str, list[int]]
) -> None:
    made = view("a")

    def hear(names: list[list[str]], absent: dict[str, list[int]], now: float, extra_age: float) -> None:
        objects, ages = ({ACTIVE_MODELS.wire: names}, {ACTIVE_MODELS.wire: pack_ages([0])}) if names else ({}, {})
        ids = ("default/a",)
        made.frame(
            Frame(sender="c", sent=0.0, sequence=1, ids=ids, objects=objects, ages=ages, absent=absent), now, extra_age
        )

    hear([["now"]], {}, 10.0, 0.0)
    hear(names, absent, 10.5, late)
    assert only(made, 11.0).adapters == ("now",)
    assert made.attributes("default/a", 11.0)[ACTIVE_MODELS.wire].age == 1.0
    hear(names, absent, 11.0, 0.0)
    assert only(made, 11.0).adapters == (("late",) if names else ())


CHANGES: dict[str, tuple[Event, list[tuple[str, int | None]]]] = {
    "new": (Upsert("default_llama.endpoint.default/c", endpoint("c")), [("a", 1), ("b", 2), ("c", None)]),
    "gone": (Delete("default_llama.endpoint.default/a"), [("b", 2)]),
    "reset": (Reset(facts(endpoint("b"), endpoint("0"))), [("0", None), ("b", 2)]),
    "another fact": (Upsert("default_llama.pool", Pool(name="llama")), [("a", 1), ("b", 2)]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_endpoints_that_stay_keep_what_is_known_of_them(change: str) -> None:
    event, expected = CHANGES[change]
    made = view("a", "b")
    made.frame(frame(("a", "b"), queue=(1, 2)), 0.0, 0.0)
    made.event(event)
    assert [(row.name, row.queue) for row in made.rows(0.0)] == expected


def test_load_in_flight_is_the_sum_of_all_pickers_that_live() -> None:
    made = view("a", "b")
    made.load(load("picker-1", {"a": (2, 20), "elsewhere": (9, 9)}), 0.0)
    made.load(load("picker-2", {"b": (1, 5), "a": (1, 7)}), 0.5)
    assert [(row.in_flight, row.tokens) for row in made.rows(0.5)] == [(3, 27), (1, 5)]
    assert [(row.id, row.in_flight) for row in made.members(0.5)] == [("picker-1", 11), ("picker-2", 2)]
    made.expire(1.6)
    assert [row.in_flight for row in made.rows(1.6)] == [1, 1]
    made.load(load("picker-2", {}, sent=1.0, leaving=True), 1.7)
    assert [row.in_flight for row in made.rows(1.7)] == [0, 0]


def test_a_table_that_a_later_one_overtook_says_nothing() -> None:
    made = view("a")
    made.load(load("p", {"a": (2, 0)}, sent=1.0), 1.0)
    made.load(load("p", {"a": (9, 0)}, sent=0.9), 1.1)
    assert only(made).in_flight == 2


def test_of_a_long_id_only_the_beginning_is_ordered_by_its_numbers() -> None:
    made = view()
    beginning = "1" * 80
    ids = [f"{beginning}9", f"{beginning}10", "c10", "c9"]
    for id in ids:
        made.observe(COLLECTOR, id, 0.0)
    assert [row.id for row in made.members(0.0)] == [f"{beginning}10", f"{beginning}9", "c9", "c10"]


def test_members_are_those_that_were_heard_lately_and_one_watcher_leads() -> None:
    made = view("a", "b")
    made.observe(WATCHER, "watcher-1/0a0b", 0.0)
    made.observe(WATCHER, "watcher-2/0c0d", 0.0)
    made.observe(COLLECTOR, "collector-10", 0.0)
    made.observe(COLLECTOR, "collector-9", 1.0)
    made.leader("watcher-2/0c0d")
    made.frame(frame(("a", "b"), sender="collector-9", queue=(0, 0)), 1.0, 0.0)
    found = [(row.tier, row.id, row.leader, row.endpoints) for row in made.members(1.0)]
    assert found == [
        (WATCHER, "watcher-1", False, None),
        (WATCHER, "watcher-2", True, None),
        (COLLECTOR, "collector-9", False, 2),
        (COLLECTOR, "collector-10", False, 0),
    ]
    made.observe(WATCHER, "watcher-2/0c0d", 1.0, leaving=True)
    assert [row.id for row in made.members(2.0)] == ["collector-9"]


def test_without_a_connection_silence_says_nothing() -> None:
    made = view()
    made.observe(PICKER, "p", 0.0)
    made.disconnected()
    assert [(row.id, row.age) for row in made.members(9.0)] == [("p", 9.0)]
    made.connected(9.0)
    assert len(made.members(10.0)) == 1
    assert made.members(10.5) == []


def test_queues_are_bands_of_all_pickers_with_the_longest_flow_first() -> None:
    made = view()
    made.load(load("p", {}, queue=queue((1, 7, 2, 500, 1, 5), (0, 7, 0, 0, 1, 1), (0, 0, 3, 100, 0, 0))), 0.0)
    made.load(load("q", {}, queue=queue((1, 7, 1, 900, 0, 5), (1, 8, 9, 100, 0, 5))), 0.0)
    high, low = made.queues(0.25)
    assert (high.priority, high.requests, high.tokens, high.running) == (1, 12, 120, 1)
    assert high.oldest == pytest.approx(1.15)
    assert [(row.flow, row.requests) for row in high.flows] == [(f"{8:016x}", 9), (f"{7:016x}", 3)]
    assert [(row.flow, row.requests, row.running) for row in low.flows] == [("", 3, 0), (f"{7:016x}", 0, 1)]
    assert [(row.id, row.waiting) for row in made.members(0.25)] == [("p", 5), ("q", 10)]
    made.expire(2.0)
    assert made.queues(2.0) == ()


def test_of_many_flows_those_are_shown_that_have_the_most_waiting_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MAX_SHOWN", 3)
    monkeypatch.setattr(queues, "MAX_BANDS", 2)
    made = view()
    rows = [(priority, flow, priority + flow, 0, flow, 0) for priority in (-1, 0, 1) for flow in (5, 7, 6)]
    made.load(load("p", {}, queue=queue(*rows)), 0.0)
    bands = made.queues(0.0)
    assert [(band.priority, band.requests, band.flow_count) for band in bands] == [(1, 21, 3), (0, 18, 3)]
    assert [[(row.flow[-1], row.requests) for row in band.flows] for band in bands] == [
        [("7", 8), ("6", 7)],
        [("7", 7)],
    ]


def test_rows_beyond_a_number_arent_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MAX_ROWS", 3)
    monkeypatch.setattr("shared.pool_view.view.MAX_LOAD_ROWS", 2)
    made = view("a", "b")
    table = queue((0, 7, 1, 0, 0, 0), (0, 8, 2, 0, 0, 0))
    for picker in ("p", "q"):
        made.load(load(picker, {"a": (1, 9), "b": (1, 9)}, queue=table), 0.0)
    (band,) = made.queues(0.0)
    assert [(row.flow[-1], row.requests) for row in band.flows] == [("7", 2), ("8", 2)]
    assert [row.in_flight for row in made.rows(0.0)] == [1, 1]
    made.load(load("p", {}, sent=1.0, leaving=True), 1.0)
    made.load(load("q", {"a": (5, 9), "b": (5, 9)}, sent=1.0), 1.0)
    assert [row.in_flight for row in made.rows(1.0)] == [5, 5]


def test_the_rate_counts_what_was_dispatched_while_somebody_looked() -> None:
    made = view()
    for second, (run, dispatched) in enumerate([(1, 1000), (1, 1010), (1, 1020), (2, 3), (2, 13)]):
        made.load(load("p", {}, sent=float(second), run=run, queue=queue((0, 7, 1, 0, 0, dispatched))), float(second))
    [band] = made.queues(5.0)
    assert band.rate == pytest.approx(30 / 5)


def test_a_queue_table_is_not_kept_beside_what_is_read_from_it() -> None:
    made, table = view(), queue((0, 7, 1, 0, 0, 0))
    references = sys.getrefcount(table)
    made.load(load("p", {}, queue=table), 0.0)
    assert sys.getrefcount(table) == references
    assert made.members(0.0)[0].waiting == 1


def test_bands_that_are_gone_leave_room_for_the_rates_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MAX_BANDS", 2)
    made = view()

    def rates(second: float, *rows: tuple[int, int]) -> list[tuple[int, float]]:
        """Priority and rate of each band after a table of (priority, dispatched)."""
        table = queue(*((priority, 7, 1, 0, 0, dispatched) for priority, dispatched in rows))
        made.load(load("p", {}, sent=second, queue=table), second)
        return [(band.priority, round(band.rate, 1)) for band in made.queues(second)]

    rates(0, (9, 0), (8, 0))
    assert rates(1, (9, 50), (8, 50)) == [(9, 50.0), (8, 50.0)]
    rates(2, (8, 50), (0, 0))
    assert rates(3, (8, 50), (0, 10)) == [(8, 16.7), (0, 0.0)], "no room: 9 has changed within the window"
    rates(12, (8, 50), (0, 10))
    assert rates(12.5, (9, 5), (8, 50), (0, 30)) == [(9, 0.0), (8, 0.0)], "no room: the table has 8"
    assert rates(13, (9, 15), (0, 30)) == [(9, 1.0), (0, 2.0)], "9 counts anew"


def test_the_version_differs_when_anything_is_new() -> None:
    made, seen = view("a"), set()
    made.event(Upsert("default_llama.config", Configuration(text="kind: X")))
    seen.add(made.version)
    made.frame(frame(("a",), queue=(1,)), 0.0, 0.0)
    seen.add(made.version)
    made.load(load("p", {}), 0.0)
    seen.add(made.version)
    made.leader("w")
    seen.add(made.version)
    assert len(seen) == 4
    made.leader("w")
    list(made.rows(5.0))
    assert made.version in seen
    assert made.configuration == Configuration(text="kind: X")


def test_frames_of_ids_that_nobody_knows_take_a_limited_memory() -> None:
    pool = view("a")
    tracemalloc.start()
    try:
        for number in range(3 * REMEMBERED // 2**20):
            invented = tuple(f"{number}-{each}-".ljust(2**10, "x") for each in range(2**10))
            pool.frame(frame(("a", *invented), queue=(1.0,) * 1025), 0.0, 0.0)
        assert tracemalloc.get_traced_memory()[0] < 1.5 * REMEMBERED
    finally:
        tracemalloc.stop()
