"""What can be an attribute's value."""

import math
from typing import Any

import pytest
from msgspec import Struct

from shared.attributes import AttributeKey
from shared.datalayer.values import fault

SIZE = AttributeKey("Size", "x", float)
NAMES: AttributeKey[tuple[str, ...]] = AttributeKey("Names", "x", tuple)


class Place(Struct, frozen=True):
    zone: Any = None


PLACE = AttributeKey("Place", "x", Place)


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("key", "value"), [(SIZE, 1), (SIZE, -0.5), (NAMES, ()), (NAMES, ("a",)), (PLACE, Place("z")), (SIZE, None)]
)
def test_is_sound(key: AttributeKey[Any], value: object) -> None:
    assert fault(key, value) == ""


@pytest.mark.parametrize("value", ["8", True, math.nan, math.inf, 10**400, ("a",), Odd()])
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
