import numpy as np
import pytest

from services.picker.state.inflight import EXPIRY, InFlight
from services.picker.state.layout import Hashes, Layout, Mask, Rows
from tests.unit.services.picker.world import endpoint, load


def table(*names: str) -> InFlight:
    made = InFlight()
    made.relayout(Layout([endpoint(name) for name in names]))
    return made


def counts(made: InFlight) -> list[tuple[float, float]]:
    return list(zip(made.requests.tolist(), made.tokens.tolist(), strict=True))


def test_our_own_changes_are_to_be_published_and_peers_are_not() -> None:
    made = table("a1")
    made.apply(load("peer", {"a1": (5, 50)}), 0.0)
    changes = [made.changed]
    charge = made.charge("a1", 1)
    changes.append(made.changed)
    made.changed = False
    charge.release()
    changes.append(made.changed)
    assert changes == [False, True, True]


def test_until_the_next_table_each_peer_is_expected_to_charge_what_we_charge() -> None:
    made = table("a1", "a2")
    rows = np.array([1, 0])
    made.charge("a1", 10)
    assert made.expected_requests(rows).tolist() == [0, 1], "there is no peer"
    for name in ("one", "two"):
        made.apply(load(name, {"a1": (5, 50)}), 0.0)
    released = made.charge("a1", 10)
    made.charge_all("a2", 7, [("a1", 3, False)])
    assert made.expected_requests(rows).tolist() == [3, 17]
    assert made.expected_tokens(rows).tolist() == [21, 149]
    released.release()
    made.published()
    assert made.expected_requests(rows).tolist() == [1, 12]
    assert made.expected_tokens(rows).tolist() == [7, 113]


def test_time_that_a_table_waited_on_its_way_counts_as_silence() -> None:
    """A stalled server hands over old tables in one burst; they are no news of their sender."""
    made = table("a1")
    made.apply(load("one", {"a1": (1, 1)}, sent=0.0), 10.0)
    made.apply(load("one", {"a1": (2, 2)}, sent=0.1), 12.1)
    assert counts(made) == [(2, 2)]
    assert made.expire(12.2) == ["one"]


def test_a_table_that_a_later_one_overtook_says_nothing_any_more() -> None:
    made = table("a1")
    for at in (0.0, 1.0):
        made.apply(load("one", {"a1": (1, 1)}, sent=at), 100.0 + at)
    made.apply(load("one", {"a1": (9, 9)}, sent=0.9), 101.1)
    made.apply(load("one", {}, sent=0.8, leaving=True), 101.1)
    assert counts(made) == [(1, 1)]
    assert made.expire(101.0 + EXPIRY) == []
    assert made.expire(101.1 + EXPIRY) == ["one"]


def test_what_a_peer_said_before_it_started_again_does_not_replace_what_it_says_since() -> None:
    """Its clock may be another one: what counts is when it was said, as far as that can be told."""
    made = table("a1")
    made.apply(load("one", {"a1": (1, 1)}, run=1, sent=50.0), 100.0)
    made.apply(load("one", {"a1": (2, 2)}, run=2, sent=3.0), 101.0)
    made.apply(load("one", {"a1": (1, 1)}, run=1, sent=50.5), 101.2)
    assert counts(made) == [(2, 2)]
    made.apply(load("one", {"a1": (3, 3)}, run=3, sent=200.0), 101.3)
    assert counts(made) == [(3, 3)]


@pytest.mark.parametrize("again", [{}, {"a1": (1, 1)}])
def test_a_table_that_names_an_endpoint_twice_leaves_nothing_behind(again: dict[str, tuple[int, int]]) -> None:
    made = table("a1")
    twice = load("one", {"a1": (2, 20)})
    made.apply(
        type(twice)(
            **{
                **{f: getattr(twice, f) for f in twice.__struct_fields__},
                "ids": twice.ids * 2,
                "requests": twice.requests * 2,
                "tokens": twice.tokens * 2,
            }
        ),
        0.0,
    )
    made.apply(load("one", again, sent=1.0), 1.0)
    assert counts(made) == [again.get("a1", (0, 0))]
    assert np.isfinite(made.requests).all()


def test_an_endpoint_that_comes_gets_our_own_load_at_once_and_a_peers_with_its_next_table() -> None:
    made = table("a1")
    both = {"a1": (1, 10), "a2": (2, 20)}
    made.charge("a2", 5)
    made.apply(load("one", both), 0.0)
    made.relayout(Layout([endpoint("a1"), endpoint("a2")]))
    assert counts(made) == [(1, 10), (1, 5)]
    made.apply(load("one", both, sent=0.5), 0.5)
    assert counts(made) == [(1, 10), (3, 25)]
    made.apply(load("one", {}, sent=0.6), 0.6)
    assert counts(made) == [(0, 0), (1, 5)]


def test_a_new_layout_goes_through_no_rows_of_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    made = table("a1", "a2")
    for peer in range(20):
        made.apply(load(f"p{peer}", {"a1": (1, 1), **{f"unknown{row}": (1, 1) for row in range(100)}}), 0.0)
    searched: list[int] = []
    rows_of = Layout.rows_of

    def counted(self: Layout, hashes: Hashes) -> tuple[Rows, Mask]:
        searched.append(len(hashes))
        return rows_of(self, hashes)

    monkeypatch.setattr(Layout, "rows_of", counted)
    made.relayout(Layout([endpoint("a1"), endpoint("a3")]))
    assert searched == []
    assert counts(made) == [(20, 20), (0, 0)]
    made.expire(EXPIRY + 1)
    assert searched == []
    assert counts(made) == [(0, 0), (0, 0)]
