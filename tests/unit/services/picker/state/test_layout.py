import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.picker.state.layout import REMEMBERED_ENTRIES, Layout
from services.picker.state.view import View
from shared.attributes import ACTIVE_MODELS, WAITING_QUEUE_SIZE
from shared.model import Endpoint
from tests.unit.services.picker.world import endpoint, frame
from tests.work import counted

PORTS = Layout(
    [
        endpoint("a", "10.0.0.1", 8000),
        endpoint("b", "10.0.0.1", 8001),
        endpoint("c", "10.0.0.2", 8000),
        endpoint("d", "fd00::1", 8000),
        endpoint("e", "fd00::1", 8001),
    ]
)


def ids(layout: Layout, rows: object) -> list[str]:
    return [layout.endpoints[row].id for row in np.asarray(rows).tolist()]


def test_endpoints_are_in_the_order_of_their_ids() -> None:
    layout = Layout([endpoint("c"), endpoint("a"), endpoint("b")], generation=4)
    assert [member.id for member in layout.endpoints] == ["a", "b", "c"]
    assert layout.index == {"a": 0, "b": 1, "c": 2}
    assert repr(layout) == "<Layout 4: 3 endpoints>"


@pytest.mark.parametrize(
    ("hint", "named"),
    [
        (["10.0.0.1:8001"], "b"),
        (["10.0.0.1"], "ab"),
        (["10.0.0.2", "10.0.0.1:8000"], "ac"),
        (["10.0.0.1:9999"], ""),
        (["10.0.0.9"], ""),
        ([], ""),
        (["[fd00::1]:8001"], "e"),
        (["[fd00::1]"], "de"),
        (["fd00::1"], "de"),
        (["FD00:0:0::1"], "de"),
        (["[fd00:0::0:1]:8000"], "d"),
        (["10.0.0.1:8000", "10.0.0.1:8000", "10.0.0.1"], "ab"),
        ([" 10.0.0.2:8000 "], "c"),
        (["nonsense:port", "[", "10.0.0.1:0", "10.0.0.1:70000", "::::", "", "10.0.0.2"], "c"),
        ([*(f"fd00::0:{n}" for n in range(10, 509)), "FD00:0:0::1"], "de"),
        ([*(f"fd00::0:{n}" for n in range(10, 510)), "FD00:0:0::1", "[fd00::1]:8000", "10.0.0.1"], "abd"),
    ],
)
def test_a_subset_hint_names_addresses_with_or_without_a_port(hint: list[str], named: str) -> None:
    assert ids(PORTS, PORTS.subset(tuple(hint))) == list(named)


def test_a_subset_hint_may_name_the_host_that_an_address_was_resolved_from() -> None:
    layout = Layout([Endpoint(id="a", name="a", address="10.0.0.1", port=80, host="vllm.example.com")])
    assert ids(layout, layout.subset(("vllm.example.com:80",))) == ["a"]


@pytest.mark.parametrize("entry", ["10.0.0.1", "10.0.0.1:{}"])
def test_many_entries_for_an_address_with_many_endpoints_take_no_product_of_both(entry: str) -> None:
    layout = Layout(endpoint(f"e{port}", "10.0.0.1", port) for port in range(8000, 8500))
    layout.subset(("10.0.0.1",))
    hint = tuple(entry.format(port) for port in range(8000, 8500))
    with counted() as work:
        rows = layout.subset(hint)
    assert len(rows) == 500
    assert work.instructions < 500 * 500


def test_subsets_are_remembered_within_a_bound_and_cant_be_changed() -> None:
    layout = Layout([endpoint("a", "10.0.0.1")])
    first = layout.subset(("10.0.0.1",))
    assert layout.subset(("10.0.0.1",)) is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    for number in range(3):
        layout.subset(tuple(f"10.0.{number}.{entry}" for entry in range(REMEMBERED_ENTRIES // 2)))
    again = layout.subset(("10.0.0.1",))
    assert again is not first
    assert again.tolist() == first.tolist()
    for large in (("10.0.0.1",) * (REMEMBERED_ENTRIES + 1), ("10.0.0.1", "x" * 1000)):
        assert layout.subset(large) is not layout.subset(large)
    assert layout.subset(("10.0.0.1",)) is again


MEMBERS = st.lists(
    st.builds(
        lambda name, host, port, uid: Endpoint(id=name, name=name, address=f"10.0.0.{host}", port=port, uid=uid),
        st.sampled_from("abcdef"),
        st.integers(1, 2),
        st.integers(1, 2),
        st.sampled_from("uv"),
    ),
    unique_by=lambda member: member.id,
)


@given(MEMBERS, MEMBERS, st.sets(st.sampled_from("abcdef")))
def test_a_layout_made_of_a_former_one_is_the_same_as_one_made_anew(
    before: list[Endpoint], after: list[Endpoint], kept: set[str]
) -> None:
    """Endpoints that are kept are the very objects; others may be equal to those before, or differ."""
    old = Layout(before)
    after = [member for member in after if member.id not in kept]
    after += [member for member in before if member.id in kept]
    one, anew = Layout(after, former=old), Layout(after)
    assert (one.endpoints, one.index, one.authorities) == (anew.endpoints, anew.index, anew.authorities)
    assert one.hashes.tolist() == anew.hashes.tolist()
    authorities = {member.authority for member in (*before, *after)}
    for authority in authorities:
        first = min((row for row, member in enumerate(one.endpoints) if member.authority == authority), default=None)
        assert one.row_of_authority(authority) == anew.row_of_authority(authority) == first
        assert one.subset((authority,)).tolist() == anew.subset((authority,)).tolist()
    servers = {(member.id, member.uid, member.authority): row for row, member in enumerate(old.endpoints)}
    there = [servers.get((member.id, member.uid, member.authority), -1) for member in one.endpoints]
    for layout in (one, anew):
        assert layout.rows_in(old).tolist() == [old.index.get(member.id, -1) for member in one.endpoints]
        here, rows = layout.moved_from(old)
        assert here.tolist() == [row for row, place in enumerate(there) if place >= 0]
        assert rows.tolist() == [place for place in there if place >= 0]
        assert layout.moved_from(Layout())[0].tolist() == []


def test_one_changed_endpoint_of_many_costs_little_for_each_of_the_others() -> None:
    def work(size: int) -> int:
        view, ids = View(), [f"e{number}" for number in range(size)]
        members = {id: endpoint(id, f"10.0.{number // 250}.{number % 250}") for number, id in enumerate(ids)}
        view.reset(dict(members))
        for id in (*view.layout.index, "e0"):
            view.prefixes.add(id, [1, 2], 10)
            view.in_flight.charge(id, 1)
        models = [["one", "two"]] * size
        view.apply_frame(frame(ids, {WAITING_QUEUE_SIZE: [1.0] * size, ACTIVE_MODELS: models}), now=1.0, extra_age=0.0)
        view.upsert("e0", replace(members["e0"], port=9))
        with counted() as work:
            assert len(view.layout) == size
        return work.instructions

    assert work(400) - work(200) < 200 * 80


def test_a_layout_doesnt_keep_the_former_one() -> None:
    former = Layout([endpoint("a")])
    layout, gone = Layout([endpoint("a")], former=former), weakref.ref(former)
    layout.moved_from(former)
    del former
    gc.collect()
    assert gone() is None
