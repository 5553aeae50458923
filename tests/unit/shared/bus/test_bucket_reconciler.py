"""The owner's books: what differs has to be written, and nothing else."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bus import bucket_reconciler as module
from shared.bus.bucket_reconciler import BucketReconciler, Change
from shared.bus.codec import MASK, decode, encode, encode_fact, fact_digest
from shared.bus.epochs import next_epoch
from shared.bus.facts import Delete, Upsert
from shared.bus.messages import FactEnvelope, Synced
from shared.bus.subjects import Key, fact_key, parse_key, synced_key
from shared.model import Endpoint, Fact

POOL = "default_p"


def endpoint(name: str, port: int = 8000) -> Endpoint:
    return Endpoint(id=f"default/{name}", name=name, address="10.0.0.1", port=port)


def facts(*endpoints: Endpoint, pool: str = POOL) -> dict[str, Fact]:
    return {fact_key(pool, endpoint): endpoint for endpoint in endpoints}


def wanting(*endpoints: Endpoint) -> BucketReconciler:
    reconciler = BucketReconciler()
    reconciler.set_desired(facts(*endpoints), [POOL])
    return reconciler


def settle(reconciler: BucketReconciler) -> Sequence[Change]:
    changes = reconciler.changes()
    for change in changes:
        reconciler.acknowledge(change)
    return changes


def test_keys_that_are_kept_already_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def noting(key: str) -> Key:
        checked.append(key)
        return parse_key(key)

    reconciler, kept = wanting(endpoint("a")), [f"{POOL}.objective.o{number}" for number in range(100)]
    reconciler.set_desired(facts(endpoint("a")), [POOL], kept)
    monkeypatch.setattr(module, "parse_key", noting)
    reconciler.set_desired(facts(endpoint("a")), [POOL], [*kept, f"{POOL}.objective.new"])
    assert checked == [f"{POOL}.objective.new"]
    with pytest.raises(ValueError, match="no fact"):
        reconciler.set_desired({}, ["default_q"], kept)


def test_only_what_differs_is_written_and_deletes_come_last() -> None:
    reconciler = wanting(endpoint("a"), endpoint("b"))
    assert [change.key for change in settle(reconciler)] == list(facts(endpoint("a"), endpoint("b")))
    assert reconciler.changes() == []
    reconciler.set_desired(facts(endpoint("a"), endpoint("c")), [POOL])
    assert [(change.key[-1], change.raw is None) for change in settle(reconciler)] == [("c", False), ("b", True)]
    reconciler.set_desired(facts(endpoint("a", port=9000), endpoint("c")), [POOL])
    assert settle(reconciler) == [Change("default_p.endpoint.default/a", encode_fact(endpoint("a", port=9000)))]


def test_a_new_leader_writes_only_what_differs_from_what_it_finds() -> None:
    reconciler = wanting(endpoint("same"), endpoint("changed"), endpoint("missing"))
    changed, gone = fact_key(POOL, endpoint("changed")), fact_key(POOL, endpoint("gone"))
    found = [
        ("epoch", None),
        ("default_p.synced", None),
        (fact_key(POOL, endpoint("same")), encode_fact(endpoint("same"))),
        (changed, encode_fact(endpoint("changed", port=1))),
        (gone, encode_fact(endpoint("gone"))),
        ("default_old.synced", None),
        ("written-by-hand", None),
    ]
    reconciler.observe(found, trust=True)
    changes = reconciler.changes()
    assert {change.key for change in changes if change.raw is not None} == {
        changed,
        fact_key(POOL, endpoint("missing")),
    }
    assert {change.key for change in changes if change.raw is None} == {gone, "default_old.synced", "written-by-hand"}


def test_after_a_reconnect_everything_is_written_again_the_news_first() -> None:
    reconciler = wanting(endpoint("a"), endpoint("b"), endpoint("c", port=1))
    settle(reconciler)
    found: list[tuple[str, bytes | None]] = [
        (key, encode_fact(fact)) for key, fact in facts(endpoint("a"), endpoint("c")).items()
    ]
    reconciler.observe([*found, ("default_p.endpoint.ghost", b"")], trust=False)
    changes = settle(reconciler)
    assert [change.key for change in changes] == [
        *facts(endpoint("b"), endpoint("c")),
        "default_p.endpoint.ghost",
        *facts(endpoint("a")),
    ]
    assert reconciler.changes() == []
    assert reconciler.synced(POOL).count == 3


def test_adopt_counts_the_keys_that_somebody_else_has_changed() -> None:
    reconciler = wanting(endpoint("a"), endpoint("b"))
    settle(reconciler)
    kept = (fact_key(POOL, endpoint("a")), encode_fact(endpoint("a")))
    assert reconciler.observe([kept, (fact_key(POOL, endpoint("b")), encode_fact(endpoint("b")))], trust=True) == 0
    assert reconciler.observe([kept], trust=True) == 1
    assert reconciler.observe([kept, ("default_p.endpoint.x", b"")], trust=True) == 1
    assert reconciler.observe([kept], trust=True) == 0
    reconciler.set_desired({}, [POOL])
    assert reconciler.observe([kept, (synced_key("default_former"), b"")], trust=True) == 0, (
        "as it was left, if not wanted"
    )
    assert [change.raw for change in reconciler.changes()] == [None, None]


def test_synced_describes_what_is_stored_per_pool() -> None:
    reconciler = BucketReconciler()
    reconciler.start_epoch(7)
    a, b = endpoint("a"), endpoint("b")
    reconciler.set_desired(facts(a, b) | facts(a, pool="default_q"), [POOL, "default_q", "default_empty"])
    assert reconciler.synced(POOL).count == 0
    for change in reconciler.changes():
        assert change.raw is not None
        reconciler.envelope(change.raw)
        reconciler.acknowledge(change)
    synced = reconciler.synced(POOL)
    digest = sum(fact_digest(fact_key(POOL, fact), encode_fact(fact)) for fact in (a, b)) & MASK
    assert (synced.epoch, synced.sequence, synced.count, synced.digest) == (7, 3, 2, digest)
    assert reconciler.synced("default_q").count == 1
    assert (reconciler.synced("default_empty").count, reconciler.synced("default_empty").digest) == (0, 0)
    assert reconciler.pools == ("default_empty", POOL, "default_q")


def test_a_pool_that_is_kept_stays_as_it_is_found_until_it_is_stated() -> None:
    """An owner that doesn't know yet what a pool is must neither take it away nor let it age unseen."""
    reconciler, other = BucketReconciler(), "default_other"
    reconciler.set_desired(facts(endpoint("a")), [POOL], [other])
    theirs = facts(endpoint("x"), endpoint("y"), pool=other)
    was = Synced(epoch=1, sequence=7, count=2, digest=3, age=4.0)
    found: list[tuple[str, bytes | None]] = [(key, encode_fact(fact)) for key, fact in theirs.items()]
    assert list(reconciler.complete) == [POOL], "nobody knows what there is"
    reconciler.observe([*found, (synced_key(other), encode(was))], trust=True)
    assert [change.key for change in settle(reconciler)] == list(facts(endpoint("a")))
    assert list(reconciler.complete) == [other, POOL]
    assert reconciler.found_age(other) == 4.0
    assert reconciler.synced(other).count == 2
    assert reconciler.keys == 3 + 2 + 1, "facts, a synced for each pool, the epoch"
    reconciler.set_desired(facts(endpoint("a"), endpoint("b")), [POOL], [other])
    assert [change.key for change in settle(reconciler)] == list(facts(endpoint("b")))
    reconciler.set_desired(facts(endpoint("a"), endpoint("b")) | facts(endpoint("y"), pool=other), [POOL, other])
    assert settle(reconciler) == [Change("default_other.endpoint.default/x", None)]
    assert reconciler.found_age(other) is None


def test_what_is_said_of_another_pool_completes_none() -> None:
    reconciler = BucketReconciler()
    reconciler.set_desired({}, [], [POOL])
    reconciler.observe([(synced_key(POOL), encode(Synced(epoch=1, sequence=7, count=0, digest=0, pool="default_q")))])
    assert list(reconciler.complete) == []
    reconciler.observe([(synced_key(POOL), encode(Synced(epoch=1, sequence=7, count=0, digest=0, pool=POOL)))])
    assert list(reconciler.complete) == [POOL]


def test_a_kept_pool_is_written_again_where_readers_may_have_missed_it() -> None:
    reconciler = BucketReconciler()
    reconciler.set_desired({}, [], [POOL])
    raw = encode_fact(endpoint("a"))
    (key,) = facts(endpoint("a"))
    reconciler.observe([(key, raw)], trust=True)
    assert settle(reconciler) == []
    reconciler.observe([(key, raw)], trust=False)
    assert settle(reconciler) == [Change(key, raw)]
    reconciler.observe([], trust=True)
    assert settle(reconciler) == [], "somebody has deleted it by hand: it isn't known what is right"


@pytest.mark.parametrize("found", [None, b"\xc1"])
def test_a_kept_pool_of_which_no_complete_copy_was_found_isnt_called_complete(found: bytes | None) -> None:
    reconciler = BucketReconciler()
    reconciler.set_desired({}, [], [POOL])
    reconciler.observe([(synced_key(POOL), found)] if found else [], trust=True)
    assert reconciler.complete == ()
    assert settle(reconciler) == []


def test_single_facts_can_be_kept_too_until_they_are_stated() -> None:
    reconciler = BucketReconciler()
    (x,), (y,) = facts(endpoint("x")), facts(endpoint("y"))
    reconciler.set_desired(facts(endpoint("a")), [POOL], [x, y])
    reconciler.observe([(x, encode_fact(endpoint("x")))], trust=True)
    assert [change.key for change in settle(reconciler)] == list(facts(endpoint("a")))
    assert reconciler.synced(POOL).count == 2
    reconciler.set_desired(facts(endpoint("a"), endpoint("x", port=9000)), [POOL], [x])
    assert settle(reconciler) == [Change(x, encode_fact(endpoint("x", port=9000)))], "what is stated goes before"
    reconciler.observe([(key, encode_fact(endpoint(key[-1]))) for key in (x, y)], trust=True)
    assert {(change.key, change.raw is None) for change in settle(reconciler)} >= {(x, False), (y, True)}
    reconciler.set_desired(facts(endpoint("a")), [POOL], [x])
    reconciler.set_desired(facts(endpoint("a")), [POOL])
    assert settle(reconciler) == [Change(x, None)]


def test_a_pool_that_becomes_kept_keeps_what_it_holds() -> None:
    reconciler = wanting(endpoint("a"))
    reconciler.observe([], trust=True)
    settle(reconciler)
    reconciler.set_desired({}, [], [POOL])
    assert settle(reconciler) == []
    assert reconciler.complete == (POOL,)


def test_every_write_has_its_own_sequence_which_starts_anew_with_an_epoch() -> None:
    reconciler = BucketReconciler()
    reconciler.start_epoch(5)
    versions = []
    for _ in range(2):
        envelope = decode(FactEnvelope, reconciler.envelope(encode_fact(endpoint("a"))))
        versions.append((envelope.epoch, envelope.sequence))
    reconciler.start_epoch(6)
    versions.append((reconciler.epoch, reconciler.next_sequence()))
    assert versions == [(5, 1), (5, 2), (6, 1)]


@pytest.mark.parametrize(
    ("wanted", "pools", "kept", "problem"),
    [
        (
            {"default_q.endpoint.a": endpoint("a")},
            [POOL],
            [],
            "default_q.endpoint.a.*is no fact of one of the pools default_p",
        ),
        ({"default_p.synced": endpoint("a")}, [POOL], [], "default_p.synced.*is no fact of one of the pools default_p"),
        (facts(endpoint("a")), [POOL], [POOL], "is no fact of one of the pools"),
        ({}, [POOL], ["default_other.endpoint.x"], "is no fact of one of the pools"),
        ({}, [POOL], ["default_p.synced"], "is no fact of one of the pools"),
        ({}, ["pool"], [], "no pool token"),
    ],
)
def test_a_key_that_is_no_fact_of_the_pools_is_refused_and_nothing_changes(
    wanted: dict[str, Fact], pools: list[str], kept: list[str], problem: str
) -> None:
    reconciler = wanting(endpoint("a"))
    before = reconciler.changes()
    with pytest.raises(ValueError, match=problem):
        reconciler.set_desired(wanted, pools, kept)
    assert reconciler.changes() == before


def test_an_epoch_is_the_clock_and_more_than_was_seen() -> None:
    assert next_epoch(1_700_000_000.5, 0) == 1_700_000_000_500
    assert next_epoch(1.0, 1_700_000_000_500) == 1_700_000_000_501


names = st.sets(st.sampled_from("abcdef"))


@given(st.lists(st.tuples(names, st.sets(st.sampled_from("abcdef")), st.booleans())))
def test_whatever_fails_the_bucket_ends_up_as_wanted(rounds: list[tuple[set[str], set[str], bool]]) -> None:
    """Writes whose end isn't known may have happened or not; the reconciler never believes more than it knows."""
    reconciler = BucketReconciler()
    bucket: dict[str, bytes] = {}
    for wanted, failing, stored in [*rounds, (set("ace"), set(), True)]:
        reconciler.set_desired(facts(*map(endpoint, sorted(wanted))), [POOL])
        for change in reconciler.changes():
            failed = change.key[-1] in failing
            if stored or not failed:
                if change.raw is None:
                    bucket.pop(change.key, None)
                else:
                    bucket[change.key] = change.raw
            if failed:
                reconciler.mark_unknown(change)
            else:
                reconciler.acknowledge(change)
    assert bucket == {key: encode_fact(fact) for key, fact in facts(*map(endpoint, "ace")).items()}
    assert reconciler.changes() == []
    assert reconciler.synced(POOL).count == 3


def test_what_is_news_comes_before_the_rest_of_a_burst_of_deletes() -> None:
    """Also a delete of a fact, which may be a server that isn't ready, comes before those of somebody else's keys."""
    reconciler = wanting(endpoint("a"), endpoint("b"))
    reconciler.observe([(key, encode_fact(fact)) for key, fact in facts(endpoint("a"), endpoint("b")).items()])
    for change in reconciler.changes():
        reconciler.acknowledge(change)
    found = [(key, encode_fact(fact)) for key, fact in facts(endpoint("a"), endpoint("b")).items()]
    reconciler.observe([*found, *((f"junk-{number}", None) for number in range(100))], trust=True)
    written = []
    for batch in range(20):
        if batch == 2:
            gone, come = fact_key(POOL, endpoint("a")), endpoint("c")
            reconciler.apply([Delete(gone), Upsert(fact_key(POOL, come), come)])
        for change in reconciler.changes(10):
            written.append(change.key)
            reconciler.acknowledge(change)
    assert len(written) == 102
    assert written[20:22] == [fact_key(POOL, endpoint("c")), fact_key(POOL, endpoint("a"))]


def test_a_fact_that_becomes_what_it_was_before_a_reconnect_is_news() -> None:
    reconciler = wanting(endpoint("a"))
    reconciler.observe([(key, encode_fact(fact)) for key, fact in facts(endpoint("a")).items()])
    settle(reconciler)
    for port in (1, 8000):
        fact = endpoint("a", port=port)
        reconciler.apply([Upsert(fact_key(POOL, fact), fact), Delete(fact_key(POOL, endpoint("b")))])
        reconciler.mark_unknown(Change(fact_key(POOL, endpoint("b")), None))
        assert reconciler.changes(1) == [Change(fact_key(POOL, fact), encode_fact(fact))]
        settle(reconciler)


class Junk(str):
    """A key that counts how often any of its kind was looked for."""

    looks = 0
    __slots__ = ()

    def __hash__(self) -> int:
        Junk.looks += 1
        return super().__hash__()


def test_a_bucket_full_of_foreign_keys_is_looked_at_in_pieces_and_news_comes_first() -> None:
    reconciler = BucketReconciler()
    reconciler.set_desired(facts(endpoint("a")), [POOL])
    junk = [Junk(f"default_p.endpoint.{number}") for number in range(20_000)]
    assert reconciler.observe([], junk, trust=True) == len(junk)
    assert reconciler.due == len(junk) + 1
    deleted: set[str] = set()
    before = Junk.looks
    first = reconciler.changes(128)
    assert Junk.looks - before < len(junk) / 2
    assert first[0].key == fact_key(POOL, endpoint("a"))
    while changes := reconciler.changes(128):
        for change in changes:
            deleted |= {change.key} if change.raw is None else set()
            reconciler.acknowledge(change)
    assert deleted == set(junk)


def test_a_foreign_key_that_is_wanted_by_the_time_it_comes_up_stays() -> None:
    reconciler = BucketReconciler()
    reconciler.set_desired({}, [POOL])
    (key,) = facts(endpoint("a"))
    reconciler.observe([], [key], trust=True)
    reconciler.set_desired(facts(endpoint("a")), [POOL])
    for change in reconciler.changes():
        assert change.raw is not None
        reconciler.acknowledge(change)
    assert reconciler.changes() == []
