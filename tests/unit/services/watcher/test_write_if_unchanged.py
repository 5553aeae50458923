"""What a file keeps when its content is written over."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from services.watcher import write_if_unchanged as module
from services.watcher.write_if_unchanged import write_if_unchanged

BEFORE, AFTER = b"before, and longer", b"after"


def fail(number: int) -> object:
    def call(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("fails", "error", "in_place"),
    [
        ("", 0, False),
        ("fchown", errno.EPERM, True),
        ("rename", errno.EBUSY, True),
        ("link", 0, True),
    ],
)
@pytest.mark.parametrize("stale", [False, True])
def test_the_file_is_replaced_or_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, error: int, in_place: bool, stale: bool
) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_bytes(BEFORE)
    file.chmod(0o640)
    if fails == "link":
        other.hardlink_to(file)
    elif fails == "fchown":
        monkeypatch.setattr(os, "fchown", fail(error))
    elif fails:
        monkeypatch.setattr(Path, "replace", fail(error))
    names, was = sorted(tmp_path.iterdir()), file.stat()
    assert write_if_unchanged(file, AFTER if stale else BEFORE, AFTER) is not stale
    status = file.stat()
    assert file.read_bytes() == (BEFORE if stale else AFTER)
    assert (status.st_uid, status.st_gid, status.st_mode) == (was.st_uid, was.st_gid, was.st_mode)
    assert (status.st_ino == was.st_ino) is (in_place or stale)
    assert sorted(tmp_path.iterdir()) == names


def test_a_reader_that_keeps_the_lock_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCKED", 0.1)
    file = tmp_path / "file"
    file.write_bytes(BEFORE)
    with file.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        with pytest.raises(TimeoutError, match="another process has locked it"):
            write_if_unchanged(file, BEFORE, AFTER)
    assert file.read_bytes() == BEFORE
    assert write_if_unchanged(file, BEFORE, AFTER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(BEFORE)
    os.chown(file, 12, 34)
    assert write_if_unchanged(file, BEFORE, AFTER)
    assert (file.stat().st_uid, file.stat().st_gid) == (12, 34)


@pytest.mark.parametrize("link", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool) -> None:
    file = tmp_path / "file"
    file.write_bytes(BEFORE)
    if link:
        (tmp_path / "other").hardlink_to(file)
    names, fsync, failures = sorted(tmp_path.iterdir()), os.fsync, iter([errno.ENOSPC])

    def full_once(handle: int) -> None:
        for number in failures:
            raise OSError(number, os.strerror(number))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full_once)
    with pytest.raises(OSError, match="No space left"):
        write_if_unchanged(file, BEFORE, AFTER)
    assert file.read_bytes() == BEFORE
    assert sorted(tmp_path.iterdir()) == names
