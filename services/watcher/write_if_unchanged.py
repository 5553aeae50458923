"""Writes a file that others read and change too, so that no change and nothing about the file gets lost."""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from uuid import uuid4

_IN_PLACE = {errno.EACCES, errno.EBUSY, errno.EINVAL, errno.EPERM, errno.EROFS}
"""Why there can be no new file of the same owner in its place. EBUSY: it is a mount point."""
LOCKED = 2.0
"""Seconds for which another process may hold the file's lock."""
_LOOK_AGAIN = 0.05


def write_if_unchanged(path: Path, before: bytes, after: bytes) -> bool:
    """Write `after`; False if the file isn't `before` any more. The path has no link at its end. Raises OSError, which
    is a TimeoutError if another process keeps the file's lock.

    The whole file is replaced at once, so that no watcher reads a part of it. Owner, group, mode and extended
    attributes stay. Where that can't be, and if the file has other names, it is written in place.
    """
    with _locked(path):
        if path.stat().st_nlink == 1:
            try:
                return _replace(path, before, after)
            except OSError as error:
                if error.errno not in _IN_PLACE:
                    raise
        return _overwrite(path, before, after)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file that has this path."""
    end = time.monotonic() + LOCKED
    while True:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _lock(handle, end)
            if os.path.samestat(os.fstat(handle), path.stat()):
                yield
                return
        finally:
            os.close(handle)


def _lock(handle: int, end: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise TimeoutError(errno.ETIMEDOUT, f"another process has locked it for {LOCKED:g} s") from None
            time.sleep(_LOOK_AGAIN)
        except OSError:  # a file system without locks
            return
        else:
            return


def _replace(path: Path, before: bytes, after: bytes) -> bool:
    part = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    try:
        with FileIO(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            status = path.stat()
            os.fchown(file.fileno(), status.st_uid, status.st_gid)
            _write(file, after)
        shutil.copystat(path, part)
        os.utime(part)
        if path.read_bytes() != before:
            return False
        part.replace(path)
        return True
    finally:
        part.unlink(missing_ok=True)


def _overwrite(path: Path, before: bytes, after: bytes) -> bool:
    with FileIO(path, "r+") as file:
        if file.read() != before:
            return False
        try:
            _write(file, after)
        except OSError:
            _write(file, before)  # such as on a full disk, where what was there still fits
            raise
        return True


def _write(file: FileIO, data: bytes) -> None:
    """Make the file's content this."""
    file.seek(0)
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    file.truncate()
    os.fsync(file.fileno())
