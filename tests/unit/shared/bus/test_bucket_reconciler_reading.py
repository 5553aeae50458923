"""What is written while the bucket is read: news doesn't wait for the end, and isn't taken for somebody else's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bus.bucket_reconciler import BucketReconciler, Change
from shared.bus.codec import encode_fact
from shared.bus.facts import Delete, Upsert
from shared.bus.subjects import fact_key
from shared.model import Endpoint, Fact

POOL = "default_p"


def fact(name: str, port: int = 1) -> tuple[str, Fact]:
    made = Endpoint(id=f"default/{name}", name=name, address="10.0.0.1", port=port)
    return fact_key(POOL, made), made


A, B, C = fact("a"), fact("b"), fact("c")


def stored(*facts: tuple[str, Fact]) -> list[tuple[str, bytes | None]]:
    return [(key, encode_fact(made)) for key, made in facts]


def started(*facts: tuple[str, Fact]) -> BucketReconciler:
    """It wants these facts, and knows that they are stored."""
    reconciler = BucketReconciler()
    reconciler.set_desired(dict(facts), [POOL])
    reconciler.observe(stored(*facts), trust=True)
    assert reconciler.changes() == []
    return reconciler


def write(reconciler: BucketReconciler, changes: list[Change]) -> list[str]:
    for change in changes:
        reconciler.acknowledge(change)
    return [f"{'-' if change.raw is None else '+'}{change.key[-1]}" for change in changes]


def test_news_is_written_while_the_bucket_is_read_and_nothing_else() -> None:
    reconciler = started(A, B)
    reconciler.apply([Upsert(*C)])
    reconciler.begin_reading(known=True)
    reconciler.apply([Upsert(*fact("a", 2)), Delete(B[0])])
    assert write(reconciler, reconciler.fresh_changes(2)) == ["+c", "+a"]
    reconciler.set_desired(dict([fact("a", 3), fact("d")]), [POOL])
    assert sorted(write(reconciler, reconciler.fresh_changes(9))) == ["+a", "+d", "-b", "-c"]
    assert reconciler.fresh_changes(9) == []
    assert reconciler.observe(stored(A, B), ["junk"], trust=True) == 1, "only the junk is odd"
    assert write(reconciler, reconciler.changes()) == ["-k"]
    assert reconciler.synced(POOL).count == 2


@pytest.mark.parametrize(("known", "fresh"), [(True, ["+c"]), (False, [])])
def test_what_was_due_before_is_written_meanwhile_where_it_is_known_what_is_stored(
    known: bool, fresh: list[str]
) -> None:
    reconciler = started(A, B)
    reconciler.apply([Upsert(*C)])
    reconciler.begin_reading(known=known)
    assert write(reconciler, reconciler.fresh_changes(9)) == fresh


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, 1, 2]), st.booleans())),
    st.lists(st.sampled_from("abcj")),
)
def test_whatever_is_read_before_and_after_a_write_the_bucket_ends_up_as_wanted(
    steps: list[tuple[str, int | None, bool]], read: list[str]
) -> None:
    """Each step changes a fact, and may write what is fresh. The reading has seen some keys as they were at the
    beginning, and all as they are in the end, as keys that are written again come last."""
    reconciler = started(A, B)
    bucket = dict(stored(A, B))
    seen: list[tuple[str, bytes | None]] = [(key, raw) for key, raw in bucket.items() if key[-1] in read]
    reconciler.begin_reading(known=True)
    for name, port, writes in steps:
        key, made = fact(name, port or 0)
        reconciler.apply([Delete(key) if port is None else Upsert(key, made)])
        for change in reconciler.fresh_changes(9) if writes else ():
            reconciler.acknowledge(change)
            bucket[change.key] = change.raw
    reconciler.observe([*seen, *((key, raw) for key, raw in bucket.items() if raw is not None)], trust=True)
    for change in reconciler.changes():
        reconciler.acknowledge(change)
        bucket[change.key] = change.raw
    wanted = {key: raw for key, raw in bucket.items() if raw is not None}
    assert reconciler.synced(POOL).count == len(wanted)
    again = BucketReconciler()
    again.set_desired({}, [POOL])
    assert reconciler.changes() == []
    assert reconciler.observe([*wanted.items()], trust=True) == 0
