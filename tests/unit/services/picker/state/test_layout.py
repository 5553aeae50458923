import numpy as np
import pytest

from services.picker.state.layout import REMEMBERED_ENTRIES, Layout
from shared.model import Endpoint
from tests.unit.services.picker.world import endpoint

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
    ],
)
def test_a_subset_hint_names_addresses_with_or_without_a_port(hint: list[str], named: str) -> None:
    assert ids(PORTS, PORTS.subset(tuple(hint))) == list(named)


def test_a_subset_hint_may_name_the_host_that_an_address_was_resolved_from() -> None:
    layout = Layout([Endpoint(id="a", name="a", address="10.0.0.1", port=80, host="vllm.example.com")])
    assert ids(layout, layout.subset(("vllm.example.com:80",))) == ["a"]


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
