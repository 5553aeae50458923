import gc
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import Struct

from shared.attributes import KV_CACHE_USAGE, STANDARD_KEYS, WAITING_QUEUE_SIZE, AttributeKey, AttributeMap, Sample


def test_an_attribute_goes_by_its_name_and_its_producer() -> None:
    assert WAITING_QUEUE_SIZE.wire == str(WAITING_QUEUE_SIZE) == "WaitingQueueSize/core-metrics-extractor"


def test_two_producers_of_one_name_dont_meet() -> None:
    other = AttributeKey("WaitingQueueSize", "mine", float)
    attributes = AttributeMap()
    attributes.put(WAITING_QUEUE_SIZE, 3.0, at=1.0)
    attributes.put(other, 4.0, at=1.0)
    assert (attributes.get(WAITING_QUEUE_SIZE), attributes.get(other)) == (3.0, 4.0)


def test_the_standard_keys_have_names_of_their_own() -> None:
    assert len({key.wire for key in STANDARD_KEYS}) == len(STANDARD_KEYS)


def test_equal_keys_are_one() -> None:
    assert AttributeKey("Depth", "one", float) is AttributeKey("Depth", "one", float)
    assert AttributeKey("Depth", "one", float) != AttributeKey("Depth", "other", float)
    assert len({AttributeKey("Depth", "one", float), AttributeKey("Depth", "one", tuple)}) == 2


def test_keys_that_nobody_has_any_more_are_forgotten() -> None:
    """Every configuration may name others."""
    key = AttributeKey("Once", "one", float)
    kept = weakref.ref(key)
    del key
    gc.collect()
    assert kept() is None


def test_what_has_changed_is_told_once() -> None:
    attributes = AttributeMap()
    attributes.put(KV_CACHE_USAGE, 0.1, at=1.0)
    attributes.put(WAITING_QUEUE_SIZE, 3.0, at=1.0)
    assert attributes.take_changed() == {KV_CACHE_USAGE, WAITING_QUEUE_SIZE}
    attributes.put(KV_CACHE_USAGE, 0.1, at=2.0)
    attributes.put(WAITING_QUEUE_SIZE, 4.0, at=2.0)
    assert attributes.take_changed() == {WAITING_QUEUE_SIZE}
    assert attributes.take_changed() == set()
    attributes.deny(KV_CACHE_USAGE, at=3.0)
    attributes.deny(KV_CACHE_USAGE, at=4.0)
    assert attributes.take_changed() == {KV_CACHE_USAGE}
    attributes.deny(KV_CACHE_USAGE, at=5.0)
    assert attributes.take_changed() == set()


class Names(Struct):
    names: list[object]


class FrozenNames(Struct, frozen=True):
    names: list[object]


@dataclass(eq=False)
class Unequal:
    names: list[object] = field(default_factory=list)


def in_place(wrap: Any) -> tuple[list[object], Any]:
    """A list, and a value that holds it."""
    names: list[object] = ["a"]
    return names, wrap(names)


HOLDERS = [
    pytest.param(lambda names: names, id="list"),
    pytest.param(lambda names: {"names": names}, id="dict"),
    pytest.param(lambda names: (names, 1), id="tuple"),
    pytest.param(Names, id="struct"),
    pytest.param(FrozenNames, id="frozen struct"),
    pytest.param(Unequal, id="object without equality"),
]


@pytest.mark.parametrize("wrap", HOLDERS)
def test_a_value_that_was_changed_in_place_is_another_one_when_it_is_put_again(wrap: Any) -> None:
    names, value = in_place(wrap)
    key, attributes = AttributeKey("Names", "mine", type(value)), AttributeMap()
    attributes.put(key, value, at=1.0)
    before = repr(attributes.get(key))
    attributes.take_changed()
    names.append("b")
    assert repr(attributes.get(key)) == before, "nobody has put that"
    assert attributes.put(key, value, at=2.0)
    assert attributes.take_changed() == {key}
    assert "'b'" in repr(attributes.get(key))


def test_what_an_attribute_has_may_be_changed_in_place_and_put_again() -> None:
    key, attributes = AttributeKey("Names", "mine", list), AttributeMap()
    attributes.put(key, ["a"], at=1.0)
    attributes.take_changed()
    names = attributes.get(key)
    assert names is not None
    names.append("b")
    assert attributes.put(key, names, at=2.0)
    assert attributes.take_changed() == {key}
    names.append(object())
    with pytest.raises(ValueError, match="which no message can carry"):
        attributes.put(key, names, at=3.0)
    assert attributes.get(key) == ["a", "b"]


@pytest.mark.parametrize("wrap", HOLDERS)
def test_a_value_that_was_changed_in_place_to_one_that_no_message_can_carry_is_refused(wrap: Any) -> None:
    names, value = in_place(wrap)
    key, attributes = AttributeKey("Names", "mine", type(value)), AttributeMap()
    attributes.put(key, value, at=1.0)
    names.append(object())
    with pytest.raises(ValueError, match=r"Names/mine is .*, which no message can carry"):
        attributes.put(key, value, at=2.0)


def test_a_value_that_cant_be_copied_is_refused() -> None:
    class Uncopied(list[str]):
        def __deepcopy__(self, memo: object) -> None:
            raise RuntimeError("it is unique")

    with pytest.raises(ValueError, match="which can't be copied: RuntimeError: it is unique"):
        AttributeMap().put(AttributeKey("Names", "mine", list), Uncopied(), at=1.0)


@pytest.mark.parametrize("wrap", HOLDERS[:-1])
def test_an_equal_value_is_none_that_has_changed(wrap: Any) -> None:
    key, attributes = AttributeKey("Names", "mine", object), AttributeMap()
    assert attributes.put(key, wrap(["a"]), at=1.0)
    assert not attributes.put(key, wrap(["a"]), at=2.0)
    sample = attributes.sample(key)
    assert sample is not None
    assert sample.at == 2.0


def test_samples_can_be_asked_for_by_key() -> None:
    attributes = AttributeMap()
    attributes.put(KV_CACHE_USAGE, 0.1, at=1.0)
    assert attributes.among([WAITING_QUEUE_SIZE, KV_CACHE_USAGE]) == [(KV_CACHE_USAGE, Sample(0.1, 1.0))]


def test_an_attribute_that_was_never_put_or_was_dropped_is_absent_not_zero() -> None:
    attributes = AttributeMap()
    assert attributes.get(KV_CACHE_USAGE) is None
    attributes.put(KV_CACHE_USAGE, 0.1, at=1.0)
    attributes.drop(KV_CACHE_USAGE)
    attributes.drop(KV_CACHE_USAGE)
    assert (attributes.get(KV_CACHE_USAGE), attributes.sample(KV_CACHE_USAGE), len(attributes)) == (None, None, 0)


def test_equal_keys_of_two_threads_are_one() -> None:
    made: list[AttributeKey[float]] = []
    other = threading.Thread(target=lambda: made.append(AttributeKey("Raced", "one", float)))

    class Raced(str):
        """While a key of this name is made, another thread makes one, too."""

        __slots__ = ()

        def __len__(self) -> int:
            if not other.ident:
                other.start()
                other.join(0.1)
            return super().__len__()

    key = AttributeKey(Raced("Raced"), "one", float)
    other.join()
    assert made == [key]
