import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.quantities import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("200ms", 0.2), ("2s", 2.0), ("1m30s", 90.0), ("1h", 3600.0), (".5s", 0.5), ("50us", 5e-5), ("50µs", 5e-5)),
        *(("3ns", 3e-9), ("0", 0.0), ("1.5", 1.5), ("-2s", -2.0), ("+2s", 2.0), (" 2s ", 2.0), (3, 3.0)),
        (0.25, 0.25),
    ],
)
def test_a_duration_is_gos_or_a_number_of_seconds(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "2 s",
        "2d",
        "1s2",
        "--2s",
        "٣s",
        "nan",
        "inf",
        float("nan"),
        float("inf"),
        "1" * 65,
        10**400,
        True,
        None,
        [],
    ],
)
def test_what_is_no_duration_is_refused_with_what_would_be_right(text: object) -> None:
    with pytest.raises(ValueError, match="a duration such as 200ms, 2s or 1m30s is expected"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("4096", 4096), ("64Mi", 64 * 2**20), ("1G", 10**9), ("1k", 1000), ("0.5Ki", 512), ("1.5k", 1500)),
        *(("1e6", 10**6), ("2E3", 2000), ("1E", 10**18), ("1Ei", 2**60), ("-5", -5)),
        ("9007199254740993", 9007199254740993),  # floating point would lose the last digit
        (7, 7),
        (7.0, 7),
    ],
)
def test_a_size_is_a_kubernetes_quantity(text: object, number: int) -> None:
    assert parse_size(text) == number


@pytest.mark.parametrize(
    "text", ["", "1.5", "1K", "1m", "Mi", "1e-3", "1e100", "1 000", "1" * 65, 1.5, float("inf"), True, None]
)
def test_what_is_no_size_is_refused_with_what_would_be_right(text: object) -> None:
    with pytest.raises(ValueError, match="a quantity such as 4096, 64Mi or 1G is expected"):
        parse_size(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.1, "100ms"), (0.0005, "0.5ms"), (2.0, "2s"), (1.5, "1.5s"), (0.0, "0s"), (1e7, "10000000s")],
)
def test_a_duration_is_written_shortly(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (1000, "1000"), (16 * 2**20, "16Mi"), (10**9, "1G"), (16777217, "16777217")]
)
def test_a_size_is_written_with_the_unit_that_says_it_exactly(number: int, text: str) -> None:
    assert format_size(number) == text


@settings(max_examples=40)
@given(st.floats(0, 1e6))
def test_a_duration_that_was_written_is_read_to_the_nanosecond(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-9)


@settings(max_examples=40)
@given(st.integers(-(2**63), 2**63))
def test_a_size_that_was_written_is_read_again(number: int) -> None:
    assert parse_size(format_size(number)) == number
