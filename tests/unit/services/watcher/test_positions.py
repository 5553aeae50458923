"""Lines of problems, and documents cut out of a stream."""

from services.watcher.positions import document_text, with_lines
from shared.config.problems import Problem

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


def test_a_path_has_the_line_of_its_key() -> None:
    assert line("a") == 2
    assert line("a.b.c/d") == 3
    assert line("a.b.c/d[1].y") == 5


def test_what_is_missing_has_the_line_of_what_is_around_it() -> None:
    assert line("a.b.c/d[1].z") == 5
    assert line("a.q.r") == 2


def test_empty_documents_do_not_count() -> None:
    assert line("kind", index=1) == 9


def test_a_line_that_is_known_already_stays() -> None:
    assert with_lines(STREAM, 0, [Problem("a", "", 77)]) == [Problem("a", "", 77)]


def test_a_document_that_is_not_there_gives_no_line() -> None:
    assert line("a", index=9) is None


def test_a_stream_of_one_document_is_that_document() -> None:
    text = "# comment\n---\na: 1\n# end\n"
    assert document_text(text, 0) == (1, text)


def test_a_document_is_cut_out_as_it_was_written() -> None:
    assert document_text(STREAM, 0) == (1, "# first\na:\n  b.c/d:\n  - x: 1\n  - y: 2\n")
    assert document_text(STREAM, 1) == (8, "---\nkind: second\ntext: |\n  ---not a document\n...\n")
