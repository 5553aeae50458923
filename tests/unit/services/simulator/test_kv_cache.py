from services.simulator.kv_cache import KvCache


def test_a_block_that_two_requests_hold_is_used_once() -> None:
    cache = KvCache(10)
    cache.grow(2)
    cache.publish([1, 2])
    assert cache.match([1, 2, 3]) == 2
    assert cache.allocate([1, 2], 1)
    assert cache.used == 3
    cache.release([1, 2], 0)
    assert (cache.used, cache.cached) == (3, 0)
    cache.release([1, 2], 1)
    assert (cache.used, cache.cached) == (0, 2)


def test_a_block_that_is_computed_twice_is_kept_once() -> None:
    cache = KvCache(10)
    cache.grow(2)
    cache.publish([1])
    cache.publish([1])
    assert cache.used == 1
    cache.release([1], 0)
    cache.release([1], 0)
    assert (cache.used, cache.cached) == (0, 1)


def test_matching_stops_at_the_first_gap() -> None:
    cache = KvCache(10)
    cache.grow(2)
    cache.publish([1, 3])
    assert cache.match([1, 2, 3]) == 1


def test_without_room_nothing_is_taken() -> None:
    cache = KvCache(4)
    cache.grow(3)
    cache.publish([1, 2, 3])
    cache.release([1, 2, 3], 0)
    assert not cache.allocate([1, 2], 3), "the two hits are needed themselves: two blocks are left"
    assert (cache.used, cache.cached) == (0, 3)
    assert cache.allocate([1, 2], 2)
    assert (cache.used, cache.cached, cache.evictions) == (4, 0, 1)
