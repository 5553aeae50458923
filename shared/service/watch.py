"""When to read files again: after notifications of the system, and at an interval.

Directories are watched, because a file replaced by a rename, or a Kubernetes ConfigMap whose `..data` link is swapped,
has a new inode. The interval serves file systems without notifications, distant links, and watches that died with their
directory.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import structlog
from watchfiles import awatch

log = structlog.get_logger(__name__)

QUIET_MS = 20
"""A burst of changes is over when nothing changed for so long; a writer's pieces are read as one."""
MAX_BURST_MS = 200
"""A burst that goes on is looked at after so long."""
MAX_LINKS = 40
"""Symbolic links that are followed from one path (Linux's own limit)."""


async def watch_files(paths: Callable[[], Iterable[Path]], interval: float) -> AsyncIterator[None]:
    """Yield whenever something under the paths may have changed: at once, after notices, and every interval."""
    complained = False
    while True:
        yield
        directories = await asyncio.to_thread(_identities, list(paths()))
        try:
            if not directories:
                raise FileNotFoundError("none of the directories exists")
            notices = awatch(
                *directories,
                watch_filter=None,
                debounce=MAX_BURST_MS,
                step=QUIET_MS,
                rust_timeout=max(1, round(interval * 1000)),
                yield_on_timeout=True,
                recursive=False,
            )
            async with contextlib.aclosing(notices):
                async for _ in notices:
                    complained = False
                    yield
                    if await asyncio.to_thread(_identities, list(paths())) != directories:
                        break  # a watch holds on to the directory that it began with
        except (OSError, RuntimeError) as error:
            if not complained:
                log.warning("files.not_watched", reason=str(error), looking_every=interval)
            complained = True
            await asyncio.sleep(interval)


def file_signature(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """What a change or replacement of a file alters: device, inode, size, when it was modified and changed (ns)."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _identities(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """The existing directories to watch, with device and inode. For a thread: network file systems can block."""
    found: dict[Path, tuple[int, int]] = {}
    for path in paths:
        for directory in _directories(path):
            with contextlib.suppress(OSError):
                status = directory.stat()
                found[directory] = (status.st_dev, status.st_ino)
    return found


def _directories(path: Path) -> list[Path]:
    """Those in which a rename can change what the path means: its own, its parent, and its links' parents; as far as
    they can be found: a path may be forbidden, too long, or on a file system that is gone."""
    found: list[Path] = []
    with contextlib.suppress(OSError):
        link = path
        for _ in range(MAX_LINKS):
            found.append(link.absolute().parent)
            if not link.is_symlink():
                break
            link = link.parent / link.readlink()
        if path.is_dir():
            found.append(path)
    return found
