import pytest

from shared.config.problems import Invalid, Problems, nearest, show


def test_warnings_alone_dont_make_a_document_invalid() -> None:
    problems = Problems()
    problems.warn("a", "x")
    problems.raise_if_any()
    problems.error("b", "y")
    with pytest.raises(Invalid, match="origin: b: y"):
        problems.raise_if_any("origin")


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("queue-scorrer", ["random-picker", "queue-scorer"], "queue-scorer"),
        *(("PluginREF", ["pluginRef"], "pluginRef"), ("hott", ["hot"], "hot"), ("ho", ["hot"], "")),
        *(("hto", ["cold", "hot"], "hot"), ("colldd", ["cold"], "cold")),
        *(("queue_socrer", ["queue-scorer"], "queue-scorer"), ("depth-b", ["depth-aa", "depth-a"], "depth-a")),
        *(("depth-b", ["depth-c", "depth-a"], "depth-c"), ("heat", ["beak"], "")),
        *(("decode-filter", ["served-model-filter", "label-selector-filter"], ""), ("queue", ["queue-scorer"], "")),
        *(("a", ["b"], ""), ("", ["a"], "")),
    ],
)
def test_a_known_word_is_offered_within_one_slip_of_a_short_word_and_two_of_a_longer_one(
    word: str, known: list[str], meant: str
) -> None:
    assert nearest(word, known) == (f"; did you mean {meant!r}?" if meant else "")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "null"), (True, "true"), (False, "false"), (5, "5"), ("a", "'a'"), ([1, 2], "[1, 2]"), ("a\nb", r"'a\nb'")],
)
def test_a_value_is_shown_on_one_line_as_a_document_writes_it(value: object, shown: str) -> None:
    assert show(value) == shown


def test_a_long_value_is_cut_and_a_number_too_long_to_print_is_described() -> None:
    assert (len(show("x" * 1000)), len(show("x" * 78))) == (78, 80)
    assert show(10**5000) == "a number too long to print"
