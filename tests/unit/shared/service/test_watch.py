"""When files are looked at."""

import asyncio
from pathlib import Path

from shared.service import watch
from shared.service.watch import looks


def test_a_path_is_watched_where_a_rename_can_change_what_it_means(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").touch()
    (tmp_path / "near").mkdir()
    link = tmp_path / "near" / "link"
    link.symlink_to("../far/file")
    assert {path.resolve() for path in watch._identities([link])} == {tmp_path / "near", tmp_path / "far"}
    assert set(watch._identities([tmp_path / "far"])) == {tmp_path, tmp_path / "far"}


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert set(watch._identities([tmp_path / "a"])) == {tmp_path}


async def test_the_first_look_is_at_once() -> None:
    async with asyncio.timeout(60):
        async for _ in looks(list, 3600.0):
            break


async def test_without_a_directory_to_watch_there_are_looks_at_the_interval(tmp_path: Path) -> None:
    count = 0
    async with asyncio.timeout(60):
        async for _ in looks(lambda: [tmp_path / "nowhere" / "file"], 0.01):
            count += 1
            if count == 3:
                break
    assert count == 3
