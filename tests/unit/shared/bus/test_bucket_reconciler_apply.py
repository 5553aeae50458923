"""The desired facts when single facts change: the same as when all facts are set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bus.bucket_reconciler import BucketReconciler, Change
from shared.bus.facts import Delete, Upsert
from shared.bus.subjects import fact_key
from shared.model import Endpoint, Fact

POOL = "default_p"


def fact(name: str, port: int) -> tuple[str, Fact]:
    made = Endpoint(id=f"default/{name}", name=name, address="10.0.0.1", port=port)
    return fact_key(POOL, made), made


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([None, 80, 81]), st.sampled_from(["", "done", "doubt"]))
    ),
    st.sets(st.sampled_from("abcd")),
)
def test_single_changes_have_to_be_written_as_if_all_facts_were_set(
    steps: list[tuple[str, int | None, str]], kept_names: set[str]
) -> None:
    one, whole = BucketReconciler(), BucketReconciler()
    kept = [fact(name, 80)[0] for name in kept_names]
    wanted: dict[str, Fact] = {}
    for reconciler in (one, whole):
        reconciler.set_desired({}, [POOL], kept)
        reconciler.changes()
    for name, port, outcome in steps:
        key, made = fact(name, port or 80)
        if port is None:
            wanted.pop(key, None)
        else:
            wanted[key] = made
        one.apply([Delete(key) if port is None else Upsert(key, made)])
        whole.set_desired(wanted, [POOL], kept)
        due = sorted(one.changes(), key=_key)
        assert due == sorted(whole.changes(), key=_key)
        for reconciler in (one, whole):
            for change in due:
                if outcome == "done":
                    reconciler.acknowledge(change)
                elif outcome == "doubt":
                    reconciler.mark_unknown(change)
    assert one.synced(POOL) == whole.synced(POOL)


def _key(change: Change) -> str:
    return change.key


@pytest.mark.parametrize("key", ["default_q.endpoint.a", "default_p.synced"])
def test_a_key_that_is_no_fact_of_the_pools_is_refused_and_nothing_changes(key: str) -> None:
    reconciler = BucketReconciler()
    reconciler.set_desired({}, [POOL])
    mine, made = fact("a", 80)
    with pytest.raises(ValueError, match="no fact of one of the pools"):
        reconciler.apply([Upsert(mine, made), Upsert(key, made)])
    assert reconciler.changes() == []
