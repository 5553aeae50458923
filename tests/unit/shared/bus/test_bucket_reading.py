"""What the owner takes of the bucket: all that it knows, and a bounded amount of what others wrote."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import pytest

from shared.bus.bucket_reading import BucketReading
from shared.bus.bucket_reconciler import BucketReconciler
from shared.bus.codec import encode, encode_fact
from shared.bus.facts import EPOCH_HEADER, FACT_BYTES
from shared.bus.jetstream import OPERATION, Stored
from shared.bus.messages import FactEnvelope, Synced
from shared.bus.subjects import Subjects, fact_key, synced_key
from shared.model import Endpoint, Fact

POOL, KEPT = "default_p", "default_kept"


def endpoint(name: str) -> Endpoint:
    return Endpoint(id=name, name=name, address="10.0.0.1", port=80)


def key(name: str, pool: str = POOL) -> str:
    return fact_key(pool, endpoint(name))


def message(key: str, fact: Fact | bytes, epoch: int = 1, headers: Mapping[str, str] = MappingProxyType({})) -> Stored:
    if isinstance(fact, Endpoint):
        fact = encode(FactEnvelope(epoch=epoch, sequence=1, fact=msgspec.Raw(encode_fact(fact))))
    assert isinstance(fact, bytes)
    return Stored(Subjects().fact(key), fact, headers, 7)


def reading(*messages: Stored, memory: int = 10**6) -> BucketReading:
    reconciler = BucketReconciler()
    reconciler.set_desired({key("a"): endpoint("a")}, [POOL], [KEPT])
    made = BucketReading(reconciler, Subjects(), fence=7, memory=memory, plausible=lambda epoch: epoch < 10)
    for stored in messages:
        made.read(stored)
    return made


SYNCED = encode(Synced(epoch=1, sequence=1, count=1, digest=1))


@pytest.mark.parametrize(
    ("stored", "content"),
    [
        (message(key("a"), endpoint("a")), encode_fact(endpoint("a"))),
        (message(key("a"), endpoint("b")), None),
        (message(key("a"), endpoint("a"), epoch=11), None),
        (message(key("a"), b"junk"), None),
        (message(key("stranger"), endpoint("stranger")), None),
        (message(key("x", KEPT), endpoint("x")), encode_fact(endpoint("x"))),
        (message(f"{KEPT}.junk", endpoint("x")), None),
        (message(f"{KEPT}.endpoint.=zz", endpoint("x")), None),
        (message(synced_key(KEPT), SYNCED), SYNCED),
        (message(synced_key(POOL), SYNCED), None),
    ],
    ids=[
        "as desired",
        "other content",
        "epoch that can't be",
        "no fact",
        "not desired",
        "kept",
        "no key of a pool",
        "no name",
        "synced of a kept pool",
        "synced",
    ],
)
def test_content_is_taken_where_it_is_as_it_should_be_or_kept(stored: Stored, content: bytes | None) -> None:
    made = reading(stored)
    assert [raw for _, raw in made.found] + [None for _ in made.foreign] == [content]


DELETED = {OPERATION: "PURGE", EPOCH_HEADER: "1"}


def test_what_is_deleted_already_is_passed_over() -> None:
    made = reading(message(key("a"), b"", headers=DELETED))
    assert (made.found, made.strays) == ([], [])


@pytest.mark.parametrize("name", ["a\ufffdb", "a\rb", "a\u2003", "*", f"{POOL}.>", f"{POOL}.endpoint.*", "x" * 3000])
@pytest.mark.parametrize("headers", [{}, DELETED])
def test_a_key_that_no_delete_can_name_is_told_apart_with_its_sequence(name: str, headers: dict[str, str]) -> None:
    made = reading(message(name, endpoint("a"), headers=headers))
    assert made.found == []
    assert [stray.sequence for stray in made.strays] == [7]
    assert not made.more_strays


def test_such_keys_take_bounded_memory_of_their_own() -> None:
    made = reading(*(message(f"{number}*", b"") for number in range(30)), memory=10 * (FACT_BYTES + 3))
    assert (len(made.strays), made.more_strays, made.partial) == (10, True, False)


def test_markers_of_deletes_take_bounded_memory_of_their_own() -> None:
    many = (message(f"{number:02}", b"", headers=DELETED) for number in range(30))
    made = reading(*many, memory=10 * (FACT_BYTES + 2))
    assert (len(made.deleted), made.partial, made.foreign) == (10, False, [])


@pytest.mark.parametrize("kept", [False, True])
def test_what_others_wrote_takes_bounded_memory_and_what_is_known_is_taken_all_the_same(kept: bool) -> None:
    memory = 10 * (FACT_BYTES + 100)
    junk = [
        message(key(f"{number}", KEPT) if kept else f"junk-{number}", endpoint("x" * 2000 if kept else "x"))
        for number in range(30)
    ]
    made = reading(*junk, message(key("a"), endpoint("a")), memory=memory)
    assert made.partial
    assert made.found[-1] == (key("a"), encode_fact(endpoint("a")))
    held = [raw for _, raw in made.found[:-1] if raw is not None]
    assert 10 <= len(made.found) + len(made.foreign) < 20
    assert bool(held) is kept
    assert sum(map(len, held)) < memory


def test_a_key_of_a_kept_pool_that_no_pool_can_have_is_deleted() -> None:
    made = reading(message(f"{KEPT}.junk", endpoint("x")), message(key("x", KEPT), endpoint("x")))
    reconciler = BucketReconciler()
    reconciler.set_desired({key("a"): endpoint("a")}, [POOL], [KEPT])
    reconciler.observe(made.found, made.foreign, trust=True)
    assert reconciler.orphans() == [f"{KEPT}.junk"]
