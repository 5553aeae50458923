"""Heartbeats in any order, from anybody: what readers of them remember is bounded, and follows from what came last.

Other readers have such tests of their own: facts in test_replica_state.py, frames, load, queue tables and placements
with the picker's state.
"""

from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from shared.bus.candidacy import Candidates
from shared.bus.codec import SenderLog
from shared.bus.heartbeat import EXPIRY
from shared.bus.incarnations import Incarnations
from shared.bus.membership import Members
from shared.bus.messages import Candidate, Member
from shared.bus.subjects import Subjects

LIMIT = 3
Beat: TypeAlias = tuple[str, int, bool, float]
"""Id, run or fitness, whether it leaves, seconds since the one before."""
BEATS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 2), st.booleans(), st.sampled_from([0.0, 0.1, 0.7, 1.0, 2.0])),
    max_size=40,
)


@given(BEATS)
def test_members_are_those_heard_last_up_to_a_number(beats: list[Beat]) -> None:
    members, heard, now = Members(EXPIRY, LIMIT), dict[str, float](), 0.0
    for id, _, leaving, pause in beats:
        now += pause
        members.expire(now)
        heard = {known: at for known, at in heard.items() if now - at < EXPIRY}
        members.observe(Member(id=id, tier="collector", sent=-now, leaving=leaving), now)
        if leaving:
            heard.pop(id, None)
        elif id in heard or len(heard) < LIMIT:
            heard[id] = now
        assert members.ids == tuple(sorted(heard))
    members.expire(now + 2 * EXPIRY)
    assert members.ids == ()


@given(BEATS)
def test_the_best_candidate_is_one_heard_lately_by_what_it_said_last(beats: list[Beat]) -> None:
    candidates, heard, now = Candidates(EXPIRY, LIMIT), dict[str, tuple[float, int]](), 0.0
    for id, fitness, leaving, pause in beats:
        now += pause
        heard = {known: beat for known, beat in heard.items() if now - beat[0] < EXPIRY}
        candidates.observe(Candidate(owner=id, fitness=(fitness,), leaving=leaving), now)
        if leaving:
            heard.pop(id, None)
        elif id in heard or len(heard) < LIMIT:
            heard[id] = now, fitness
        best = max(((beat[1], known) for known, beat in heard.items()), default=None)
        assert candidates.better((), now) == (best and best[1])
        assert len(candidates) <= LIMIT


@given(BEATS)
def test_of_two_senders_with_one_id_only_one_is_heard_at_a_time(beats: list[Beat]) -> None:
    log = SenderLog(lambda: 0.0, "conflicting")
    senders, heard, now, refused = Incarnations(log, LIMIT), dict[str, tuple[float, int]](), 0.0, 0
    for id, run, leaving, pause in beats:
        now += pause
        live = {known: beat for known, beat in heard.items() if now - beat[0] < EXPIRY}
        expected = live[id][1] == run if id in live else id in heard or len(live) < LIMIT
        assert senders.accepts(Subjects().load("default_p", id), id, run, now, leaving=leaving) is expected
        heard = live if len(heard) >= LIMIT and id not in heard else heard
        if not expected:
            refused += 1
        elif leaving:
            heard.pop(id, None)
        else:
            heard[id] = now, run
        assert len(heard) <= LIMIT
    assert log.total == refused
