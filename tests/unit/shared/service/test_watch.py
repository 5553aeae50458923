"""When files are looked at."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from shared.service.watch import watch_files


@pytest.mark.parametrize(
    ("paths", "interval", "count"),
    [
        ([], 3600.0, 1),
        (["nowhere/file"], 0.01, 3),
        (["circle"], 0.01, 3),
        (["long"], 0.01, 3),
        (["x" * 300], 0.01, 3),
    ],
    ids=["the first is at once", "no directory to watch", "links in a circle", "a link to a long name", "a long name"],
)
async def test_there_are_looks_at_once_and_at_the_interval(
    tmp_path: Path, paths: Sequence[str], interval: float, count: int
) -> None:
    (tmp_path / "circle").symlink_to("back")
    (tmp_path / "back").symlink_to("circle")
    (tmp_path / "long").symlink_to("x" * 300)
    async for _ in watch_files(lambda: [tmp_path / path for path in paths], interval):
        count -= 1
        if count == 0:
            break
