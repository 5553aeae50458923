"""A reader of facts, and messages with epochs and sequences that no owner gave them."""

import pytest

from shared.bus.epochs import plausible_epoch
from shared.bus.errors import Malformed
from shared.bus.facts import EPOCH_HEADER, SEQUENCE_HEADER, Entry, Purge, parse_entry
from tests.unit.shared.bus.test_replica_state import Owner, Reader, connected, key

NOW_MS = 1_700_000_000_000
FORGED = plausible_epoch(2**64 - 1, NOW_MS / 1000)


def following() -> tuple[Reader, Owner]:
    """A reader that has the set of an owner: facts a and b."""
    reader, owner = connected(), Owner(epoch=NOW_MS)
    reader.hear(owner.put("a"), owner.put("b"), owner.synced(), at=0.0)
    reader.take_snapshot(owner.snapshot(), at=0.0)
    assert reader.view == owner.facts()
    return reader, owner


def forger(epoch: int, sequence: int = 0) -> Owner:
    return Owner(epoch=epoch, sequence=sequence)


@pytest.mark.parametrize(
    "forged",
    [
        [forger(FORGED).put("a", port=1)],
        [forger(FORGED).delete("a")],
        [forger(FORGED).synced()],
        [forger(FORGED).put("c"), forger(FORGED).synced()],
    ],
    ids=["fact", "delete", "synced", "set"],
)
def test_an_epoch_that_cant_be_changes_nothing_while_the_owner_is_heard(forged: list[Entry]) -> None:
    reader, owner = following()
    for tick in range(1, 40):
        reader.hear(*forged, at=tick / 2)
        reader.hear(owner.put("b", port=tick), owner.synced(), at=tick / 2)
        assert reader.view == owner.facts()
        assert reader.state.age(tick / 2) == 0.0


def test_an_owner_whose_clock_is_wrong_is_followed_after_a_while_and_given_up_for_another() -> None:
    reader, owner = connected(), forger(FORGED)
    reader.hear(owner.put("a"), at=0.0)
    for tick in range(12):
        reader.hear(owner.synced(), at=tick / 2)
        if reader.due(tick / 2):
            reader.take_snapshot(owner.snapshot(), at=tick / 2)
    assert reader.view == owner.facts() != {}
    reader.hear(owner.put("a", port=7), owner.synced(), at=6.0)
    assert reader.view == owner.facts()
    other = Owner(epoch=NOW_MS)
    reader.hear(other.put("z"), other.synced(), at=6.1)
    reader.take_snapshot(other.snapshot(), at=6.2)
    assert reader.view == other.facts()


@pytest.mark.parametrize("agrees", [False, True], ids=["wrong set", "right set"])
def test_a_sequence_that_the_owner_never_gave_holds_for_a_few_seconds(agrees: bool) -> None:
    reader, owner = following()
    forged = forger(NOW_MS, sequence=2**63)
    if agrees:
        forged.bucket.update(owner.bucket)
    reader.hear(forged.synced(), at=0.1)
    owner.put("a", port=9)
    for tick in range(1, 20):
        reader.hear(owner.synced(), at=tick / 2)
        if reader.due(tick / 2):
            reader.take_snapshot(owner.snapshot(), at=tick / 2)
    assert reader.view == owner.facts()
    assert reader.state.age(9.5) == 0.0
    reader.hear(owner.put("a", port=10), at=9.6)
    assert reader.view == owner.facts()


@pytest.mark.parametrize(("epoch", "sound"), [("5", True), ("-1", False), ("9" * 40, False), (str(2**64), False)])
def test_the_epoch_of_a_delete_is_one_that_a_message_could_have(epoch: str, sound: bool) -> None:
    headers = {"KV-Operation": "PURGE", EPOCH_HEADER: epoch, SEQUENCE_HEADER: "1"}
    if sound:
        assert parse_entry(key("a"), b"", headers) == Purge(key("a"), (int(epoch), 1))
    else:
        with pytest.raises(Malformed):
            parse_entry(key("a"), b"", headers)
