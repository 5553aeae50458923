"""The command line itself, as a process."""

import gc
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pointsman.cli import imported, main

ROOT = Path(__file__).parents[3]


def test_an_interrupt_that_no_command_handles_ends_it_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while a command's modules are imported."""

    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr() == ("", "")


def test_garbage_is_collected_again_after_the_modules_came_but_not_in_them() -> None:
    frozen = gc.get_freeze_count()
    try:
        assert imported("pointsman.cli") is importlib.import_module("pointsman.cli")
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
        with pytest.raises(ModuleNotFoundError):
            imported("pointsman.nothing")
        assert gc.isenabled()
    finally:
        gc.unfreeze()


@pytest.mark.command_line
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["simulator", "--help"]])
def test_output_that_nobody_reads_ends_the_command_without_a_word(arguments: list[str]) -> None:
    """`pointsman picker --help | head -1`, with a reader that is gone before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pointsman", *arguments],
            cwd=ROOT,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr.decode()) == (1, "")


def test_an_unknown_command_is_told_with_the_one_that_may_be_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekc"]) == 2
    assert capsys.readouterr().err.startswith("pointsman: unknown command 'chekc'; did you mean 'check'?\n")
