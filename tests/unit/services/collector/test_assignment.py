"""Endpoints are divided among the live collectors, and as few of them as can be move."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.collector.assignment import assigned

ENDPOINTS = {f"default/pod-{number}": number for number in range(1000)}


def owner(endpoint: str, collectors: list[str]) -> str:
    """The one collector that takes the endpoint for its own."""
    (found,) = (name for name in collectors if assigned({endpoint: 0}, name, collectors))
    return found


def shares(collectors: list[str]) -> dict[str, set[str]]:
    return {collector: set(assigned(ENDPOINTS, collector, collectors)) for collector in collectors}


def test_every_endpoint_has_exactly_one_collector() -> None:
    divided = shares(["a", "b", "c"])
    assert sum(map(len, divided.values())) == len(ENDPOINTS)
    assert set().union(*divided.values()) == set(ENDPOINTS)


def test_the_shares_are_about_equal() -> None:
    assert all(250 < len(share) < 420 for share in shares(["a", "b", "c"]).values())


def test_one_collector_alone_has_all() -> None:
    assert assigned(ENDPOINTS, "a", ["a"]) == ENDPOINTS


def test_a_collector_counts_itself_in_even_before_it_was_heard() -> None:
    assert assigned(ENDPOINTS, "a", []) == ENDPOINTS
    assert assigned(ENDPOINTS, "a", ["b"]) == assigned(ENDPOINTS, "a", ["a", "b"])


names = st.lists(st.text(min_size=1, max_size=8), unique=True, min_size=1, max_size=6)
some_endpoints = st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=30)


@settings(max_examples=30)
@given(names, st.text(min_size=1, max_size=8), some_endpoints)
def test_a_collector_that_joins_only_takes(collectors: list[str], joining: str, endpoints: list[str]) -> None:
    for endpoint in endpoints:
        assert owner(endpoint, [*collectors, joining]) in {owner(endpoint, collectors), joining}


@settings(max_examples=30)
@given(names, some_endpoints, st.data())
def test_a_collector_that_leaves_only_gives(collectors: list[str], endpoints: list[str], data: st.DataObject) -> None:
    leaving = data.draw(st.sampled_from(collectors))
    rest = [collector for collector in collectors if collector != leaving]
    for endpoint in endpoints:
        before = owner(endpoint, collectors)
        if before != leaving:
            assert owner(endpoint, rest) == before


@settings(max_examples=30)
@given(names, some_endpoints, st.randoms())
def test_all_collectors_agree_whatever_the_order(collectors: list[str], endpoints: list[str], random: Random) -> None:
    shuffled = list(collectors)
    random.shuffle(shuffled)
    assert [owner(endpoint, collectors) for endpoint in endpoints] == [
        owner(each_endpoint, shuffled) for each_endpoint in endpoints
    ]
