import gc
import weakref

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


def test_the_newest_sample_replaces_the_one_before() -> None:
    attributes = AttributeMap()
    attributes.put(KV_CACHE_USAGE, 0.1, at=1.0)
    attributes.put(KV_CACHE_USAGE, 0.2, at=2.0)
    assert dict(attributes.items()) == {KV_CACHE_USAGE: Sample(0.2, 2.0)}


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
