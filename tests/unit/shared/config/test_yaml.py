import sys
from types import FrameType

import pytest

from shared.config.problems import Problems
from shared.config.yaml import MAX_DEPTH, MAX_DIGITS, MAX_PLAIN, parse_documents


def read(text: str) -> tuple[list[object], list[str]]:
    """(the documents, the problems as text)."""
    problems = Problems()
    return parse_documents(text, problems), [str(error) for error in problems.errors]


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n---\n", "null\n", "~"])
def test_empty_documents_are_left_out(text: str) -> None:
    assert read(text) == ([], [])


@pytest.mark.parametrize(
    ("text", "documents", "problems"),
    [
        ("---\na: 1\n---\n---\nb: 2\n", [{"a": 1}, {"b": 2}], []),
        ('{\n\t"a": 1e3,\n\t"b": [1.5E-1, -2e+2]}', [{"a": 1000.0, "b": [0.15, -200.0]}], []),
        (r'{"a": "\ud83d\ude00"}', [{"a": "😀"}], []),
        (r'{"a": "\ud83d\ude00", "a": 1}', [{"a": 1}], ["document: duplicate key 'a'"]),
        ("one: {<<: &base {x: 1, y: 2}, y: 3}", [{"one": {"x": 1, "y": 3}}], []),
        (
            "one: &one {<<: &base {k: 1}, k: 2}\ntwo: {<<: *one, k: 3}\nthree: *one\n",
            [{"one": {"k": 2}, "two": {"k": 3}, "three": {"k": 2}}],
            [],
        ),
        (
            "a: 1\nb:\n- {c: 1, c: 2}\n- d: 1\na: 2\n",
            [{"a": 2, "b": [{"c": 2}, {"d": 1}]}],
            ["b[0].c: duplicate key (line 3)", "a: duplicate key (line 5)"],
        ),
        (
            "a: 1\n---\nb: [\n",
            [{"a": 1}],
            ["document: not valid YAML: did not find expected node content (line 4)"],
        ),
        ("a: &a {x: 1}\nb: [" + "*a, " * 3000 + "]\n", [{"a": {"x": 1}, "b": [{"x": 1}] * 3000}], []),
    ],
    ids=[
        *("a stream", "JSON", "JSON that is no YAML: surrogates", "a duplicate key in JSON that is no YAML"),
        *("merge keys", "merged and overridden: no duplicates", "duplicate keys, and the rest is read"),
        *("documents before a syntax error", "many aliases of small things"),
    ],
)
def test_documents_are_read_with_their_problems(text: str, documents: list[object], problems: list[str]) -> None:
    assert read(text) == (documents, problems)


@pytest.mark.parametrize(
    ("text", "documents", "problems"),
    [
        ("a: " + "é😀" * 50_000 + "\nb: *c\n", [], ["document: not valid YAML: found undefined alias (line 2)"]),
        ("é: 1\n" + "# 😀\n" * 50_000 + "b: 2\n", [{"é": 1, "b": 2}], []),
        ("# é\n" * 50_000 + "b: 1\nb: 2\n", [{"b": 2}], ["b: duplicate key (line 50002)"]),
        ("\ufeffa: 1\n", [{"a": 1}], []),
    ],
    ids=["an error", "characters of several bytes", "a duplicate key", "a byte order mark"],
)
def test_a_long_text_is_read_in_pieces_with_the_same_lines(
    text: str, documents: list[object], problems: list[str]
) -> None:
    assert read(text) == (documents, problems)


def test_python_code_and_so_other_threads_run_while_one_long_value_is_read() -> None:
    def calls(text: str) -> int:
        made = 0

        def count(_: FrameType, event: str, __: object) -> None:
            nonlocal made
            made += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            read(text)
        finally:
            sys.setprofile(before)
        return made

    assert calls('a: "' + "x " * 500_000 + '"') > calls('a: "x"') + 50


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: !!python/object/apply:os.getcwd []\n", "could not determine a constructor for the tag"),
        ("a: \x00\n", "control characters are not allowed"),
        ("[" * 300_000, "nested deeper than"),  # the C composer kills the process at this depth
        (
            "a0: &a0 x\n" + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)),
            "its aliases stand for",
        ),
        ("a: &a " + "x" * 10_000 + "\nb: [" + "*a, " * 20 + "]", "its aliases stand for 210002 characters"),
    ],
    ids=[
        "a tag that would run code",
        "control characters",
        "nesting that would overflow the stack",
        "billions",
        "a long text",
    ],
)
def test_what_would_harm_is_refused_in_one_line(text: str, expected: str) -> None:
    documents, [problem] = read(text)
    assert documents == []
    assert expected in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1\nb: 2\n", "document: not valid YAML: did not find expected ',' or ']' (line 2)"),
        ("a: 'x\n", "document: not valid YAML: found unexpected end of stream (line 2)"),
        ("a: *b\n", "document: not valid YAML: found undefined alias (line 1)"),
        ("? [1, 2]\n: 3\n", "document: not valid YAML: found unhashable key (line 1)"),
        (
            f"a: {'1:' * MAX_DIGITS}1\n",
            f"document: not valid YAML: '{'1:' * 38}… is a number of more than {MAX_DIGITS} digits",
        ),
        ("a: 2024-13-45\n", "document: not valid YAML: month must be in 1..12"),
        ("[" * (MAX_DEPTH + 1), f"document: not valid YAML: nested deeper than {MAX_DEPTH} levels (line 1)"),
        ("- " * (MAX_DEPTH + 1), f"document: not valid YAML: nested deeper than {MAX_DEPTH} levels (line 1)"),
        ("a: &a [*a]\n", "a[0]: an alias of a value that contains it (line 1)"),
    ],
)
def test_what_is_no_yaml_is_said_with_its_line(text: str, problem: str) -> None:
    assert read(text) == ([], [problem])


@pytest.mark.parametrize(
    "value", ['!!int ""', '!!int "-"', '!!float ""', '!!bool "x"', '!!timestamp "x"', ":".join(["1"] * 200) + ":1.0"]
)
def test_a_value_that_is_not_what_its_tag_says_is_a_problem(value: str) -> None:
    assert read(f"a: {value}") == ([], ["document: not valid YAML: a value isn't what its tag says"])


@pytest.mark.parametrize("digits", ["9", "1:", "0", "_"])
def test_what_has_more_characters_than_any_number_is_a_text(digits: str) -> None:
    text = "9" + digits * MAX_PLAIN + "9"
    assert read(f"a: {text}") == ([{"a": text}], [])
