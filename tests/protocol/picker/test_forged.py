"""Somebody forges what collectors and other pickers say: a running picker doesn't take it, and says so."""

import asyncio
import math

import httpx

from shared.attributes import WAITING_QUEUE_SIZE
from shared.bus.codec import encode
from shared.bus.columns import endpoint_hash, pack_ages, pack_counts, pack_floats, pack_hashes
from shared.bus.connection import Bus
from shared.bus.messages import Frame, Load, PrefixBatch
from shared.bus.subjects import Subjects, pool_token
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import Owner, endpoint
from tests.waiting import TIMEOUT, eventually

SUBJECTS, POOL = Subjects(), pool_token("default", "default")


def frame(ids: tuple[str, ...], queue: float, *, sent: float) -> bytes:
    key = WAITING_QUEUE_SIZE.wire
    columns, ages = {key: pack_floats([queue])}, {key: pack_ages([0.0])}
    return encode(Frame(sender="c1", sent=sent, sequence=1, run=1, ids=ids, columns=columns, ages=ages))


def load(ids: tuple[str, ...], requests: int, *, sent: float) -> bytes:
    hashes, counts = pack_hashes(list(map(endpoint_hash, ids))), pack_counts([requests])
    return encode(Load(sender="p1", sent=sent, sequence=1, run=1, ids=hashes, requests=counts, tokens=pack_counts([0])))


async def test_forged_numbers_and_times_are_told_and_change_nothing(nats: NatsServer, owner: Owner) -> None:
    service = picker(nats.url)
    async with serving(service), Bus(nats.url, name="stranger") as stranger:
        await owner.publish([endpoint("a", 8000)])
        await eventually(lambda: len(service.view.layout) == 1, "the endpoint")
        ids = tuple(service.view.layout.index)
        frames, loads = SUBJECTS.frame(POOL, "c1", 0), SUBJECTS.load(POOL, "p1")

        def known() -> tuple[list[float], list[float]]:
            column = service.view.columns.numbers(WAITING_QUEUE_SIZE.wire)
            return column.values.tolist(), service.view.in_flight.requests.tolist()

        async def heard() -> bool:
            await stranger.publish(frames, frame(ids, 3.0, sent=1.0))
            await stranger.publish(loads, load(ids, 5, sent=1.0))
            return known() == ([3.0], [5.0])

        await eventually(heard, "the good messages")
        forged = [
            (frames, frame(ids, 1e200, sent=1.0)),
            (frames, frame(ids, 4.0, sent=1e6)),
            (frames, frame(ids, 4.0, sent=math.nan)),
            (loads, load(ids, 9, sent=1e6)),
        ]
        for subject, message in forged:
            await stranger.publish(subject, message)
        await eventually(lambda: service.registry.get_sample_value("pointsman_bus_implausible_messages_total") == 2)
        assert known() == ([3.0], [5.0])
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{service.admin_port}", trust_env=False, timeout=TIMEOUT
        ) as client:
            ready, metrics = await asyncio.gather(client.get("/readyz"), client.get("/metrics"))
    notes = ready.json()["notes"]
    assert f"{WAITING_QUEUE_SIZE} was 1e+200 (endpoint {ids[0]!r}, sender 'c1')" in notes["attributes"]
    assert "1 malformed messages" in notes["bus"]
    assert "2 implausible messages" in notes["bus"]
    assert f'pointsman_attribute_values_out_of_range_total{{attribute="{WAITING_QUEUE_SIZE}"}} 1.0' in metrics.text


async def test_what_one_picker_says_under_the_id_of_another_is_refused_or_told_by_the_other(
    nats: NatsServer, owner: Owner
) -> None:
    """The login is the pickers', so that NATS lets it through."""
    first, second = picker(nats.url, id="p1"), picker(nats.url, id="p2")
    async with serving(first), serving(second), Bus(nats.url, name="mallory") as mallory:
        await owner.publish([endpoint("a", 8000)])
        await eventually(lambda: list(second.view.in_flight.peers()) == ["p1"], "the other picker")
        await eventually(lambda: len(second.view.layout) == 1, "the endpoint")
        row = load(tuple(second.view.layout.index), 99, sent=1.0)
        batch = encode(PrefixBatch(sender="p1", run=77, sequence=1, hashing="1: x"))
        messages = [(SUBJECTS.load(POOL, id), row) for id in ("p1", "p3")]
        messages += [(SUBJECTS.prefix_batch(POOL, id), batch) for id in ("p1", "p3")]

        async def told() -> bool:
            for subject, message in messages:
                await mallory.publish(subject, message)
            refused = second.registry.get_sample_value("pointsman_bus_conflicting_messages_total") or 0.0
            note = first.readiness.notes().get("id", "")
            return refused >= 2 * len(messages) and "another picker has the id 'p1' too" in note

        await eventually(told, lambda: (first.readiness.notes(), second.readiness.notes()), step=0.1)
        assert second.view.in_flight.requests.tolist() == [0.0]
        assert 77 not in [origin["run"] for origin in second.state()["prefixes"]["origins"]]
        assert "conflicting messages" in second.readiness.notes()["bus"]
