"""The table of live members, with the time passed in."""

from structlog.testing import capture_logs

from shared.bus.codec import SHOWN
from shared.bus.connection import Bus
from shared.bus.membership import Members, Membership
from shared.bus.messages import Member
from shared.bus.subjects import Subjects


def beat(id: str, *, leaving: bool = False) -> Member:
    return Member(id=id, tier="collector", sent=0.0, leaving=leaving)


def test_a_member_is_there_from_its_first_heartbeat_until_it_expires() -> None:
    members = Members(expiry=1.5)
    assert members.observe(beat("b"), 10.0)
    assert members.observe(beat("a"), 10.5)
    assert not members.observe(beat("b"), 11.0)
    assert list(members.ids) == ["a", "b"]
    assert members.next_expiry() == 12.0
    assert members.expire(11.99) == ()
    assert members.expire(12.0) == ("a",)
    assert list(members.ids) == ["b"]
    assert "a" not in members
    assert members.expire(12.5) == ("b",)
    assert members.next_expiry() is None


def test_a_member_that_leaves_is_gone_at_once() -> None:
    members = Members()
    members.observe(beat("a"), 0.0)
    assert members.observe(beat("a", leaving=True), 0.1)
    assert members.ids == ()
    assert not members.observe(beat("a", leaving=True), 0.2)


def test_without_a_connection_nobody_expires_and_then_everybody_has_one_expiry_to_be_heard() -> None:
    members = Members(expiry=1.5)
    members.observe(beat("a"), 0.0)
    members.observe(beat("b"), 0.0)
    members.pause()
    assert (members.next_expiry(), members.expire(100.0)) == (None, ())
    members.resume(100.0)
    members.observe(beat("b"), 100.4)
    assert members.expire(101.4) == ()
    assert members.expire(101.5) == ("a",)


def test_of_members_that_somebody_invents_only_some_are_kept_in_mind_until_they_are_silent() -> None:
    members = Members(expiry=1.5)
    members.observe(beat("a"), 0.0)
    for number in range(5000):
        members.observe(beat(f"invented {number}"), 0.0)
    assert len(members.ids) <= 1000
    assert "a" in members
    members.expire(2.0)
    assert members.observe(beat("b"), 2.0)


async def test_names_of_members_are_cut_in_the_log() -> None:
    bus, ids = Bus("nats://127.0.0.1:1", name="test"), ("x" * 1536,)
    membership = Membership(bus, Subjects(), "default_p", "collector", *ids, lambda _: None)
    with capture_logs() as logs:
        await membership.start()
    await membership.close()
    assert [line["members"] for line in logs if line["event"] == "members.changed"] == [["x" * SHOWN]]
