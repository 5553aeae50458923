"""What the command does before and after the demo itself: flags, directory, versions."""

import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from pointsman.demo.app import main
from pointsman.demo.report import version_number


def test_every_wrong_flag_is_named_and_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--seconds", "-1", "--port", "70000", "--rate", "0", "--seed", "x", "--fast"]) == 1
    output = capsys.readouterr().err
    assert all(flag in output for flag in ("--seconds", "--port", "--rate", "--seed", "--fast"))
    assert list(tmp_path.iterdir()) == []


def test_help_lists_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    output = capsys.readouterr().out
    assert all(flag in output for flag in ("--seconds", "--port", "--rate", "--seed", "--plain", "--keep"))


def test_without_any_place_to_write_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(**_: object) -> str:
        raise OSError("no room")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    assert main([]) == 1
    assert capsys.readouterr().err == "pointsman demo: cannot create a directory for files and logs: no room\n"


class Without(ModuleType):
    """The module of the demo where its import fails, as `missing` isn't installed."""

    def __init__(self, missing: str) -> None:
        super().__init__("pointsman.demo.demo")
        self.missing = missing

    def __getattr__(self, name: str) -> None:
        raise ModuleNotFoundError(name=self.missing)


def test_what_must_be_installed_for_the_demo_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pointsman.demo.demo", Without("httpx"))
    assert main([]) == 1
    output = capsys.readouterr().err
    assert output == "pointsman demo: httpx is missing; `pip install 'pointsman[local]'` installs it\n"


def test_an_import_of_anything_else_that_fails_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pointsman.demo.demo", Without("numpy"))
    with pytest.raises(ModuleNotFoundError):
        main([])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("nats-server: v2.15.1\n", "2.15.1"),
        ("\nenvoy  version: 8e5f/1.40.0/Clean/RELEASE/BoringSSL\n", "1.40.0"),
        ("unknown", "?"),
    ],
)
def test_version_numbers_are_found(text: str, found: str) -> None:
    assert version_number(text) == found
