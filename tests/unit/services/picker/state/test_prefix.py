import pytest

from services.picker.state.prefix import HASHING, block_hashes


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


def test_hashes_of_this_version_stay_what_they_are() -> None:
    """Pickers of different versions share them: another hash needs another `HASHING`."""
    prompt = b"The points are set for the down line. " * 20
    found = block_hashes(prompt, 256, b"model\x00\x0064", 0)
    assert (HASHING, found) == (1, [16641377819409298299, 15546238489364177047, 12892850334290139678])


def test_no_more_blocks_than_asked_for() -> None:
    whole = block_hashes(b"aaaabbbbccccd", 4, b"", 0)
    assert block_hashes(b"aaaabbbbccccd", 4, b"", 3) == whole[:3]
    assert block_hashes(b"aaaabbbbccccd", 4, b"", 9) == whole
