import numpy as np
import pytest

from services.picker.state.inflight import EXPIRY, MOST_TOKENS, InFlight
from services.picker.state.layout import Layout
from shared.bus.columns import endpoint_hash, unpack_counts, unpack_hashes
from tests.unit.services.picker.world import endpoint, load


def table(*names: str) -> InFlight:
    made = InFlight()
    made.relayout(Layout([endpoint(name) for name in names]))
    return made


def counts(made: InFlight) -> list[tuple[float, float]]:
    return list(zip(made.requests.tolist(), made.tokens.tolist(), strict=True))


def test_a_charge_counts_until_it_is_released() -> None:
    made = table("a1", "a2")
    charge = made.charge("a2", 100)
    assert counts(made) == [(0, 0), (1, 100)]
    assert made.own() == {"a2": (1, 100)}
    assert repr(charge) == "<Charge a2: 100 tokens>"
    charge.release()
    assert counts(made) == [(0, 0), (0, 0)]
    assert made.own() == {}
    assert repr(charge) == "<Charge a2: released>"


def test_a_charge_is_released_once() -> None:
    made = table("a1")
    other, charge = made.charge("a1", 7), made.charge("a1", 100)
    for _ in range(3):
        charge.release()
        charge.release_tokens()
        charge.move("a2")
    assert counts(made) == [(1, 7)]
    other.release()
    assert counts(made) == [(0, 0)]


def test_charges_however_large_leave_nothing_behind() -> None:
    made = table("a1", "a2")
    charges = [made.charge("a1", tokens) for tokens in (7, 2**62, 9)]
    assert counts(made)[0] == (3, 16 + MOST_TOKENS)
    charges[1].move("a2")
    assert counts(made) == [(2, 16), (1, MOST_TOKENS)]
    charges[0].release_tokens()
    for charge in charges:
        charge.release()
    assert counts(made) == [(0, 0), (0, 0)]
    assert made.own() == {}


def test_a_charge_moves_to_the_endpoint_that_really_serves() -> None:
    made = table("a1", "a2")
    charge = made.charge("a1", 100)
    charge.move("a1")
    charge.move("a2")
    assert counts(made) == [(0, 0), (1, 100)]
    charge.release()
    assert counts(made) == [(0, 0), (0, 0)]


def test_tokens_can_be_released_before_the_request() -> None:
    made = table("a1")
    charge = made.charge("a1", 100)
    charge.release_tokens()
    charge.release_tokens()
    assert counts(made) == [(1, 0)]
    assert made.own() == {"a1": (1, 0)}
    charge.release()
    assert made.own() == {}


def test_a_charge_outlives_its_endpoint_and_comes_back_with_it() -> None:
    made = table("a1", "a2")
    charge = made.charge("a1", 100)
    made.relayout(Layout([endpoint("a2")]))
    assert counts(made) == [(0, 0)]
    made.relayout(Layout([endpoint("a1", "10.9.9.9"), endpoint("a2")]))
    assert counts(made) == [(1, 100), (0, 0)]
    made.relayout(Layout())
    charge.release()
    made.relayout(Layout([endpoint("a1")]))
    assert counts(made) == [(0, 0)]


def test_what_is_published_is_our_own_part_without_zeros() -> None:
    made = table("a1", "a2")
    made.apply(load("peer", {"a1": (5, 50)}), 0.0)
    made.charge("a1", 3).release()
    made.charge("a2", 7)
    ids, requests, tokens = made.columns()
    assert unpack_hashes(ids).tolist() == [endpoint_hash("a2")]
    assert (unpack_counts(requests).tolist(), unpack_counts(tokens).tolist()) == ([1], [7])


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


def test_peers_are_added_to_our_own() -> None:
    made = table("a1", "a2")
    made.charge("a1", 10)
    made.apply(load("one", {"a1": (2, 20), "gone9": (9, 9)}), 0.0)
    made.apply(load("two", {"a2": (3, 30), "a1": (1, 1)}), 0.0)
    assert counts(made) == [(4, 31), (3, 30)]
    assert repr(made) == "<InFlight 1 own requests, 2 peers>"


def test_a_peers_table_replaces_its_last_one() -> None:
    made = table("a1", "a2")
    made.apply(load("one", {"a1": (2, 20)}), 0.0)
    made.apply(load("one", {"a2": (1, 5)}, sent=0.1), 0.1)
    assert counts(made) == [(0, 0), (1, 5)]
    made.apply(load("one", {}, sent=0.2), 0.2)
    assert counts(made) == [(0, 0), (0, 0)]
    assert list(made.peers()) == ["one"]


def test_a_peer_that_leaves_is_withdrawn_at_once() -> None:
    made = table("a1")
    made.apply(load("one", {"a1": (2, 20)}), 0.0)
    made.apply(load("one", {"a1": (2, 20)}, sent=0.1, leaving=True), 0.1)
    assert counts(made) == [(0, 0)]
    assert list(made.peers()) == []


def test_a_silent_peer_expires_and_only_that() -> None:
    made = table("a1")
    made.apply(load("silent", {"a1": (2, 20)}), 0.0)
    made.apply(load("alive", {"a1": (1, 10)}), 0.0)
    made.apply(load("alive", {"a1": (1, 10)}, sent=1.0), 1.0)
    assert made.expire(EXPIRY) == []
    assert made.expire(EXPIRY + 0.1) == ["silent"]
    assert counts(made) == [(1, 10)]
    assert made.expire(EXPIRY + 0.1) == []


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


def test_peers_rows_follow_the_layout() -> None:
    made = table("a1", "a2")
    made.apply(load("one", {"a2": (2, 20), "a3": (3, 30)}), 0.0)
    made.relayout(Layout([endpoint("a3"), endpoint("a1")]))
    assert counts(made) == [(0, 0), (3, 30)]
    assert made.expire(99.0) == ["one"]
    assert counts(made) == [(0, 0), (0, 0)]


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
