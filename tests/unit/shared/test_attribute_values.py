"""What can be an attribute's value: `AttributeMap.put` refuses everything else."""

import math
from typing import Any

import pytest
from msgspec import Struct

from shared.attributes import ALWAYS, AttributeKey, AttributeMap

SIZE = AttributeKey("Size", "x", float)
NAMES: AttributeKey[tuple[str, ...]] = AttributeKey("Names", "x", tuple)


class Place(Struct, frozen=True):
    zone: Any = None


PLACE = AttributeKey("Place", "x", Place)


def fault(key: AttributeKey[Any], value: object, at: Any = 1.0) -> str:
    """Why the value is refused; empty where it isn't. One that is leaves the attribute as it was."""
    attributes = AttributeMap()
    try:
        attributes.put(key, value, at)
    except ValueError as error:
        assert attributes.sample(key) is None
        return str(error)
    assert attributes.get(key) == value
    return ""


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(("key", "value"), [(SIZE, 1), (SIZE, -0.5), (NAMES, ()), (NAMES, ("a",)), (PLACE, Place("z"))])
def test_is_sound(key: AttributeKey[Any], value: object) -> None:
    assert fault(key, value) == ""


@pytest.mark.parametrize("value", ["8", True, math.nan, ("a",), Odd()])
def test_is_no_number(value: object) -> None:
    assert fault(SIZE, value).endswith("; a finite number is expected")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (NAMES, "abc", "Names/x is 'abc'; a tuple is expected"),
        (NAMES, 5.0, "Names/x is 5.0; a tuple is expected"),
        (NAMES, Odd(), "Names/x is a Odd; a tuple is expected"),
        (PLACE, ("z",), "Place/x is ('z',); a Place is expected"),
    ],
)
def test_is_of_another_kind(key: AttributeKey[Any], value: object, reason: str) -> None:
    assert fault(key, value) == reason


@pytest.mark.parametrize("value", [(Odd(),), ("\ud800",), (10**400,)])
def test_can_not_travel(value: object) -> None:
    assert "which no message can carry" in fault(NAMES, value)
    assert "which no message can carry" in fault(PLACE, Place(value))


@pytest.mark.parametrize(
    ("names", "length", "reason"),
    [
        (1_000, 128, ""),
        (10_000, 10, ""),
        (10_001, 4, "Names/x has 10001 values; 10000 are allowed"),
        (100, 1_400, "Names/x has 140303 bytes; 131072 are allowed for a list of texts, 16384 for anything else"),
    ],
)
def test_a_list_has_so_many_names_and_bytes(names: int, length: int, reason: str) -> None:
    assert fault(NAMES, ("x" * length,) * names) == reason


def test_a_refused_value_leaves_the_one_before() -> None:
    attributes = AttributeMap()
    attributes.put(SIZE, 1.0, at=1.0)
    values: tuple[Any, ...] = ("8", True)  # True equals 1.0
    for value in values:
        with pytest.raises(ValueError, match="a finite number is expected"):
            attributes.put(SIZE, value, at=2.0)
    sample = attributes.sample(SIZE)
    assert sample is not None
    assert (sample.value, sample.at) == (1.0, 1.0)


@pytest.mark.parametrize(("at", "sound"), [(0, True), (5.5, True), (ALWAYS, True), (math.nan, False), ("now", False)])
def test_a_value_has_a_time(at: Any, sound: bool) -> None:
    assert (fault(SIZE, 1.0, at) == "") is sound
