"""Which endpoints the view takes for down, by what collectors report and by what fallbacks had to do."""

from collections.abc import Callable

import pytest

from services.picker.state.health import REPLACED, SHOWN, UNREACHABLE
from services.picker.state.view import View
from shared.attributes import REACHABLE
from tests.unit.services.picker.world import NOW, endpoint, frame, pool

EXPIRY = 30.0


def reported(view: View, id: str, answered: bool, *, at: float, now: float | None = None) -> None:
    """A collector's report of a server as of `at`, which arrives at `now`, by default at once."""
    now = at if now is None else now
    view.apply_frame(frame([id], {REACHABLE: [float(answered)]}, now - at), now, 0.0)


def replaced(view: View, id: str, now: float) -> None:
    """A fallback has served in the endpoint's place."""
    view.health.suspect(view.layout.endpoints[view.layout.index[id]], now)


def unhealthy(view: View) -> dict[str, str]:
    endpoints = view.layout.endpoints
    return {endpoints[row].id: why for row, why in view.health.unhealthy.items()}


SIGNS: dict[str, Callable[[View], None]] = {
    "fallback": lambda view: replaced(view, "a1", NOW),
    "scrapes": lambda view: reported(view, "a1", False, at=NOW),
}
"""Of a1 being down, now."""


def test_an_unreachable_endpoint_is_unhealthy_until_its_next_good_scrape() -> None:
    view = pool("a1", "a2")
    reported(view, "a2", True, at=NOW)
    assert unhealthy(view) == {}
    reported(view, "a2", False, at=NOW + 1)
    assert unhealthy(view) == {"a2": UNREACHABLE}
    reported(view, "a2", True, at=NOW + 2)
    assert unhealthy(view) == {}


def test_a_good_scrape_ends_a_fallbacks_mark_when_it_began_after_it() -> None:
    view = pool("a1", "a2")
    replaced(view, "a1", NOW)
    reported(view, "a1", True, at=NOW - 0.5, now=NOW + 0.5)
    assert unhealthy(view) == {"a1": REPLACED}
    reported(view, "a1", True, at=NOW + 0.25, now=NOW + 0.5)
    assert unhealthy(view) == {}


def test_a_mark_that_scrapes_confirm_lasts_as_long_as_they_do() -> None:
    view = pool("a1")
    replaced(view, "a1", NOW)
    for second in range(0, 2 * int(EXPIRY), 2):
        reported(view, "a1", False, at=NOW + second)
    assert unhealthy(view) == {"a1": UNREACHABLE}


@pytest.mark.parametrize("sign", SIGNS)
def test_without_news_a_sign_holds_until_it_expires(sign: str) -> None:
    """Nobody scrapes, or NATS is away."""
    view = pool("a1", "a2")
    SIGNS[sign](view)
    view.health.refresh(NOW + EXPIRY - 0.5)
    assert list(unhealthy(view)) == ["a1"]
    view.health.refresh(NOW + EXPIRY + 0.5)
    assert unhealthy(view) == {}


def test_a_report_that_was_long_on_its_way_counts_by_its_age() -> None:
    """A picker that starts finds reports of an unknown age."""
    view = pool("a1")
    reported(view, "a1", False, at=NOW - EXPIRY - 1, now=NOW)
    assert unhealthy(view) == {}


@pytest.mark.parametrize("sign", SIGNS)
def test_another_server_under_the_same_id_has_none_of_the_former_ones_signs(sign: str) -> None:
    view = pool("a1", "a2")
    SIGNS[sign](view)
    view.upsert("pool.endpoint.a0", endpoint("a0"))
    assert list(unhealthy(view)) == ["a1"], "other endpoints come"
    view.upsert("pool.endpoint.a1", endpoint("a1", "10.0.9.9"))
    assert unhealthy(view) == {}


def test_a_fallbacks_mark_that_comes_too_late_says_nothing_of_the_server_that_is_there_now() -> None:
    view = pool("a1")
    former = view.layout.endpoints[0]
    view.upsert("pool.endpoint.a1", endpoint("a1", "10.0.9.9"))
    _ = view.layout
    view.health.suspect(former, NOW)
    view.health.suspect(endpoint("gone"), NOW)
    assert unhealthy(view) == {}


def test_that_a_server_is_unreachable_is_no_fresh_metric_of_it() -> None:
    view = pool("a1")
    reported(view, "a1", False, at=NOW)
    assert view.columns.newest().tolist() == [-float("inf")]


def test_a_note_says_which_endpoints_rank_last_and_why() -> None:
    view = pool("a1", "a2", "a3")
    assert len(view.layout) == 3
    assert view.health.note() is None
    replaced(view, "a1", NOW)
    reported(view, "a3", False, at=NOW)
    assert view.health.note() == f"2 of 3 endpoints rank last: a1 ({REPLACED}), a3 ({UNREACHABLE})"
    replaced(view, "a2", NOW)
    assert str(view.health.note()).startswith("3 of 3 endpoints seem to be down, so all stay candidates: a1 (")


def test_a_note_says_that_there_are_no_endpoints() -> None:
    assert pool().health.note() == "the pool has no endpoints"


def test_a_note_names_a_few_of_many() -> None:
    names = [f"a{number}" for number in range(10, 20 + SHOWN)]
    view = pool(*names)
    for name in names[:-1]:
        replaced(view, name, NOW)
    assert str(view.health.note()).endswith(f", {len(names) - 1 - SHOWN} more")
