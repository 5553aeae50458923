import pytest

from shared.config.problems import Invalid, Problem, Problems, join, nearest, show


def test_warnings_alone_dont_make_a_document_invalid() -> None:
    problems = Problems()
    problems.warn("a", "x")
    problems.raise_if_any()
    problems.error("b", "y")
    with pytest.raises(Invalid, match="origin: b: y"):
        problems.raise_if_any("origin")


@pytest.mark.parametrize(
    ("word", "known", "suggested"),
    [
        ("queue-scorrer", ["random-picker", "queue-scorer"], "queue-scorer"),
        *(("PluginREF", ["pluginRef"], "pluginRef"), ("hott", ["hot"], "hot"), ("ho", ["hot"], "")),
        *(("hto", ["cold", "hot"], "hot"), ("ohtel", ["hotel"], "hotel"), ("colldd", ["cold"], "cold")),
        *(("queue_socrer", ["queue-scorer"], "queue-scorer"), ("depth-b", ["depth-aa", "depth-a"], "depth-a")),
        *(("depth-b", ["depth-c", "depth-a"], "depth-c"), ("heat", ["beak"], "")),
        *(("decode-filter", ["served-model-filter", "label-selector-filter"], ""), ("queue", ["queue-scorer"], "")),
        *(("a", ["b"], ""), ("", ["a"], "")),
    ],
)
def test_a_known_word_is_offered_within_one_slip_of_a_short_word_and_two_of_a_longer_one(
    word: str, known: list[str], suggested: str
) -> None:
    assert nearest(word, known) == (f"; did you mean {suggested!r}?" if suggested else "")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "null"), (True, "true"), (False, "false"), (5, "5"), ("a", "'a'"), ([1, 2], "[1, 2]"), ("a\nb", r"'a\nb'")],
)
def test_a_value_is_shown_on_one_line_as_a_document_writes_it(value: object, shown: str) -> None:
    assert show(value) == shown


def test_a_long_value_is_cut_and_a_number_too_long_to_print_is_described() -> None:
    assert (len(show("x" * 1000)), len(show("x" * 78))) == (78, 80)
    assert show(10**5000) == "a number too long to print"


def test_words_of_any_length_are_told_apart_quickly() -> None:
    """Comparing two words takes time that grows with their lengths, and a document may have thousands of both."""
    long = "x" * 100_000
    assert nearest(long, [f"{long}y"]) == ""
    assert nearest("x" * 60 + "abcd", ["x" * 59 + "abcd", "y" * 64]) == f"; did you mean {'x' * 59 + 'abcd'!r}?"


def test_only_the_first_problems_of_a_document_have_hints() -> None:
    problems = Problems()
    hints = []
    for number in range(200):
        hints.append(problems.hint("headrom", ["headroom"]))
        problems.error(f"{number}", "unknown")
    assert hints[0] == "; did you mean 'headroom'?"
    assert 10 < hints.count(hints[0]) < 100


def test_a_message_is_short_whatever_is_wrong() -> None:
    error = Invalid([Problem(join("", "k" * 100_000), f"{number}") for number in range(10_000)], "file.yaml")
    assert len(error.problems) == 10_000
    assert error.lines()[-1] == "file.yaml: … and 9900 more problems"
    assert len(str(error)) < 20_000
