from typing import Any

import pytest

from services.picker.flow_control.waiting import slo_deadline
from tests.unit.services.picker.flow_control.flows import Picker, Room, band, settings


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # as they come
        ("fcfs-ordering-policy", "abcdef"),
        # ends of the time to live: a 0+60, b 1+60, c at 30, d 3+60, e at 30 (after c), f at 6
        ("edf-ordering-policy", "fceabd"),
        # first token due: a never, b at 9, c never, d at 3.5, e at 9 (received after b), f never (received before a)
        ("slo-deadline-ordering-policy", "dbefac"),
    ],
)
def test_the_order_within_a_flow(policy: str, expected: str) -> None:
    picker = Picker(settings(band(ordering=policy)), Room(1))
    picker.pool.in_flight = 1
    rows: dict[str, dict[str, Any]] = {
        "a": {},
        "b": {"slo_deadline": 9.0},
        "c": {"deadline": 30.0},
        "d": {"slo_deadline": 3.5},
        "e": {"deadline": 30.0, "slo_deadline": 9.0},
        "f": {"deadline": 6.0, "received_at": -1.0},
    }
    for second, (name, row) in enumerate(rows.items()):
        picker.now = float(second)
        picker.add(name, **row)
    picker.pool = Room()
    assert "".join(picker.dispatch()) == expected


def test_without_a_time_to_live_edf_lets_only_the_clients_deadlines_go_first() -> None:
    picker = Picker(settings(band(ordering="edf-ordering-policy"), ttl=0.0))
    picker.add("a")
    picker.add("b", deadline=100.0)
    picker.add("c")
    assert picker.dispatch() == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("250", 0.25),
        (" 1000 ", 1.0),
        ("0", 0.0),
        ("+5", 0.005),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("1e3", None),
        ("٣", None),
        ("9223372036854", 9223372036.854),
        ("9223372036855", None),
        ("9" * 5000, None),
    ],
)
def test_the_header_of_the_first_tokens_deadline(header: str, seconds: float | None) -> None:
    assert slo_deadline(100.0, header) == pytest.approx(float("inf") if seconds is None else 100.0 + seconds)


def test_a_failing_policy_orders_by_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    how = settings()
    monkeypatch.setattr(type(how.template.ordering), "key", lambda self, item: float("nan"))
    picker = Picker(how)
    for name in "abc":
        picker.now += 1
        picker.add(name)
    assert picker.dispatch() == ["a", "b", "c"]
    assert picker.failures == ["the key is NaN"] * 3
