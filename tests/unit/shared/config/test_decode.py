"""Decoding: every problem of a value at once, each at its path."""

from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from msgspec import UNSET, Meta, Struct, UnsetType

from shared.config.decode import MISSING, Expressions, decode
from shared.config.problems import Problems
from shared.config.schema import EACH_EXPRESSION, EXPRESSION, MAX_EXPRESSION, MAX_EXPRESSIONS
from shared.quantities import Duration, PositiveDuration, Size

NAN, INF = float("nan"), float("inf")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(Struct, frozen=True, rename="camel"):
    block_size: int = 1
    name: str = ""


class Outer(Struct, frozen=True, rename="camel"):
    weight: Annotated[float, Meta(ge=0)] = 1.0
    count: Annotated[int, Meta(gt=0, le=10)] = 1
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    labels: dict[str, str] = {}
    flag: bool = False


class Needy(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1)]
    port: int


def read(raw: object, kind: Any, **options: Any) -> tuple[Any, list[str]]:
    """(the value, or None after problems; the problems as text)."""
    problems = Problems()
    value = decode(raw, kind, "at", problems, **options)
    return (None if value is MISSING else value), [str(error) for error in problems.errors]


@pytest.mark.parametrize(
    ("raw", "kind", "value"),
    [
        *((5, int, 5), (5.0, int, 5), (5, float, 5.0), ("a", str, "a"), (True, bool, True)),
        *(("red", Colour, Colour.RED), ("on", Literal["on", "off"], "on"), (None, int | None, None)),
        *((5, int | None, 5), ([1, 2], list[int], [1, 2]), ([1, 2], tuple[int, ...], (1, 2))),
        *(({"a": 1}, dict[str, int], {"a": 1}), ({1: 1}, dict[str, int], {"1": 1}), ({"x": [1]}, Any, {"x": [1]})),
        *(("200ms", Duration, 0.2), (2, Duration, 2.0), ("64Ki", Size, 65536), (80, int | str, 80)),
        *(("80", int | str, "80"), ({"blockSize": 2}, Inner | UnsetType, Inner(2))),
    ],
)
def test_a_sound_value_is_converted(raw: object, kind: Any, value: object) -> None:
    assert read(raw, kind) == (value, [])


@pytest.mark.parametrize(
    ("raw", "kind", "problem"),
    [
        ("5", int, "'5' is a string; a whole number is expected"),
        (5.5, int, "5.5 is a number; a whole number is expected"),
        (True, int, "true is a boolean; a whole number is expected"),
        (False, float, "false is a boolean; a number is expected"),
        (None, float, "null; a number is expected"),
        (NAN, int, "nan is not a finite number"),
        (INF, int, "inf is not a finite number"),
        (NAN, float, "nan is not a finite number"),
        (-INF, float, "-inf is not a finite number"),
        (10**400, float, f"{str(10**400)[:77]}… is too large"),
        (5, str, "5 is a number; a string is expected"),
        ("yes", bool, "'yes' is a string; true or false is expected"),
        (1, bool, "1 is a number; true or false is expected"),
        ("green", Colour, "'green' isn't one of 'red', 'blue'"),
        (["red"], Colour, "['red'] isn't one of 'red', 'blue'"),
        ("of", Literal["on", "off"], "'of' isn't one of 'off', 'on'"),
        ({}, list[int], "{} is a mapping; a list is expected"),
        ("abc", tuple[str, ...], "'abc' is a string; a list is expected"),
        ([], dict[str, int], "[] is a list; a mapping is expected"),
        ([], Inner, "[] is a list; a mapping is expected"),
        (date(2024, 1, 2), str, "datetime.date(2024, 1, 2) is a date; a string is expected"),
        (-1, Annotated[int, Meta(ge=0)], "-1 is negative"),
        (4, Annotated[int, Meta(ge=5)], "4 is below 5"),
        (0, Annotated[int, Meta(gt=0)], "0 is not above 0"),
        (1.5, Annotated[float, Meta(le=1)], "1.5 is above 1"),
        (1.0, Annotated[float, Meta(lt=1)], "1.0 is not below 1"),
        ("", Annotated[str, Meta(min_length=1)], "'' is empty"),
        ("abc", Annotated[str, Meta(max_length=2)], "'abc' has more than 2 characters"),
        ("a b", Annotated[str, Meta(pattern="^[a-z]+$")], "'a b' doesn't match ^[a-z]+$"),
        ([], Annotated[tuple[str, ...], Meta(min_length=1)], "no items; at least 1 is expected"),
        ("-5s", Duration, "'-5s' is negative"),
        ("0s", PositiveDuration, "'0s' is not above 0"),
        ("soon", Duration, "'soon': a duration such as 200ms, 2s or 1m30s is expected"),
        (NAN, Duration, "nan: a duration such as 200ms, 2s or 1m30s is expected"),
        (10**400, Duration, f"{str(10**400)[:77]}…: a duration such as 200ms, 2s or 1m30s is expected"),
        ("-1Ki", Size, "'-1Ki' is negative"),
        ("much", Size, "'much': a quantity such as 4096, 64Mi or 1G is expected"),
        ([], int | str, "[] is a list; a whole number or a string is expected"),
        (None, Annotated[int, Meta(ge=1)] | str, "null; a whole number or a string is expected"),
        ("x", float | bool, "'x' is a string; a number or true or false is expected"),
        (5, list[str] | dict[str, str], "5 is a number; a list or a mapping is expected"),
        (5, Literal["on"] | bool, "5 is a number; 'on' or true or false is expected"),
        ("green", Colour | int, "'green' is a string; 'red' or 'blue' or a whole number is expected"),
    ],
)
def test_a_wrong_value_is_shown_with_what_would_be_right(raw: object, kind: Any, problem: str) -> None:
    assert read(raw, kind) == (None, [f"at: {problem}"])


def test_every_problem_of_a_struct_is_told_at_once() -> None:
    value, problems = read(
        {
            "weight": -1,
            "count": 11,
            "inner": {"blocksize": 1, "name": 5},
            "items": [{"blockSize": "x"}, 7, {}],
            "labels": {"a": 1, "b": "fine"},
            "flag": "no",
            "extra": 1,
        },
        Outer,
    )
    assert value is None
    assert problems == [
        "at.weight: -1 is negative",
        "at.count: 11 is above 10",
        "at.inner.blocksize: unknown field; did you mean 'blockSize'?",
        "at.inner.name: 5 is a number; a string is expected",
        "at.items[0].blockSize: 'x' is a string; a whole number is expected",
        "at.items[1]: 7 is a number; a mapping is expected",
        "at.labels.a: 1 is a number; a string is expected",
        "at.flag: 'no' is a string; true or false is expected",
        "at.extra: unknown field; known: count, flag, inner, items, labels, weight",
    ]


def test_null_leaves_the_default_of_a_field_that_has_one() -> None:
    assert read({"weight": None, "items": None}, Outer) == (Outer(), [])
    assert read({"name": None, "port": 1}, Needy) == (None, ["at.name: null; a string is expected"])


def test_case_matters_unless_it_is_ignored() -> None:
    raw = {"INNER": {"BlockSize": 3}}
    assert read(raw, Outer, ignore_case=True) == (Outer(inner=Inner(3)), [])
    assert read(raw, Outer)[1] == ["at.INNER: unknown field; did you mean 'inner'?"]


def test_one_field_in_two_spellings_is_given_twice() -> None:
    raw = {"blockSize": 1, "blocksize": 2}
    assert read(raw, Inner, ignore_case=True) == (None, ["at.blocksize: given twice, as 'blockSize' too"])


def test_a_key_that_is_no_string_is_an_unknown_field() -> None:
    assert read({5: 1}, Inner)[1] == ["at.5: unknown field; known: blockSize, name"]


def test_what_fields_say_together_is_a_problem_of_the_struct() -> None:
    class Range(Struct):
        low: int = 0
        high: int = 1

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError(f"low: {self.low} is above high")

    assert read({"low": 5}, Range) == (None, ["at: low: 5 is above high"])


def test_lenient_keeps_what_is_sound_and_the_positions_of_the_rest() -> None:
    raw = {"weight": 2, "count": "x", "items": [5, {"name": "kept", "colour": 1}, {"name": "too"}]}
    value, problems = read(raw, Outer, lenient=True)
    assert value == Outer(weight=2.0, items=(Inner(), Inner(name="kept"), Inner(name="too")))
    assert len(problems) == 3


def test_lenient_lists_of_texts_keep_their_positions_too() -> None:
    assert read([5, "kept"], tuple[str, ...], lenient=True) == (
        ("", "kept"),
        ["at[0]: 5 is a number; a string is expected"],
    )


def test_lenient_gives_up_a_list_whose_items_have_no_blank() -> None:
    assert read([5, "x"], tuple[int, ...], lenient=True) == (
        None,
        ["at[1]: 'x' is a string; a whole number is expected"],
    )


def test_a_section_that_isnt_there_is_told_from_an_empty_one() -> None:
    class Document(Struct):
        section: Inner | UnsetType = UNSET

    assert read({}, Document)[0].section is UNSET
    assert read({"section": {}}, Document)[0].section == Inner()


def test_a_type_that_documents_dont_have_is_its_authors_mistake() -> None:
    with pytest.raises(TypeError, match=r"at\.tags: SetType isn't read from documents"):
        read({"tags": []}, type("Tagged", (Struct,), {"__annotations__": {"tags": set[str]}}))


def test_a_word_of_a_choice_is_known_in_any_case_where_field_names_are() -> None:
    choice = Literal["Minimize", "Maximize"]
    assert read("minimize", choice, ignore_case=True) == ("Minimize", [])
    assert read("minimise", choice, ignore_case=True)[1] == ["at: 'minimise' isn't one of 'Maximize', 'Minimize'"]
    assert read("minimize", choice)[0] is None


class Program(Struct, frozen=True):
    code: Annotated[str, Meta(max_length=MAX_EXPRESSION, extra=EXPRESSION)]
    condition: Annotated[str, Meta(extra=EXPRESSION)] | int = ""


def test_the_expressions_of_a_document_are_bounded_together() -> None:
    expressions = Expressions()
    each = MAX_EXPRESSION + EACH_EXPRESSION
    for number in range(MAX_EXPRESSIONS // each):
        assert read({"code": "x" * MAX_EXPRESSION, "condition": ""}, Program, expressions=expressions)[1] == [], number
    rest = expressions.left - EACH_EXPRESSION
    assert read({"code": "x" * rest, "condition": 1}, Program, expressions=expressions)[1] == []
    problem = (
        "at.code: with this one, the document's expressions have more than 16384 characters, where each counts for "
        "100 more"
    )
    for problems in ([problem], []):  # said once
        assert read({"code": "x"}, Program, expressions=expressions) == (None, problems)
