"""The reader of facts as a state machine: no network, no clock."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from shared.bus.codec import MASK, encode, encode_fact, fact_digest
from shared.bus.errors import Malformed
from shared.bus.facts import (
    EPOCH_HEADER,
    KEY_HEADER,
    SEQUENCE_HEADER,
    Delete,
    Entry,
    Event,
    Purge,
    Put,
    Reset,
    Upsert,
    parse_entry,
)
from shared.bus.messages import FactEnvelope, Synced
from shared.bus.replica_state import ReplicaState
from shared.bus.subjects import fact_key
from shared.limits import LIMITS
from shared.model import Configuration, Endpoint, Fact, Pool

POOL = "default_p"


def endpoint(name: str, port: int = 8000) -> Endpoint:
    return Endpoint(id=name, name=name, address="10.0.0.1", port=port)


def key(name: str) -> str:
    return fact_key(POOL, endpoint(name))


@dataclass
class Owner:
    """An owner and its bucket; every write is also a message."""

    epoch: int = 1
    sequence: int = 0
    bucket: dict[str, Entry] = field(default_factory=dict)
    messages: list[Entry] = field(default_factory=list)

    def _write(self, at: str, entry: Entry) -> Entry:
        self.bucket[at] = entry
        self.messages.append(entry)
        return entry

    def put(self, name: str, port: int = 8000) -> Entry:
        self.sequence += 1
        raw = encode_fact(endpoint(name, port))
        digest = fact_digest(key(name), raw)
        return self._write(key(name), Put(key(name), (self.epoch, self.sequence), digest, endpoint(name, port)))

    def delete(self, name: str) -> Entry:
        self.sequence += 1
        return self._write(key(name), Purge(key(name), (self.epoch, self.sequence)))

    def facts(self) -> dict[str, Fact]:
        return {at: entry.fact for at, entry in self.bucket.items() if isinstance(entry, Put) and entry.fact}

    def synced(self) -> Synced:
        written = [entry for entry in self.bucket.values() if isinstance(entry, Put)]
        digest = sum(entry.digest for entry in written) & MASK
        synced = Synced(epoch=self.epoch, sequence=self.sequence, count=len(written), digest=digest)
        self._write("synced", synced)
        return synced

    def take_over(self, epoch: int) -> None:
        self.epoch, self.sequence = epoch, 0

    def snapshot(self) -> list[Entry]:
        return list(self.bucket.values())


@dataclass
class Reader:
    """A state machine with what it emitted; its consumer's view is made of events alone."""

    events: list[Event] = field(default_factory=list)
    view: dict[str, Fact] = field(default_factory=dict)
    state: ReplicaState = field(init=False)

    def __post_init__(self) -> None:
        self.state = ReplicaState(self._take)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case Reset(facts):
                self.view = dict(facts)
            case Upsert(at, fact):
                self.view[at] = fact
            case Delete(at):
                del self.view[at]

    def hear(self, *entries: Entry, at: float) -> None:
        for entry in entries:
            self.state.receive(entry, at)

    def take_snapshot(self, entries: Iterable[Entry], at: float) -> None:
        self.state.snapshot_started(at)
        self.read_snapshot(entries, at)

    def read_snapshot(self, entries: Iterable[Entry], at: float) -> None:
        for entry in entries:
            self.state.snapshot_entry(entry, at)
        self.state.snapshot_read(at)

    def due(self, at: float) -> bool:
        due = self.state.snapshot_due()
        return due is not None and due <= at


def connected() -> Reader:
    reader = Reader()
    reader.state.connected(0.0)
    return reader


def synced_reader(owner: Owner) -> Reader:
    owner.synced()
    reader = connected()
    reader.take_snapshot(owner.snapshot(), 0.0)
    assert reader.state.synced
    reader.events.clear()
    return reader


def synced(*names: str) -> tuple[Owner, Reader]:
    """An owner of these endpoints, and a reader that knows them."""
    owner = Owner()
    for name in names:
        owner.put(name)
    return owner, synced_reader(owner)


# The start


def owning(*names: str) -> Owner:
    owner = Owner()
    for name in names:
        owner.put(name)
    owner.synced()
    return owner


def test_a_snapshot_that_agrees_with_synced_is_the_first_reset() -> None:
    owner = owning("a", "b")
    reader = Reader()
    assert not reader.due(0.0)
    reader.state.connected(0.0)
    assert reader.due(0.0)
    reader.take_snapshot(owner.snapshot(), 0.0)
    assert reader.events == [Reset(owner.facts())]
    assert reader.state.synced
    assert not reader.due(1e9)


def test_a_snapshot_in_the_middle_of_a_burst_waits_for_what_follows() -> None:
    owner = owning("a")
    owner.put("b")
    reader = connected()
    reader.take_snapshot(owner.snapshot(), 0.0)
    assert reader.events == []
    reader.hear(owner.put("c"), at=0.1)
    assert reader.events == []
    reader.hear(owner.synced(), at=0.2)
    assert reader.events == [Reset(owner.facts())]


def test_what_was_heard_while_the_snapshot_was_on_its_way_is_applied_on_top_of_it() -> None:
    owner = owning("a", "b")
    old = owner.snapshot()
    reader = connected()
    reader.state.snapshot_started(0.0)
    reader.hear(owner.delete("a"), owner.put("b", 9000), owner.put("c"), owner.synced(), at=0.1)
    reader.read_snapshot(old, 0.2)
    assert reader.events == [Reset(owner.facts())]
    assert set(reader.view) == {key("b"), key("c")}


def test_a_set_that_was_heard_completely_needs_no_snapshot() -> None:
    """The bucket was missing when the reader came; then its owner created it."""
    owner = Owner()
    reader = connected()
    reader.state.snapshot_started(0.0)
    reader.state.snapshot_failed(0.0)
    reader.hear(owner.put("a"), owner.put("b"), owner.synced(), at=0.1)
    assert reader.events == [Reset(owner.facts())]


def test_a_set_without_facts_counts_only_when_a_snapshot_has_none_either() -> None:
    """Before its snapshot, a reader that starts has no facts. Whoever says then that there are none may be wrong."""
    owner = Owner()
    owner.put("a")
    snapshot = [*owner.snapshot(), owner.synced()]
    reader = connected()
    reader.state.snapshot_started(0.0)
    reader.hear(nothing := Synced(epoch=1, sequence=0, count=0, digest=0), at=0.1)
    assert not reader.state.synced
    for entry in snapshot:
        reader.state.snapshot_entry(entry, 0.2)
    reader.state.snapshot_read(0.2)
    assert reader.events == [Reset(owner.facts())]
    empty = connected()
    empty.take_snapshot([nothing], 0.0)
    assert empty.events == [Reset({})]


@pytest.mark.parametrize("entries", [[], [Synced(epoch=1, sequence=5, count=2, digest=1)]])
def test_an_empty_bucket_and_one_that_is_incomplete_change_nothing(entries: list[Entry]) -> None:
    reader = connected()
    reader.take_snapshot(entries, 0.0)
    assert not reader.state.synced
    assert reader.events == []
    assert not reader.due(0.9)
    assert reader.due(1.0)


def test_a_snapshot_that_failed_is_tried_again_soon_but_only_with_a_connection() -> None:
    reader = connected()
    reader.state.snapshot_started(0.0)
    assert not reader.due(0.1)
    reader.state.snapshot_failed(0.1)
    assert reader.due(0.35)
    reader.state.disconnected()
    assert not reader.due(0.35)
    assert reader.state.counters.snapshots_failed == 1


# Live


def test_changes_arrive_one_by_one_and_a_fact_that_is_published_again_unchanged_is_no_event() -> None:
    owner, reader = synced("a")
    reader.hear(owner.put("b"), owner.put("a"), owner.put("a", 9000), owner.delete("b"), owner.synced(), at=1.0)
    assert reader.events == [
        Upsert(key("b"), endpoint("b")),
        Upsert(key("a"), endpoint("a", 9000)),
        Delete(key("b")),
    ]
    assert reader.state.age(3.0) == 2.0


def test_messages_that_come_twice_or_late_change_nothing() -> None:
    owner, reader = synced()
    first, second, gone = owner.put("a"), owner.put("a", 9000), owner.delete("a")
    reader.hear(gone, second, first, second, first, at=1.0)
    assert reader.events == []
    reader.hear(owner.synced(), at=1.0)
    reader.hear(first, gone, second, at=2.0)
    assert reader.view == {}
    assert reader.state.counters.late == 7


def test_the_age_counts_from_when_an_owner_was_last_heard_to_confirm_the_view() -> None:
    owner, reader = synced("a")
    assert reader.state.age(5.0) == math.inf, "a snapshot alone doesn't say that the owner is alive"
    assert reader.state.unconfirmed(5.0) == 5.0, "who has just read something needn't have heard the owner yet"
    reader.hear(owner.synced(), at=6.0)
    assert reader.state.age(6.5) == 0.5
    assert reader.state.unconfirmed(6.5) == 0.5
    reader.hear(owner.put("b"), at=7.0)
    assert reader.state.age(7.0) == 1.0


# Disagreement


def test_a_lost_message_is_noticed_by_synced_and_repaired_by_a_snapshot() -> None:
    owner, reader = synced("a")
    owner.delete("a")
    reader.hear(owner.put("b"), owner.synced(), at=10.0)
    assert not reader.due(10.9)
    assert reader.due(11.0)
    reader.take_snapshot(owner.snapshot(), 11.0)
    assert reader.events[-1] == Reset(owner.facts())
    assert reader.state.counters.gaps == 1
    assert not reader.due(1e9)


def test_a_disagreement_that_resolves_itself_needs_no_snapshot() -> None:
    owner, reader = synced()
    late = owner.put("a")
    reader.hear(owner.synced(), at=10.0)
    assert reader.due(11.0)
    reader.hear(late, at=10.5)
    assert not reader.due(1e9)
    assert reader.state.age(10.5) == 0.0


def test_while_it_cannot_be_repaired_the_view_stays_and_ages_and_snapshots_go_on() -> None:
    owner, reader = synced("a")
    reader.hear(owner.synced(), at=0.0)
    owner.put("lost")
    reader.hear(owner.synced(), at=10.0)
    reader.take_snapshot([], 11.0)
    assert set(reader.view) == {key("a")}
    assert not reader.due(11.9)
    assert reader.due(12.0)
    assert reader.state.age(12.0) == 12.0


# Connections


@pytest.mark.parametrize("missed", [False, True])
def test_after_a_reconnect_a_snapshot_is_taken_and_only_what_was_missed_is_an_event(missed: bool) -> None:
    owner, reader = synced("a", "b")
    reader.state.disconnected()
    if missed:
        owner.delete("a")
        owner.put("c")
        owner.synced()
    reader.state.connected(20.0)
    assert reader.due(20.0)
    reader.take_snapshot(owner.snapshot(), 20.0)
    assert reader.events == ([Reset(owner.facts())] if missed else [])
    assert not reader.due(1e9)


def test_a_wiped_bucket_changes_nothing_until_its_owner_has_published_again() -> None:
    owner, reader = synced("a", "b")
    reader.state.disconnected()
    reader.state.connected(20.0)
    reader.take_snapshot([], 20.0)
    assert set(reader.view) == {key("a"), key("b")}
    owner.bucket.clear()
    owner.take_over(2)
    reader.hear(owner.put("a"), owner.synced(), at=20.5)
    assert reader.events == [Reset(owner.facts())]
    assert set(reader.view) == {key("a")}, "no ghost of what was there before the wipe"


def test_a_bucket_that_was_rolled_back_does_not_bring_old_facts_back() -> None:
    owner = owning("a")
    old = owner.snapshot()
    owner.delete("a")
    owner.put("b")
    reader = synced_reader(owner)
    reader.state.disconnected()
    reader.state.connected(20.0)
    reader.take_snapshot(old, 20.0)
    assert set(reader.view) == {key("b")}


# Epochs


def test_a_higher_epoch_counts_at_once() -> None:
    owner, reader = synced("a", "ghost")
    owner.take_over(2)
    del owner.bucket[key("ghost")]
    reader.hear(owner.put("b"), at=1.0)
    assert reader.events == [Upsert(key("b"), endpoint("b"))]
    reader.hear(owner.synced(), at=1.1)
    assert reader.due(1.1), "a new owner's set that differs is fetched without waiting"
    reader.take_snapshot(owner.snapshot(), 1.1)
    assert reader.events[-1] == Reset(owner.facts())
    assert reader.state.epoch == 2


def test_a_new_owner_may_leave_facts_of_the_former_one_as_they_are() -> None:
    owner, reader = synced("a")
    owner.take_over(2)
    reader.hear(owner.synced(), at=1.0)
    assert reader.events == []
    assert reader.state.age(1.0) == 0.0
    fresh = Reader()
    fresh.state.connected(0.0)
    fresh.take_snapshot(owner.snapshot(), 0.0)
    assert fresh.view == owner.facts()


def test_a_lower_epoch_is_accepted_after_five_seconds_of_its_synced_without_the_higher_one() -> None:
    """NATS was wiped, and the new owner's clock is behind."""
    reader = synced_reader(high := Owner(epoch=1000))
    reader.hear(high.put("old"), high.synced(), at=0.0)
    low = Owner(epoch=10)
    reader.hear(low.put("new"), low.synced(), at=1.0)
    reader.hear(low.synced(), at=5.9)
    assert set(reader.view) == {key("old")}
    assert reader.state.counters.late == 3
    reader.hear(low.synced(), at=6.0)
    assert reader.due(6.0)
    reader.take_snapshot(low.snapshot(), 6.0)
    assert set(reader.view) == {key("new")}
    reader.hear(low.put("more"), low.synced(), at=6.1)
    assert reader.view == low.facts(), "from then on its messages count"


@pytest.mark.parametrize(
    ("heard", "epoch"),
    [
        ([(at, 10) for at in (0.0, 2.0, 4.9)], 1000),
        ([(at, 10) for at in (0.0, 2.0, 5.0)], 10),
        ([(0.0, 10), (4.0, 1000), (8.9, 10), (13.8, 10)], 1000),
        ([(0.0, 10), (4.0, 1000), (8.9, 10), (13.9, 10)], 10),
        ([(0.0, 10), (1.0, 100), (2.0, 10), (6.9, 10)], 1000),
        ([(0.0, 10), (1.0, 100), (2.0, 10), (7.0, 10)], 10),
    ],
)
def test_a_lower_epoch_counts_after_five_seconds_of_its_synced_alone(
    heard: list[tuple[float, int]], epoch: int
) -> None:
    """The higher one being heard, or one late message of yet another owner, starts the five seconds again."""
    owners = {epoch: Owner(epoch=epoch) for epoch in (10, 100, 1000)}
    owners[1000].put("a")
    reader = synced_reader(owners[1000])
    for at, message in heard:
        reader.hear(owners[message].synced(), at=at)
    assert reader.state.epoch == epoch
    assert set(reader.view) == {key("a")}


def test_a_lower_epoch_with_the_same_facts_is_confirmed_without_an_event() -> None:
    high, low = Owner(epoch=1000), Owner(epoch=10)
    high.put("a")
    reader = synced_reader(high)
    low.put("a")
    for at in range(7):
        reader.hear(low.synced(), at=float(at))
    assert reader.events == []
    assert reader.state.epoch == 10
    reader.hear(low.put("a", 9000), low.synced(), at=7.0)
    assert reader.events == [Upsert(key("a"), endpoint("a", 9000))]


# What can't be decoded


def unknown(name: str, version: tuple[int, int]) -> Put:
    raw = msgspec.msgpack.encode({"type": "endpoint/9", "id": name})
    envelope = FactEnvelope(epoch=version[0], sequence=version[1], fact=msgspec.Raw(raw))
    entry = parse_entry(key(name), encode(envelope), {})
    assert isinstance(entry, Put)
    return entry


def test_a_fact_of_a_kind_that_is_not_known_counts_but_is_not_shown() -> None:
    owner = Owner()
    owner.put("a")
    owner.sequence += 1
    entry = unknown("b", (owner.epoch, owner.sequence))
    assert "endpoint/9" in entry.fault
    owner.bucket[entry.key] = entry
    reader = synced_reader(owner)
    assert set(reader.view) == {key("a")}


def test_a_known_fact_that_becomes_unreadable_keeps_its_last_value_also_over_a_reset() -> None:
    owner, reader = synced("a")
    owner.sequence += 1
    entry = unknown("a", (owner.epoch, owner.sequence))
    owner.bucket[entry.key] = entry
    reader.hear(entry, owner.synced(), at=1.0)
    assert reader.events == []
    assert reader.state.age(1.0) == 0.0
    reader.state.connected(2.0)
    owner.put("b")
    owner.synced()
    reader.take_snapshot(owner.snapshot(), 2.0)
    assert set(reader.view) == {key("a"), key("b")}
    reader.hear(owner.delete("a"), at=3.0)
    assert reader.events[-1] == Delete(key("a"))


def test_entries_are_parsed_from_what_the_bucket_holds() -> None:
    raw = encode_fact(endpoint("a"))
    data = encode(FactEnvelope(epoch=3, sequence=4, fact=msgspec.Raw(raw)))
    entry = parse_entry(key("a"), data, {})
    assert isinstance(entry, Put)
    assert entry.weight >= len(raw)
    assert entry == Put(key("a"), (3, 4), fact_digest(key("a"), raw), endpoint("a"), weight=entry.weight)
    headers = {"KV-Operation": "PURGE", EPOCH_HEADER: "3", SEQUENCE_HEADER: "5"}
    for named in ({KEY_HEADER: key("a")}, {}):  # owners of an earlier version name neither the key nor the pool
        assert parse_entry(key("a"), b"", headers | named) == Purge(key("a"), (3, 5))
    for pool in (POOL, ""):
        synced = Synced(epoch=3, sequence=5, count=0, digest=0, pool=pool)
        assert parse_entry("default_p.synced", encode(synced), {}) == synced


@pytest.mark.parametrize(
    ("at", "data", "headers"),
    [
        ("epoch", b"", {}),
        ("default_p.other", b"", {}),
        ("default_p.endpoint.a", b"garbage", {}),
        ("default_p.synced", b"garbage", {}),
        ("default_p.endpoint.a", b"", {"KV-Operation": "DEL"}),
        ("default_p.endpoint.a", b"", {"KV-Operation": "PURGE", EPOCH_HEADER: "1", SEQUENCE_HEADER: "x"}),
        (
            "default_p.endpoint.a",
            b"",
            {"KV-Operation": "PURGE", EPOCH_HEADER: "1", SEQUENCE_HEADER: "2", KEY_HEADER: "default_p.endpoint.b"},
        ),
        ("default_p.synced", encode(Synced(epoch=1, sequence=2, count=0, digest=0, pool="default_q")), {}),
    ],
)
def test_what_is_no_entry_is_malformed(at: str, data: bytes, headers: dict[str, str]) -> None:
    with pytest.raises(Malformed):
        parse_entry(at, data, headers)


# Any order, any loss

steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcd"), st.integers(1, 3)),
        st.tuples(st.just("delete"), st.sampled_from("abcd"), st.just(0)),
        st.tuples(st.just("synced"), st.just(""), st.just(0)),
        st.tuples(st.just("new owner"), st.just(""), st.integers(1, 3)),
        st.tuples(st.just("wipe"), st.just(""), st.sampled_from([-2, -1, 1, 2])),
        st.tuples(st.just("snapshot"), st.just(""), st.integers(0, 5)),
        st.tuples(st.just("reconnect"), st.just(""), st.just(0)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 4)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps, st.data())
def test_whatever_is_lost_repeated_or_out_of_order_the_view_ends_as_the_owners_set(
    todo: list[tuple[str, str, int]], data: st.DataObject
) -> None:
    owner = Owner(epoch=1000)
    used = {owner.epoch}
    reader = Reader()
    now = 0.0
    reader.state.connected(now)
    snapshots: list[list[Entry]] = [[]]

    def take_over(_: str, step: int) -> None:
        """No two owners have the same epoch; one whose clock is behind has a lower one after a wipe."""
        epoch = owner.epoch + step
        while epoch in used:
            epoch += 1 if step > 0 else -1
        used.add(epoch)
        owner.take_over(epoch)

    def wipe(_: str, step: int) -> None:
        owner.bucket.clear()
        take_over(_, step)

    def deliver() -> None:
        """Some of everything that was ever said, in any order, some of it twice, some never."""
        some = data.draw(st.lists(st.sampled_from(tuple(owner.messages)), max_size=8)) if owner.messages else []
        reader.hear(*some, at=now)

    actions: dict[str, Callable[[str, int], object]] = {
        "put": lambda name, port: owner.put(name, port),
        "delete": lambda name, _: owner.delete(name) if key(name) in owner.bucket else None,
        "synced": lambda *_: owner.synced(),
        "new owner": take_over,
        "wipe": wipe,
        "snapshot": lambda _, back: reader.take_snapshot(snapshots[-1 - back % len(snapshots)], now),
        "reconnect": lambda *_: reader.state.connected(now),
        "wait": lambda *_: None,
    }
    for action, name, number in todo:
        now += number if action == "wait" else 0.01
        actions[action](name, number)
        snapshots.append(owner.snapshot())
        deliver()

    # The owner goes on saying what is true, and the reader gets the snapshots that it asks for.
    for _ in range(20):
        now += 0.5
        reader.hear(owner.synced(), at=now)
        if reader.due(now):
            reader.take_snapshot(owner.snapshot(), now)
    assert reader.state.synced
    assert reader.view == owner.facts() == reader.state.facts()
    assert reader.state.age(now) <= 0.5
    assert not reader.due(now)


@pytest.mark.parametrize(
    "fact", [Pool(name="p"), endpoint("b"), Configuration(text="x")], ids=lambda fact: type(fact).__name__
)
def test_a_fact_under_the_key_of_another_isnt_taken_in(fact: Fact) -> None:
    """What is deleted with the key would be taken from the fact that is really called so."""
    envelope = encode(FactEnvelope(epoch=1, sequence=1, fact=msgspec.Raw(encode_fact(fact))))
    entry = parse_entry(key("a"), envelope, {})
    assert isinstance(entry, Put)
    assert entry.fact is None
    assert "another key" in entry.fault


def test_of_lower_epochs_that_somebody_invents_only_some_are_kept_in_mind_and_the_right_one_counts_in_the_end() -> None:
    state = ReplicaState(lambda event: None, lower_epoch=5.0)
    state.connected(0.0)
    state.receive(Synced(epoch=10_000, sequence=1, count=1, digest=1), 0.0)
    for epoch in range(9_999, 5_000, -1):
        state.receive(Synced(epoch=epoch, sequence=1, count=1, digest=1), 0.0)
    assert state.challengers <= 100
    for second in range(7):
        state.receive(Synced(epoch=7, sequence=1, count=0, digest=0), float(second))
    assert state.epoch == 7


def test_facts_that_somebody_invents_take_bounded_memory_and_go_with_the_next_complete_copy() -> None:
    owner = Owner()
    owner.put("a")
    reader = synced_reader(owner)
    size = LIMITS.max_fact_memory // 8
    for number in range(20):
        forged = structs.replace(endpoint(f"forged-{number}"), labels={"x": "y"})
        reader.hear(Put(key(forged.id), (1, 100 + number), number, forged, weight=size), at=1.0)
        reader.hear(Put(key(forged.id), (1, 200 + number), number, None), at=1.0)  # keeps the value
        reader.hear(Purge(key(f"gone-{number}" + "x" * size), (1, 100 + number)), at=1.0)
    assert len(reader.view) < 10
    reader.hear(owner.put("b"), owner.synced(), at=2.0)
    assert reader.due(3.1)
    reader.take_snapshot(owner.snapshot(), 3.1)
    assert reader.view == owner.facts()
