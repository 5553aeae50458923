"""Filters and a scorer that go by endpoints' labels."""

from typing import Any

import pytest

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.filters.by_label import ByLabelFilter
from services.picker.scheduling.filters.role import DecodeFilter, EncodeFilter, PrefillFilter
from services.picker.scheduling.scorers.header_label_affinity import HeaderLabelAffinityScorer
from services.picker.state.view import View
from shared.model import ROLE, Endpoint
from tests.unit.services.picker.scheduling.plugins import plugin, read
from tests.unit.services.picker.world import cycle, facts, pool, request

ROLES = (
    "decode",
    "prefill",
    "encode",
    "both",
    "prefill-decode",
    "encode-prefill",
    "encode-prefill-decode",
    "other",
    "",
)


def labelled(*values: str | None, label: str = ROLE) -> View:
    """Endpoints with these values of a label; None: without it."""
    return pool(*members(values, label))


def members(values: Any, label: str = ROLE) -> list[Endpoint]:
    return [
        Endpoint(id=f"a{at}", name=f"a{at}", address="10.0.0.1", port=at, labels={} if item is None else {label: item})
        for at, item in enumerate(values)
    ]


def kept(kind: type[Any], view: View, raw: dict[str, Any] | None = None) -> list[int]:
    found: list[int] = plugin(kind, raw or {}).filter(cycle(view), view.layout.all_rows).tolist()
    return found


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        (DecodeFilter, {"decode", "prefill-decode", "both", "encode-prefill-decode", None}),
        (PrefillFilter, {"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"}),
        (EncodeFilter, {"encode", "encode-prefill", "encode-prefill-decode"}),
    ],
)
def test_roles(kind: type[Any], passes: set[str | None]) -> None:
    every = (*ROLES, None)
    assert {every[row] for row in kept(kind, labelled(*every))} == passes
    assert kept(kind, pool()) == []
    assert kept(kind, labelled("other")) == []


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"validValues": ["x"]}, [0]),
        ({"validValues": ["x", "y"]}, [0, 1]),
        ({"validValues": ["x"], "allowsNoLabel": True}, [0, 3]),
        ({"allowsNoLabel": True}, [3]),
        ({"validValues": [""]}, [2, 3]),  # the empty text matches a missing label, too
        ({"validValues": ["z"]}, []),
    ],
)
def test_by_label(raw: dict[str, Any], expected: list[int]) -> None:
    assert kept(ByLabelFilter, labelled("x", "y", "", None, label="l"), {"label": "l", **raw}) == expected


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({"validValues": ["x"]}, "at.label: required, and missing"),
        ({"label": "l"}, "at: validValues: empty, and allowsNoLabel is false: nothing would pass"),
    ],
)
def test_what_by_label_needs(raw: dict[str, Any], error: str) -> None:
    assert read(ByLabelFilter.Parameters, raw)[1] == [error]


def test_labels_that_change_are_read_again() -> None:
    view, filtering = labelled("decode", "prefill"), plugin(DecodeFilter, {})
    assert filtering.filter(cycle(view), view.layout.all_rows).tolist() == [0]
    view.reset(facts(*members(["prefill", "decode"])))
    assert filtering.filter(cycle(view), view.layout.all_rows).tolist() == [1]


def asks(view: View, value: str | None) -> Cycle:
    return cycle(view, request(headers=[] if value is None else [("X-Tier", value)]))


@pytest.mark.parametrize(
    ("value", "expected"),
    [("gold", [1, 0, 0, 0]), ("Gold", [0, 0, 0, 0]), ("iron", [0, 0, 0, 0]), ("", [0, 0, 0, 0]), (None, [0, 0, 0, 0])],
)
def test_a_label_that_equals_the_header(value: str | None, expected: list[float]) -> None:
    view = labelled("gold", "tin", "", None, label="tier")
    scorer = plugin(HeaderLabelAffinityScorer, {"headerName": "x-tier", "labelKey": "tier"})
    assert scorer.score(asks(view, value), view.layout.all_rows).tolist() == expected


def test_no_endpoint_and_all_alike() -> None:
    scorer = plugin(HeaderLabelAffinityScorer, {"headerName": "X-TIER", "labelKey": "tier"})
    for view, expected in ((pool(), []), (labelled("gold", "gold", label="tier"), [1, 1])):
        assert scorer.score(asks(view, "gold"), view.layout.all_rows).tolist() == expected


def test_a_header_has_a_name() -> None:
    (error,) = read(HeaderLabelAffinityScorer.Parameters, {"headerName": "x tier", "labelKey": "tier"})[1]
    assert error.startswith("at.headerName: 'x tier' doesn't match")
