import pytest

from services.picker.state.layout import Layout
from services.picker.state.prefix import FEW, LruPrefixIndex, block_hashes
from tests.unit.services.picker.world import endpoint


def index(*names: str) -> LruPrefixIndex:
    made = LruPrefixIndex()
    made.relayout(Layout([endpoint(name) for name in names]))
    return made


def matches(made: LruPrefixIndex, hashes: list[int]) -> list[float]:
    counts: list[float] = made.match(hashes).tolist()
    return counts


@pytest.mark.parametrize(("prompt", "blocks"), [(b"", 0), (b"aaa", 1), (b"aaaa", 1), (b"aaaabb", 2), (b"aaaabbbb", 2)])
def test_a_last_partial_block_counts_as_one(prompt: bytes, blocks: int) -> None:
    assert len(block_hashes(prompt, 4, b"", 0)) == blocks


def test_a_block_stands_for_all_that_precedes_it() -> None:
    first, other = block_hashes(b"aaaabbbbcccc", 4, b"", 0), block_hashes(b"aaaaXbbbcccc", 4, b"", 0)
    assert first[0] == other[0]
    assert not set(first[1:]) & set(other[1:])
    assert len(set(block_hashes(b"aaaa" * 8, 4, b"", 0))) == 8


def test_a_longer_prompt_begins_with_the_whole_blocks_of_a_shorter_one() -> None:
    short, long = block_hashes(b"aaaabbbbcc", 4, b"", 0), block_hashes(b"aaaabbbbccccdd", 4, b"", 0)
    assert long[:2] == short[:2]
    assert long[2] != short[2]


def test_what_must_not_share_a_cache_has_no_block_in_common() -> None:
    assert not set(block_hashes(b"aaaabbbb", 4, b"one", 0)) & set(block_hashes(b"aaaabbbb", 4, b"two", 0))


def test_no_more_blocks_than_asked_for() -> None:
    whole = block_hashes(b"aaaabbbbccccd", 4, b"", 0)
    assert block_hashes(b"aaaabbbbccccd", 4, b"", 3) == whole[:3]
    assert block_hashes(b"aaaabbbbccccd", 4, b"", 9) == whole


def test_many_endpoints_are_counted_as_few_are() -> None:
    names = [f"a{number:03}" for number in range(3 * FEW + 70)]
    made = index(*names)
    for at, name in enumerate(names):
        made.add(name, list(range(1, 1 + at % 5)), 100)
    assert matches(made, [1, 2, 3, 4, 5]) == [at % 5 for at in range(len(names))]


def test_an_endpoint_that_has_gone_matches_nothing_and_its_blocks_are_swept_little_by_little() -> None:
    made = index("a1", "a2")
    made.add("a1", list(range(10)), 100)
    made.add("a2", [0, 1], 100)
    made.relayout(Layout([endpoint("a2")]))
    assert matches(made, [0, 1, 2]) == [2]
    assert (len(made), made.blocks_of("a1")) == (10, 0)
    made.sweep(4)
    assert len(made) == 8, "two of the four youngest are the other endpoint's too"
    made.sweep(4)
    made.sweep(4)
    assert len(made) == 2
    assert matches(made, [0, 1, 2]) == [2]


def test_a_block_stays_until_its_last_placement_is_forgotten() -> None:
    made = index("a1")
    for _ in range(3):
        made.add("a1", [1], 100)
    for held in (1, 1, 0):
        made.forget("a1", [1])
        assert matches(made, [1]) == [held]
