"""Lines of problems, and documents cut out of a stream."""

from collections.abc import Callable

import pytest

from services.watcher.drain_file import set_drain
from services.watcher.positions import document_text, with_lines
from shared.config.problems import Problem, join
from shared.config.yaml import Text

STREAM = """\
# first
a:
  b.c/d:
  - x: 1
  - y: 2
---
# empty
---
kind: second
text: |
  ---not a document
...
"""


def line(path: str, index: int = 0) -> int | None:
    [problem] = with_lines(STREAM, index, [Problem(path, "")])
    return problem.line


@pytest.mark.parametrize(
    ("path", "index", "expected"),
    [
        ("a", 0, 2),
        ("a.b.c/d", 0, 3),
        ("a.b.c/d[1].y", 0, 5),
        ("a.b.c/d[1].z", 0, 5),  # what is missing has the line of what is around it
        ("a.q.r", 0, 2),
        ("kind", 1, 9),  # empty documents don't count
        ("a", 9, None),  # there is no such document
    ],
)
def test_a_path_has_the_line_of_its_key(path: str, index: int, expected: int | None) -> None:
    assert line(path, index) == expected


def test_a_shortened_key_that_looks_like_a_position_has_the_line_of_what_is_around_it() -> None:
    long = f"a[²]{'b' * 100}"
    [problem] = with_lines(f'a:\n- x\n"{long}": 1\n', 0, [Problem(join("", long), "")])
    assert problem.line == 1


def test_a_line_that_is_known_already_stays() -> None:
    assert with_lines(STREAM, 0, [Problem("a", "", 77)]) == [Problem("a", "", 77)]


def test_a_stream_of_one_document_is_that_document() -> None:
    text = "# comment\n---\na: 1\n# end\n"
    assert document_text(text, 0) == (1, text)


def test_a_document_is_cut_out_as_it_was_written() -> None:
    assert document_text(STREAM, 0) == (1, "# first\na:\n  b.c/d:\n  - x: 1\n  - y: 2\n")
    assert document_text(STREAM, 1) == (8, "---\nkind: second\ntext: |\n  ---not a document\n...\n")


@pytest.mark.parametrize(
    "look",
    [
        lambda text: with_lines(text, 0, [Problem("a", "")]),
        lambda text: document_text(text, 0),
        lambda text: set_drain(text, "default/a", True),
    ],
)
def test_a_long_text_is_read_in_pieces_so_that_other_threads_run(
    look: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    read = Text.read

    def counted(text: Text, size: int = 0, /) -> str:
        piece = read(text, size)
        sizes.append(len(piece))
        return piece

    monkeypatch.setattr(Text, "read", counted)
    look(f"a: {'x' * 2**20}")
    assert len(sizes) > 10
    assert max(sizes) < 2**16
