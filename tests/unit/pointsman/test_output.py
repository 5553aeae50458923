"""Texts of others don't reach a terminal as they are."""

import json

import pytest

from pointsman.command import print_json
from pointsman.output import print_lines
from pointsman.table import text_table
from shared.printable import printable

EVIL = "a\x1b[2J\x9b1m\x7f\u202e\rb"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("vllm-0 · ü – 模", "vllm-0 · ü – 模"), (EVIL, r"a\x1b[2J\x9b1m\x7f\u202e\rb"), ("a\nb", r"a\nb"), ("", "")],
)
@pytest.mark.parametrize("error", [False, True])
def test_other_characters_are_escaped(capsys: pytest.CaptureFixture[str], text: str, shown: str, error: bool) -> None:
    assert printable(text) == shown
    print_lines([text, "next"], error=error)
    captured = capsys.readouterr()
    assert (captured.err if error else captured.out) == f"{shown}\nnext\n"


def test_columns_are_as_wide_as_what_is_shown() -> None:
    assert text_table(["id", "x"], [["\x1b", "1"]]) == ["id    x", r"\x1b  1"]


def test_json_keeps_the_text_without_its_controls(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"id": EVIL})
    written = capsys.readouterr().out
    assert not set(written) & {"\x1b", "\x9b", "\x7f", "\u202e"}
    assert json.loads(written) == {"id": EVIL}


def test_what_is_nested_too_deeply_is_said_in_one_line() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(SystemExit, match="nested too deeply"):
        print_json(nested)
