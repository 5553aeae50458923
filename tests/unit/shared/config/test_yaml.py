import pytest

from shared.config.problems import Problems
from shared.config.yaml import MAX_DEPTH, parse_documents


def read(text: str) -> tuple[list[object], list[str]]:
    """(the documents, the problems as text)."""
    problems = Problems()
    return parse_documents(text, problems), [str(one) for one in problems.errors]


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n---\n", "null\n", "~"])
def test_empty_documents_are_left_out(text: str) -> None:
    assert read(text) == ([], [])


def test_a_stream_is_several_documents() -> None:
    assert read("---\na: 1\n---\n---\nb: 2\n") == ([{"a": 1}, {"b": 2}], [])


def test_json_is_read_with_tabs_and_its_numbers() -> None:
    assert read('{\n\t"a": 1e3,\n\t"b": [1.5E-1, -2e+2]}') == ([{"a": 1000.0, "b": [0.15, -200.0]}], [])


def test_json_that_is_no_yaml_is_read() -> None:
    r"""YAML has no surrogate pairs; `json.dumps` writes emoji so."""
    assert read(r'{"a": "\ud83d\ude00"}') == ([{"a": "😀"}], [])


def test_merge_keys_are_read() -> None:
    text = "base: &base {x: 1, y: 2}\none:\n  <<: *base\n  y: 3\n"
    assert read(text) == ([{"base": {"x": 1, "y": 2}, "one": {"x": 1, "y": 3}}], [])


def test_a_merged_mapping_that_overrides_what_it_merges_has_no_duplicates() -> None:
    text = "one: &one {<<: &base {k: 1}, k: 2}\ntwo: {<<: *one, k: 3}\nthree: *one\n"
    assert read(text) == ([{"one": {"k": 2}, "two": {"k": 3}, "three": {"k": 2}}], [])


def test_every_duplicate_key_is_named_with_its_path_and_line_and_the_rest_is_read() -> None:
    documents, problems = read("a: 1\nb:\n- {c: 1, c: 2}\n- d: 1\na: 2\n")
    assert problems == ["b[0].c: duplicate key (line 3)", "a: duplicate key (line 5)"]
    assert documents == [{"a": 2, "b": [{"c": 2}, {"d": 1}]}]


def test_a_duplicate_key_in_json_that_is_no_yaml_is_a_problem_too() -> None:
    assert read(r'{"a": "\ud83d\ude00", "a": 1}') == ([{"a": 1}], ["document: duplicate key 'a'"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1\nb: 2\n", "document: not valid YAML: did not find expected ',' or ']' (line 2)"),
        ("a: 'x\n", "document: not valid YAML: found unexpected end of stream (line 2)"),
        ("a: *b\n", "document: not valid YAML: found undefined alias (line 1)"),
        ("? [1, 2]\n: 3\n", "document: not valid YAML: found unhashable key (line 1)"),
        ("a: 2024-13-45\n", "document: not valid YAML: month must be in 1..12"),
        ("[" * (MAX_DEPTH + 1), f"document: not valid YAML: nested deeper than {MAX_DEPTH} levels (line 1)"),
        ("- " * (MAX_DEPTH + 1), f"document: not valid YAML: nested deeper than {MAX_DEPTH} levels (line 1)"),
        ("a: &a [*a]\n", "a[0]: an alias for what it is itself a part of (line 1)"),
    ],
)
def test_what_is_no_yaml_is_said_with_its_line(text: str, problem: str) -> None:
    assert read(text) == ([], [problem])


def test_tags_that_would_run_code_are_refused() -> None:
    documents, [problem] = read("a: !!python/object/apply:os.getcwd []\n")
    assert documents == []
    assert "could not determine a constructor for the tag" in problem


def test_control_characters_are_refused_in_one_line() -> None:
    documents, [problem] = read("a: \x00\n")
    assert documents == []
    assert "control characters are not allowed" in problem
    assert "\n" not in problem


def test_documents_before_a_syntax_error_are_kept() -> None:
    documents, problems = read("a: 1\n---\nb: [\n")
    assert documents == [{"a": 1}]
    assert len(problems) == 1


def test_nesting_that_would_overflow_the_stack_is_refused() -> None:
    """The C composer kills the process at this depth."""
    assert read("[" * 300_000)[0] == []


def test_aliases_that_stand_for_billions_of_values_are_refused() -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    documents, [problem] = read("\n".join(["a0: &a0 x", *levels]))
    assert documents == []
    assert "its aliases stand for" in problem


def test_many_aliases_of_small_things_are_fine() -> None:
    documents, problems = read("a: &a {x: 1}\nb: [" + ", ".join(["*a"] * 3000) + "]\n")
    assert problems == []
    assert len(documents) == 1
