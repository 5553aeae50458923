"""What `make soak` makes of the measured times."""

import json

from tests.soak.__main__ import table


def noted(name: str, promise: float, *seconds: float) -> list[str]:
    return [json.dumps({"name": name, "promise": promise, "seconds": one}) for one in seconds]


def test_a_promise_is_kept_when_its_p99_is() -> None:
    rows, kept = table([*noted("b", 2.0, 1.0, 1.5, 2.0), *noted("a", 3.0, 0.5)])
    assert [row.split() for row in rows] == [
        ["n", "p50", "p99", "promise"],
        ["a", "1", "0.500", "s", "0.500", "s", "3.000", "s"],
        ["b", "3", "1.500", "s", "1.990", "s", "2.000", "s"],
    ]
    assert kept


def test_a_broken_promise_is_marked() -> None:
    rows, kept = table([*noted("kept", 2.0, 1.0), *noted("broken", 2.0, 1.0, 2.5)])
    assert [row.endswith("BROKEN") for row in rows] == [False, True, False]
    assert not kept
