"""Files that flags name."""

import os
from pathlib import Path

import pytest

from shared.bus.credentials import CredentialsFile
from shared.bus.errors import BusOptionError
from shared.config.problems import Invalid
from shared.service.settings import MAX_TEXT, read_text


def test_a_file_that_a_flag_names_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"x" * MAX_TEXT)
    assert len(read_text(str(path), "--config-file")) == MAX_TEXT
    path.write_bytes(b"x" * (MAX_TEXT + 1))
    with pytest.raises(Invalid, match=f"--config-file: '{path}' is larger than 1048576 bytes"):
        read_text(str(path), "--config-file")


def test_a_file_without_an_end_is_not_read_for_ever(tmp_path: Path) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    handles = len(os.listdir("/dev/fd"))
    for path in ("/dev/zero", pipe, str(tmp_path)):
        with pytest.raises(Invalid, match=f"--config-file: '{path}' can't be read: not a regular file"):
            read_text(path, "--config-file")
        with pytest.raises(BusOptionError, match="can't be read: not a regular file"):
            CredentialsFile(Path(path))
    assert len(os.listdir("/dev/fd")) == handles
