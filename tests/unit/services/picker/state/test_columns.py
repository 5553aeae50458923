import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from services.picker.settings.limits import ViewLimits
from services.picker.state.columns import Columns
from services.picker.state.layout import Layout
from services.picker.state.number_table import NumberColumn
from services.picker.state.object_column import NEVER
from shared.attributes import (
    ACTIVE_MODELS,
    ALWAYS,
    KV_CACHE_USAGE,
    WAITING_QUEUE_SIZE,
    AttributeKey,
    AttributeMap,
)
from shared.bus.codec import decode, encode
from shared.bus.messages import Frame
from tests.unit.services.picker.world import endpoint, frame

QUEUE, USAGE, MODELS = WAITING_QUEUE_SIZE, KV_CACHE_USAGE, ACTIVE_MODELS
KEYS_BY_NAME: dict[str, AttributeKey[Any]] = {"queue": QUEUE, "usage": USAGE, "models": MODELS}
NOW = 100.0


def columns(*names: str) -> Columns:
    made = Columns()
    made.relayout(Layout([endpoint(name) for name in names]))
    return made


def test_an_attribute_that_nobody_reported_is_absent_not_zero() -> None:
    column = columns("a1", "a2").numbers(QUEUE.wire)
    assert np.isnan(column.values).all()
    assert (column.at == NEVER).all()
    assert column.median == 0.0


def test_what_a_message_spent_on_its_way_counts_as_age() -> None:
    made = columns("a1")
    made.apply(frame(["a1"], {QUEUE: [1]}, ages=0.5), NOW, 2.0)
    assert made.numbers(QUEUE.wire).at.tolist() == [97.5]


def test_a_sample_cant_come_from_the_future() -> None:
    made = columns("a1")
    made.apply(frame(["a1"], {QUEUE: [4]}, ages=-1000.0), NOW, 0.0)
    assert made.numbers(QUEUE.wire).at.tolist() == [NOW]
    made.apply(frame(["a1"], {QUEUE: [5]}, ages=math.nan), NOW + 1, 0.0)
    made.apply(frame(["a1"], {QUEUE: [6]}), NOW + 1, 0.0)
    assert made.numbers(QUEUE.wire).values.tolist() == [6]


class Cell(Struct, frozen=True):
    rack: str
    slots: tuple[int, ...] = ()


CELL = AttributeKey("Cell", "cell-extractor", Cell)


def test_a_struct_arrives_as_a_struct() -> None:
    """Frames carry it as a map: whoever reads it by its key gets what was put."""
    sent = [Cell("r1", (1, 2)), Cell("r2")]
    arrived = decode(Frame, encode(frame(["a1", "a2"], {CELL: sent})))
    made = columns("a1", "a2")
    made.apply(arrived, NOW, 0.0)
    assert made.objects(CELL).values == sent
    made.apply(decode(Frame, encode(frame(["a1"], {CELL: [Cell("r3")]}))), NOW + 1, 0.0)
    made.relayout(Layout([endpoint("a1")]))
    assert made.objects(CELL).values == [Cell("r3")]


def test_what_is_no_struct_of_the_keys_kind_is_absent() -> None:
    """Of a collector with another version of the plugin."""
    made = columns("a1", "a2")
    made.apply(frame(["a1", "a2"], {CELL: [{"row": 5}, {"rack": "r2"}]}), NOW, 0.0)
    assert made.objects(CELL).values == [None, Cell("r2")]


def test_who_keeps_an_array_keeps_what_it_was() -> None:
    made = columns("a1")
    made.apply(frame(["a1"], {QUEUE: [1]}), NOW, 0.0)
    kept = made.numbers(QUEUE.wire).values
    made.apply(frame(["a1"], {QUEUE: [2]}), NOW + 1, 0.0)
    assert kept.tolist() == [1]


def test_the_median_follows_frames_and_layouts() -> None:
    made = columns("a1", "a2", "a3", "a4")
    made.apply(frame(["a1", "a2", "a3"], {QUEUE: [16, 64, 32]}), NOW, 0.0)
    assert made.numbers(QUEUE.wire).median == 32
    made.apply(frame(["a1"], {QUEUE: [128]}), NOW + 1, 0.0)
    assert made.numbers(QUEUE.wire).median == 64
    made.relayout(Layout([endpoint("a2"), endpoint("a3")]))
    assert made.numbers(QUEUE.wire).median == 32, "of two the lower one"


def test_a_new_layout_keeps_the_samples_of_endpoints_that_stay_the_same_server() -> None:
    made = columns("a1", "a2", "a3")
    made.apply(frame(["a1", "a2", "a3"], {QUEUE: [1, 2, 3], MODELS: [["x"], ["x", "y"], ["z"]]}), NOW, 0.0)
    made.relayout(Layout([endpoint("a0"), endpoint("a2"), endpoint("a3", "10.9.9.9")]))
    column, models = made.numbers(QUEUE.wire), made.objects(MODELS)
    assert column.values.tolist()[1] == 2
    assert column.at.tolist() == [NEVER, NOW, NEVER]
    assert models.values == [None, ("x", "y"), None]
    assert models.counts.tolist() == [0, 2, 0]
    assert models.holders("x").tolist() == [False, True, False]
    assert not models.holders("z").any()
    made.apply(frame(["a0"], {QUEUE: [5]}), NOW, 0.0)
    assert made.numbers(QUEUE.wire).values.tolist()[:2] == [5, 2]


def test_values_that_are_no_lists_of_names_do_no_harm() -> None:
    made = columns("a1", "a2", "a3")
    made.apply(frame(["a1", "a2", "a3"], {MODELS: [{"a": 1}, [["x"], 3, "y"], "x"]}), NOW, 0.0)
    models = made.objects(MODELS)
    assert models.holders("x").tolist() == [False, False, False]
    assert models.holders("y").tolist() == [False, True, False]
    assert models.counts.tolist() == [0, 3, 0]


def without(sent: Frame, **absent: list[int]) -> Frame:
    return replace(sent, absent={KEYS_BY_NAME[name].wire: rows for name, rows in absent.items()})


def test_what_an_endpoint_is_known_not_to_have_is_forgotten_at_once() -> None:
    made = columns("a1", "a2", "a3")
    ids = ["a3", "b9", "a1", "a2"]
    made.apply(frame(ids, {QUEUE: [3, 9, 1, 2], USAGE: [0.3, 0.9, 0.1, 0.2], MODELS: [["x"]] * 4}), NOW, 0.0)
    before = made.numbers(QUEUE.wire).values
    made.apply(without(frame(ids, {}), queue=[0, 1], models=[2, 0]), NOW + 1, 0.0)
    queue, models = made.numbers(QUEUE.wire), made.objects(MODELS)
    assert queue.at.tolist() == [NOW, NOW, NEVER]
    assert queue.values[:2].tolist() == [1.0, 2.0]
    assert math.isnan(queue.values[2])
    assert before.tolist() == [1.0, 2.0, 3.0], "whoever reads an array may keep it"
    assert made.numbers(USAGE.wire).values.tolist() == [0.1, 0.2, 0.3]
    assert models.values == [None, ("x",), None]
    assert models.holders("x").tolist() == [False, True, False]
    made.apply(frame(ids, {QUEUE: [4, 9, 1, 2]}), NOW + 2, 0.0)
    assert queue.values.tolist() == [1.0, 2.0, 4.0]


def test_what_was_sampled_later_stays() -> None:
    made = columns("a1")
    made.apply(frame(["a1"], {QUEUE: [1], MODELS: [["x"]]}), NOW, 0.0)
    made.apply(without(frame(["a1"], {}), queue=[0], models=[0]), NOW + 1, 3.0)
    assert made.numbers(QUEUE.wire).values.tolist() == [1.0]
    assert made.objects(MODELS).values == [("x",)]
    made.apply(without(frame(["a1"], {}), queue=[0]), NOW, 0.0)
    assert made.numbers(QUEUE.wire).at.tolist() == [NEVER], "what was sampled at that moment doesn't"


def test_an_absence_of_what_was_never_known_is_nothing() -> None:
    made = columns("a1")
    made.apply(without(frame(["a1"], {USAGE: [0.5]}), queue=[0], models=[0]), NOW, 0.0)
    assert list(made.of(0, NOW)) == [USAGE.wire]


def test_the_pickers_own_attributes_are_columns_too() -> None:
    made = columns("a1", "a2")
    own = AttributeMap()
    own.put(QUEUE, 7.0, ALWAYS)
    own.put(MODELS, ("y",), ALWAYS)
    made.apply(frame(["a1", "a2"], {QUEUE: [1, 2], USAGE: [0.1, 0.2]}), NOW, 0.0)
    made.own({"a1": own})
    made.own({"a2": own, "gone": own, "a1": None})
    queue = made.numbers(QUEUE.wire)
    assert queue.at.tolist() == [NEVER, ALWAYS], "the picker's own goes before what is reported"
    assert queue.median == 7.0
    assert made.objects(MODELS).holders("y").tolist() == [False, True]
    assert made.of(1, NOW + 60)[QUEUE.wire] == {"value": 7.0, "age": 0.0}
    assert made.newest().tolist() == [NOW, NOW]
    made.relayout(Layout([endpoint("a0"), endpoint("a1"), endpoint("a2")]))
    assert made.numbers(QUEUE.wire).at.tolist() == [NEVER, NEVER, ALWAYS]
    assert made.objects(MODELS).values == [None, None, ("y",)]
    made.relayout(Layout([endpoint("a1"), endpoint("a2")]))
    made.own({"a1": own})
    assert made.numbers(QUEUE.wire).at.tolist() == [ALWAYS, ALWAYS]
    made.own({"a1": None, "a2": None})
    assert made.numbers(QUEUE.wire).values.tolist() == [1.0, 2.0]
    assert made.objects(MODELS).values == [None, None]


NAMES = ["a1", "a2", "a3", "a4"]
KEYS = [QUEUE, USAGE, MODELS]


@st.composite
def reports(draw: st.DrawFn) -> tuple[list[str], dict[Any, list[Any]], list[float]]:
    """Ids, some of them unknown or twice; some attributes in any order; ages."""
    ids = draw(st.one_of(st.just(NAMES), st.lists(st.sampled_from([*NAMES, "b9"]), max_size=6)))
    numbers = st.one_of(st.none(), st.sampled_from([math.inf, -math.inf]), st.integers(0, 5).map(float))
    lists = st.one_of(st.none(), st.lists(st.sampled_from("xyz"), max_size=2))
    size = len(ids)
    values = {
        key: draw(st.lists(lists if key is MODELS else numbers, min_size=size, max_size=size))
        for key in draw(st.permutations(KEYS))[: draw(st.integers(0, 3))]
    }
    return ids, values, draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5]), min_size=size, max_size=size))


@given(st.lists(reports(), max_size=8))
def test_whatever_frames_come_each_endpoint_has_its_newest_value_of_each_attribute(
    frames: list[tuple[list[str], dict[Any, list[Any]], list[float]]],
) -> None:
    made = columns(*NAMES)
    newest: dict[tuple[str, str], tuple[float, Any]] = {}
    for number, (ids, values, ages) in enumerate(frames):
        now = NOW + number
        made.apply(frame(ids, values, ages), now, 0.0)
        positions = {id: position for position, id in enumerate(ids)}  # of an id that comes twice the last one counts
        for key, reported in values.items():
            for id, position in positions.items():
                value, at = reported[position], now - ages[position]
                before = newest.get((id, key.wire), (NEVER, None))[0]
                if id in NAMES and value is not None and (key.kind is not float or value in key.bounds) and at > before:
                    newest[id, key.wire] = (at, tuple(value) if isinstance(value, list) else value)
    for row, name in enumerate(NAMES):
        known = made.of(row, NOW)
        expected = {wire: value for (id, wire), value in newest.items() if id == name}
        assert {
            wire: (NOW - known_value["age"], known_value["value"]) for wire, known_value in known.items()
        } == expected
        assert made.newest()[row] == max([NEVER, *(at for at, _ in expected.values())])
    models = [newest.get((name, MODELS.wire), (0.0, ()))[1] for name in NAMES]
    assert made.objects(MODELS).counts.tolist() == list(map(len, models))
    for letter in "xyz":
        assert made.objects(MODELS).holders(letter).tolist() == [letter in held for held in models]


def test_a_column_that_is_asked_for_first_is_filled_by_later_frames() -> None:
    made = columns("a1", "a2")
    asked = made.numbers(USAGE.wire)
    made.apply(frame(["a1", "a2"], {QUEUE: [1, 2]}), NOW, 0.0)
    assert np.isnan(asked.values).all()
    made.apply(frame(["a2"], {QUEUE: [3], USAGE: [0.5]}), NOW + 1, 0.0)
    assert made.numbers(USAGE.wire) is asked
    assert asked.at.tolist() == [NEVER, NOW + 1]
    assert made.numbers(QUEUE.wire).values.tolist() == [1, 3]


def test_what_no_endpoint_has_any_more_is_no_column_of_the_next_layout() -> None:
    made = columns("a1", "a2")
    made.apply(frame(["a1", "a2"], {QUEUE: [1, 2], USAGE: [0.1, 0.2], MODELS: [["x"], ["y"]]}), NOW, 0.0)
    made.apply(without(frame(["a1", "a2"], {}), queue=[0, 1], models=[0, 1]), NOW + 1, 0.0)
    made.relayout(Layout([endpoint(name) for name in ("a1", "a2", "a3")]))
    assert repr(made) == "<Columns 1 attributes of 3 endpoints, 2 frames>"
    assert made.numbers(USAGE.wire).values[:2].tolist() == [0.1, 0.2]
    made.apply(frame(["a2"], {QUEUE: [5], MODELS: [["z"]]}), NOW + 2, 0.0)
    assert made.numbers(QUEUE.wire).values[1] == 5
    assert made.numbers(USAGE.wire).values[:2].tolist() == [0.1, 0.2]
    assert made.objects(MODELS).values == [None, ("z",), None]


def test_of_attributes_that_nobody_reads_only_some_are_kept_and_what_is_read_stays() -> None:
    made = columns("a1")
    invented: list[AttributeKey[Any]] = [AttributeKey(f"Invented{number}", "x", float) for number in range(2000)]
    made.numbers(QUEUE.wire)
    made.apply(frame(["a1"], {QUEUE: [3]}), NOW, 0.0)
    for start in range(0, len(invented), 100):
        made.apply(frame(["a1"], {key: [1] for key in invented[start : start + 100]}), NOW + 1, 0.0)
    assert len(made.of(0, NOW + 1)) <= 600
    assert made.numbers(QUEUE.wire).values.tolist() == [3]
    made.apply(frame(["a1"], {QUEUE: [4]}), NOW + 2, 0.0)
    assert made.numbers(QUEUE.wire).values.tolist() == [4]


def test_a_frame_that_denies_many_attributes_moves_each_column_once(monkeypatch: pytest.MonkeyPatch) -> None:
    invented: list[AttributeKey[Any]] = [AttributeKey(f"Invented{number}", "x", float) for number in range(50)]
    made = columns("a1", "a2")
    made.apply(frame(["a1", "a2"], {key: [1, 2] for key in invented}), NOW, 0.0)
    moved: list[NumberColumn] = []
    replace_arrays = NumberColumn.replace

    def counted(self: NumberColumn, *arrays: Any) -> None:
        moved.append(self)
        replace_arrays(self, *arrays)

    monkeypatch.setattr(NumberColumn, "replace", counted)
    made.apply(replace(frame(["a1", "a2"], {}), absent={key.wire: [1] for key in invented}), NOW + 1, 0.0)
    assert len(moved) <= len(invented)
    assert (len(made.of(0, NOW)), len(made.of(1, NOW))) == (50, 0)


@pytest.mark.parametrize(("kind", "value", "most"), [(float, 1.0, 64), (tuple, ["x"], 8)])
def test_a_frame_of_more_attributes_than_are_kept_takes_no_more_memory(kind: Any, value: Any, most: int) -> None:
    names = [f"a{number}" for number in range(1000)]
    read = AttributeKey[Any]("Read", "x", kind)

    def apply(invented: int) -> tuple[int, Columns]:
        made = Columns(limits=ViewLimits(attributes=64))
        made.relayout(Layout([endpoint(name) for name in names]))
        known = made.numbers(read.wire) if kind is float else made.objects(read)
        keys = [AttributeKey[Any](f"Invented{number}", "x", kind) for number in range(invented)]
        sent = frame(["a1"], {key: [value] for key in [*keys, read]})
        tracemalloc.start()
        made.apply(sent, NOW, 0.0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert np.count_nonzero(known.at > NEVER) == 1, "what is read always passes"
        return peak, made

    few, _ = apply(most)
    many, made = apply(900)
    row = [endpoint.id for endpoint in Layout([endpoint(name) for name in names]).endpoints].index("a1")
    assert len(made.of(row, NOW)) == most + 1
    assert many < 2 * few


def test_the_more_endpoints_the_fewer_numbers_that_nobody_reads_are_kept() -> None:
    made = Columns(limits=ViewLimits(attribute_bytes=100_000))
    keys = [AttributeKey[Any](f"Invented{number}", "x", float) for number in range(100)]
    kept = []
    for size in (1, 50, 100, 10_000):
        made.relayout(Layout([endpoint("a0"), *(endpoint(f"b{number}") for number in range(1, size))]))
        kept.append([len(made.of(0, NOW))])
        made.apply(frame(["a0"], {key: [1] for key in keys}), NOW, 0.0)
        kept[-1].append(len(made.of(0, NOW)))
    assert kept == [[0, 100], [31, 31], [15, 15], [0, 0]], "16 bytes each, a quarter of the memory"


def test_an_attribute_that_was_too_much_is_taken_in_when_a_plugin_reads_it() -> None:
    made = Columns(limits=ViewLimits(attributes=1))
    made.relayout(Layout([endpoint("a1")]))
    sent = frame(["a1"], {USAGE: [0.5], QUEUE: [3]})
    made.apply(sent, NOW, 0.0)
    assert made.numbers(QUEUE.wire).at.tolist() == [NEVER]
    made.apply(sent, NOW + 1, 0.0)
    assert made.numbers(QUEUE.wire).values.tolist() == [3]
    assert set(made.of(0, NOW)) == {USAGE.wire, QUEUE.wire}


def test_of_values_that_are_no_numbers_and_nobody_reads_only_some_are_kept_and_what_is_read_stays() -> None:
    made = columns("a1", "a2")
    made.objects(MODELS)
    made.apply(frame(["a1"], {MODELS: [["sql"]]}), NOW, 0.0)
    for number in range(300):
        invented: AttributeKey[Any] = AttributeKey(f"Invented{number}", "x", tuple)
        made.apply(frame(["a1"], {invented: [["name"] * 10_000]}), NOW, 0.0)
    assert len(made.of(0, NOW)) <= 100
    assert made.objects(MODELS).holders("sql").tolist() == [True, False]


@pytest.mark.parametrize("asked", [0, 5, 10], ids=["asked first", "asked between", "asked last"])
def test_lists_that_plugins_read_have_a_limit_with_their_index(asked: int) -> None:
    """Beyond it, an endpoint's value is unknown, until it fits."""
    made = Columns(limits=ViewLimits(attribute_bytes=50_000))
    ids = [f"a{number}" for number in range(10)]
    made.relayout(Layout(map(endpoint, ids)))
    lists = made.objects(MODELS)
    for number, id in enumerate(ids):
        if number == asked:
            lists.holders("m")
        made.apply(frame([id], {MODELS: [[f"{id}-{name:04}" for name in range(50)]]}), NOW, 0.0)
    lists.holders("m")
    kept = int((lists.at > NEVER).sum())
    assert 3 <= kept <= 5
    assert lists.weight <= 100_000
    assert made.left_out == {MODELS.wire: 10 - kept}
    assert sum(lists.holders(f"{id}-0007").any() for id in ids) == kept
    assert made.note() == f"left out, beyond twice --max-attribute-bytes: {MODELS.wire} of {10 - kept} endpoints"
    made.relayout(Layout([endpoint("b"), *map(endpoint, ids)]))
    assert f"of {10 - kept} endpoints" in str(made.note())
    for time in (NOW + 1, NOW + 2):
        made.apply(frame(ids, {MODELS: [["m"]] * 10}), time, 0.0)
    lists = made.objects(MODELS)
    assert (made.note(), lists.holders("m").sum()) == (None, 10)


def test_what_is_left_out_and_gone_is_noted_no_more() -> None:
    made = Columns(limits=ViewLimits(attribute_bytes=500))
    made.relayout(Layout([endpoint("a")]))
    made.objects(MODELS)
    made.apply(frame(["a"], {MODELS: [["m" * 1000]]}), NOW, 0.0)
    assert made.note() is not None
    made.apply(replace(frame(["a"], {}), absent={MODELS.wire: [0]}), NOW + 1, 0.0)
    assert made.note() is None


def test_by_default_a_large_pool_has_room_for_its_adapters() -> None:
    made = Columns()
    ids = [f"a{number}" for number in range(10_000)]
    made.relayout(Layout(map(endpoint, ids)))
    lists = made.objects(MODELS)
    lists.holders("m")
    for start in range(0, len(ids), 1000):
        part = ids[start : start + 1000]
        made.apply(frame(part, {MODELS: [[f"{id:>35}{name:05}" for name in range(20)] for id in part]}), NOW, 0.0)
    assert (made.note(), int((lists.at > NEVER).sum())) == (None, 10_000)


def test_what_one_frame_calls_a_number_and_another_a_list_is_what_plugins_read_or_what_has_news() -> None:
    made = columns("a1")
    made.objects(MODELS)
    number = AttributeKey(MODELS.name, MODELS.producer, float)
    names: AttributeKey[Any] = AttributeKey(QUEUE.name, QUEUE.producer, tuple)
    frames: list[tuple[AttributeKey[Any], Any]] = [(QUEUE, 1), (names, ["m"]), (QUEUE, 2), (MODELS, ["m"]), (number, 3)]
    seen = []
    for second, (key, value) in enumerate(frames):
        made.apply(frame(["a1"], {key: [value]}), NOW + second, 0.0)
        seen.append({name: known["value"] for name, known in made.of(0, NOW + second).items()})
    last = {QUEUE.wire: 2.0, MODELS.wire: ("m",)}
    assert seen == [{QUEUE.wire: 1.0}, {QUEUE.wire: ("m",)}, {QUEUE.wire: 2.0}, last, last]
