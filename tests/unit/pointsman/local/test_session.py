"""Where a session keeps its files, and what ends it."""

import asyncio
from pathlib import Path

import pytest

from pointsman.local.session import first_of, make_directory, remove_directory


def test_each_run_has_its_own_directory_which_goes_with_it(tmp_path: Path) -> None:
    base = tmp_path / ".run"
    each, other = make_directory("", "demo", base), make_directory("", "demo", base)
    assert each != other
    assert each.parent == other.parent == base
    (each / "envoy.log").touch()
    remove_directory(each)
    assert list(base.iterdir()) == [other]
    remove_directory(other)
    assert not base.exists()


def test_without_a_place_to_write_it_takes_a_temporary_directory(tmp_path: Path) -> None:
    taken = tmp_path / ".run"
    taken.touch()  # a file where the directory should be
    directory = make_directory("", "demo", taken)
    try:
        assert directory.is_dir()
        assert tmp_path not in directory.parents
    finally:
        remove_directory(directory)
    assert not directory.exists()
    assert directory.parent.exists()


def test_a_directory_of_the_user_is_made_and_may_exist(tmp_path: Path) -> None:
    given = tmp_path / "a" / "b"
    assert make_directory(str(given), "up") == make_directory(str(given), "up") == given


async def test_the_first_end_cancels_the_others_and_an_error_is_raised() -> None:
    cancelled: list[str] = []

    async def lasts(name: str) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.append(name)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("oops")

    await first_of(lasts("a"), asyncio.sleep(0))
    with pytest.raises(ValueError, match="oops"):
        await first_of(lasts("b"), fails())
    assert cancelled == ["a", "b"]
