"""Every limit of the bus is a setting: one that is changed takes effect."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import structs

from shared.bus.candidacy import Candidates
from shared.bus.codec import encode, encode_fact
from shared.bus.connection import Bus
from shared.bus.facts import FACT_BYTES, Put, parse_entry
from shared.bus.frame_reader import FrameSequence
from shared.bus.membership import Members
from shared.bus.messages import Candidate, FactEnvelope, Frame, Member, Synced
from shared.bus.queueing_delay import QueueingDelays
from shared.bus.replica_state import ReplicaState
from shared.bus.subjects import fact_key
from shared.config.problems import Invalid
from shared.limits import BusLimits
from shared.model import Pool
from shared.service.bus import make_bus
from shared.service.settings import CommonSettings, parse

MANY = 500


def candidates(limits: BusLimits) -> int:
    heard = Candidates(limit=limits.max_watchers)
    for number in range(MANY):
        heard.observe(Candidate(owner=f"{number}", fitness=(number,)), 0.0)
    return len(heard)


def epochs(limits: BusLimits) -> int:
    state = ReplicaState(lambda _: None, limits=limits)
    for epoch in range(MANY, 0, -1):
        state.receive(Synced(epoch=epoch, sequence=1, count=0, digest=0), 0.0)
    return state.challengers


def members(limits: BusLimits) -> int:
    heard = Members(limit=limits.max_senders)
    for number in range(MANY):
        heard.observe(Member(id=f"{number}", tier="collector", sent=0.0), 0.0)
    return len(heard.ids)


def runs(limits: BusLimits) -> int:
    delays = QueueingDelays(limit=limits.max_runs)
    for number in range(MANY):
        delays.observe(f"{number}", 0, 0.0, 0.0)
    return len(delays)


def keys(limits: BusLimits) -> int:
    order = FrameSequence(limits.max_runs)
    for number in range(MANY):
        order.live(f"{number}", Frame(sender="a", sent=0.0, sequence=1, ids=()), 0.0)
    return len(order)


def facts(limits: BusLimits) -> int:
    state = ReplicaState(lambda _: None, limits=limits)
    state.snapshot_started(0.0)
    room = [state.snapshot_entry(Put(f"p.endpoint.{number}", (1, number), 0, None), 0.0) for number in range(MANY)]
    return room.count(True)


@pytest.mark.parametrize(
    ("known", "limits", "expected"),
    [
        (candidates, BusLimits(max_senders=100), 10),
        (candidates, BusLimits(max_senders=1), 1),
        (epochs, BusLimits(max_senders=200), 20),
        (members, BusLimits(max_senders=30), 30),
        (runs, BusLimits(max_senders=40), 400),
        (keys, BusLimits(max_senders=30), 300),
        (facts, BusLimits(max_fact_memory=50 * FACT_BYTES), 50),
    ],
)
def test_what_is_known_of_others_is_limited(
    known: Callable[[BusLimits], int], limits: BusLimits, expected: int
) -> None:
    assert known(limits) == expected


def test_a_reader_takes_facts_of_so_many_entries() -> None:
    fact = Pool(name="p", target_ports=(1,) * 300)
    data = encode(FactEnvelope(epoch=1, sequence=1, fact=msgspec.Raw(encode_fact(fact))))
    entries = [parse_entry(fact_key("default_p", fact), data, {}, most) for most in (299, 300)]
    assert [isinstance(entry, Put) and entry.fact for entry in entries] == [None, fact]


@pytest.mark.parametrize(
    ("name", "fact"), [("a", {"type": "x" * 10**5}), ("x" * 10**5, {"type": "x"})], ids=["text of a fault", "key"]
)
def test_facts_that_cant_be_read_take_bounded_memory(name: str, fact: dict[str, str]) -> None:
    """What is wrong with a fact is said in words of its sender."""
    data = encode(FactEnvelope(epoch=1, sequence=1, fact=msgspec.Raw(msgspec.msgpack.encode(fact))))
    memory = 50 * FACT_BYTES
    state = ReplicaState(lambda _: None, limits=BusLimits(max_fact_memory=memory))
    state.snapshot_started(0.0)
    taken = 0
    for number in range(MANY):
        entry = parse_entry(f"default_p.endpoint.{name}{number}", data, {})
        assert isinstance(entry, Put)
        if state.snapshot_entry(entry, 0.0):
            taken += len(entry.key) + len(entry.fault)
    assert taken <= memory


async def test_settings_are_the_limits_of_the_bus_and_of_its_subscriptions() -> None:
    argv = ["--max-fact-entries", "7", "--max-fact-memory", "1Mi", "--max-senders", "50", "--max-pending-bytes", "2Mi"]
    bus, _, _ = make_bus(parse(CommonSettings, argv, {}, "test"), "picker", "p1")
    limits = BusLimits(max_fact_entries=7, max_fact_memory=2**20, max_senders=50, max_pending_bytes=2**21)
    assert {name: getattr(bus.limits, name) for name in BusLimits.__struct_fields__} == structs.asdict(limits)
    assert Bus("nats://127.0.0.1:1", name="test").limits == BusLimits()
    asked: dict[str, Any] = {}

    class Client:
        def __init__(self, max_payload: int) -> None:
            self.max_payload = max_payload

        async def subscribe(self, subject: str, **options: Any) -> None:
            asked[subject] = options

    subscription = await bus.subscribe("a.b", lambda _: None)
    for max_payload, least in ((2**20, 2**21), (2**21, 2**22)):  # nats-py drops a message of as many bytes
        await subscription.attach(Client(max_payload))  # type: ignore[arg-type]
        assert (asked["a.b"]["pending_bytes_limit"], asked["a.b"]["pending_msgs_limit"]) == (least, 2**12)


def test_a_subscription_that_could_hold_no_large_message_is_refused() -> None:
    with pytest.raises(Invalid, match="--max-pending-bytes: 1Mi is below 2Mi"):
        parse(CommonSettings, ["--max-pending-bytes", "1Mi"], {}, "test")
