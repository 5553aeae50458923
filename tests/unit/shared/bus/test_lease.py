"""When a lease is held, by the holder's own clock."""

import pytest

from shared.bus.connection import Bus
from shared.bus.errors import BusOptionError
from shared.bus.lease import Lease, LeaseClock
from shared.bus.subjects import Subjects


def lease_clock() -> LeaseClock:
    return LeaseClock(hold=1.5, renew=0.5, attempt=0.25)


def test_a_lease_is_held_for_its_time_from_the_moment_the_request_was_sent() -> None:
    clock = lease_clock()
    assert not clock.held(10.0)
    assert clock.deadline() is None
    clock.succeeded(10.0)
    assert clock.held(11.49)
    assert not clock.held(11.5)
    assert clock.deadline() == 11.5
    clock.succeeded(10.5)
    clock.succeeded(10.2)  # an answer that was overtaken shortens nothing
    assert clock.held(11.9)
    assert clock.deadline() == 12.0
    clock.dropped()
    assert not clock.held(10.6)


def test_a_holder_renews_and_after_a_failure_tries_again_sooner() -> None:
    clock = lease_clock()
    assert clock.next_request(10.0) == 10.0
    clock.tried(10.0)
    assert clock.next_request(10.1) == 10.25, "a standby"
    clock.succeeded(10.0)
    assert clock.next_request(10.0) == 10.5
    clock.tried(10.5)
    assert clock.next_request(11.0) == 10.75


def test_a_standby_waits_until_the_holder_has_stopped_however_late_it_renews() -> None:
    clock = lease_clock()
    for revision, first_seen in ((7, 10.0), (8, 11.5)):  # the holder stood still for just as long as it may
        assert not clock.saw(revision, first_seen)
        assert not clock.saw(revision, first_seen + 1.5)
        assert not clock.saw(revision, first_seen + 1.57)
    assert clock.saw(8, 11.5 + 1.58)
    assert not clock.saw(9, 20.0), "another holder"


def test_a_standby_looks_regularly_and_at_the_moment_when_the_holder_has_stopped() -> None:
    clock = lease_clock()
    clock.saw(7, 10.1)
    clock.tried(10.1)
    assert clock.next_request(10.1) == 10.35
    clock.tried(11.6)
    assert clock.next_request(11.6) == pytest.approx(11.675)
    clock.tried(11.68)
    assert clock.next_request(11.68) == pytest.approx(11.93), "somebody else is to lead: no hurry"


def test_a_revision_that_may_have_been_used_twice_counts_from_when_it_is_seen_again() -> None:
    clock = lease_clock()
    clock.saw(7, 10.0)
    clock.forget()
    assert not clock.saw(7, 20.0)


@pytest.mark.parametrize("times", [{"hold": 2.0}, {"renew": 1.5}, {"attempt": 0.6}, {"attempt": 0.0}])
def test_times_without_a_margin_are_refused(times: dict[str, float]) -> None:
    """The holder has to stop before the server lets the lease expire, and to renew before it stops."""
    bus = Bus("nats://127.0.0.1:1", name="test")
    with pytest.raises(BusOptionError, match="0 < attempt <= renew < hold < ttl"):
        Lease(bus, Subjects(), "watcher", "w1", **times)  # type: ignore[arg-type]


async def test_nothing_is_held_before_it_was_acquired() -> None:
    lease = Lease(Bus("nats://127.0.0.1:1", name="test"), Subjects(), "watcher", "w1")
    assert not lease.held
    await lease.release()
    assert lease.lost.is_set()
