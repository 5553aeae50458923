"""Attributes as columns: absent isn't zero, and every value has its own age."""

import math
from typing import Any

from shared.attributes import ACTIVE_MODELS, ALWAYS, KV_CACHE_USAGE, WAITING_QUEUE_SIZE, AttributeKey, AttributeMap
from shared.bus.columns import unpack_ages, unpack_floats
from shared.bus.frame_columns import pack, parts
from shared.bus.messages import Frame


def attributes(at: float, **values: Any) -> AttributeMap:
    keys: dict[str, AttributeKey[Any]] = {"queue": WAITING_QUEUE_SIZE, "kv": KV_CACHE_USAGE, "lora": ACTIVE_MODELS}
    made = AttributeMap()
    for name, value in values.items():
        made.put(keys[name], value, at)
    return made


def test_an_attribute_that_an_endpoint_does_not_have_is_absent() -> None:
    packed = pack([("a", attributes(1.0, queue=3.0)), ("b", attributes(1.0, kv=0.5))], 1.0)
    queue = unpack_floats(packed.columns[WAITING_QUEUE_SIZE.wire]).tolist()
    assert queue[0] == 3.0
    assert math.isnan(queue[1])
    assert packed.ids == ("a", "b")


def test_what_an_endpoint_is_known_not_to_have_is_told_apart_from_what_isnt_known() -> None:
    one, other = attributes(1.0, queue=3.0), AttributeMap()
    one.deny(KV_CACHE_USAGE, 1.0)
    other.deny(ACTIVE_MODELS, 1.0)
    other.deny(KV_CACHE_USAGE, 1.0)
    packed = pack([("a", one), ("b", other)], 2.0)
    assert packed.absent == {KV_CACHE_USAGE.wire: [0, 1], ACTIVE_MODELS.wire: [1]}
    assert packed.columns.keys() == packed.ages.keys() == {WAITING_QUEUE_SIZE.wire}
    assert packed.objects == {}


def test_every_value_has_its_own_age_and_what_always_holds_none() -> None:
    one = attributes(9.0, queue=3.0)
    one.put(KV_CACHE_USAGE, 0.5, 7.5)
    ages = pack([("a", one), ("b", attributes(ALWAYS, queue=3.0, kv=0.5))], 10.0).ages
    assert unpack_ages(ages[WAITING_QUEUE_SIZE.wire]).tolist() == [1.0, 0.0]
    assert unpack_ages(ages[KV_CACHE_USAGE.wire]).tolist() == [2.5, 0.0]


def test_names_travel_as_objects() -> None:
    packed = pack([("a", attributes(1.0, lora=("x", "y"))), ("b", attributes(1.0, queue=1.0))], 1.0)
    assert packed.objects == {ACTIVE_MODELS.wire: [("x", "y"), None]}
    assert ACTIVE_MODELS.wire not in packed.columns


def test_columns_make_a_sound_frame() -> None:
    rows = [(f"e{number}", attributes(1.0, queue=float(number), lora=())) for number in range(7)]
    packed = pack(rows, 2.0)
    frame = Frame(
        sender="c",
        sent=2.0,
        sequence=1,
        ids=packed.ids,
        columns=packed.columns,
        ages=packed.ages,
        objects=packed.objects,
    )
    assert frame.fault() is None
    assert packed.size == 7 * (8 + 4 + 4)


def test_a_part_has_at_most_a_thousand_endpoints() -> None:
    rows = [(f"e{number}", attributes(1.0, queue=1.0)) for number in range(2001)]
    assert [len(part) for part in parts(rows)] == [1000, 1000, 1]
    assert [row for part in parts(rows) for row in part] == rows
    assert list(parts([])) == []
