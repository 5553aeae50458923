"""Host names to addresses."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.watcher.lookup import SystemLookup
from services.watcher.resolve import Names, order
from shared.model import Endpoint
from tests.unit.services.watcher.hosts import Followed


def endpoint(name: str, host: str = "", address: str = "") -> Endpoint:
    return Endpoint(id=f"default/{name}", name=name, host=host, address=address, port=80)


def names_for(*hosts: str, interval: float = 30.0) -> tuple[Names, list[Endpoint]]:
    names = Names(interval)
    endpoints = [endpoint(f"e{index}", host) for index, host in enumerate(hosts)]
    Followed(names).follow(endpoints)
    return names, endpoints


def due(names: Names, now: float) -> list[str]:
    """The names that are looked up now, in their order."""
    return [host for host, _ in iter(lambda: names.take(now), None)]


def test_an_endpoint_with_an_address_needs_no_name() -> None:
    names = Names(30.0)
    fixed = endpoint("a", address="10.0.0.1")
    Followed(names).follow([fixed])
    assert (due(names, 0.0), names.next_due(), names.resolve(fixed)) == ([], None, fixed)


def test_a_name_that_never_resolved_has_no_endpoint_and_the_others_do() -> None:
    names, endpoints = names_for("a.example", "b.example")
    names.failed("a.example", "not found", 1.0)
    names.answered("b.example", ["10.0.0.2"], 1.0)
    assert [names.resolve(each_endpoint) is not None for each_endpoint in endpoints] == [False, True]
    assert names.unresolved == ["a.example"]


def test_a_name_that_stops_resolving_to_a_usable_address_keeps_the_one_it_has_and_says_so() -> None:
    names, endpoints = names_for("a.example")
    assert names.answered("a.example", ["10.0.0.1"], 1.0) is True
    assert names.failed("a.example", "not found", 31.0) is False
    assert (names.names["a.example"].error, names.names["a.example"].failures) == ("not found", 1)
    assert names.answered("a.example", ["fe80::1%eth0", "0.0.0.0"], 61.0) is False
    assert names.names["a.example"].error == "no address that a server could have"
    assert [names.resolve(each_endpoint) for each_endpoint in endpoints] == [endpoint("e0", "a.example", "10.0.0.1")]


def test_a_name_is_looked_up_again_after_the_interval() -> None:
    names, _ = names_for("a.example", interval=30.0)
    assert due(names, 0.0) == ["a.example"]
    names.answered("a.example", ["10.0.0.1"], 1.0)
    assert (due(names, 30.9), names.next_due(), due(names, 31.0)) == ([], 31.0, ["a.example"])


def test_a_name_that_never_resolved_is_tried_again_sooner_and_ever_later() -> None:
    names, _ = names_for("a.example", interval=3.0)
    now, waits = 0.0, []
    for _ in range(6):
        assert due(names, now) == ["a.example"]
        names.failed("a.example", "not found", now)
        again = names.next_due()
        assert again is not None
        waits.append(again - now)
        now = again
    assert waits == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0]


def test_another_address_is_a_change_and_the_same_is_none() -> None:
    names, _ = names_for("a.example")
    assert names.answered("a.example", ["10.0.0.1"], 1.0) is True
    assert names.answered("a.example", ["10.0.0.1", "10.0.0.9"], 31.0) is False
    assert names.answered("a.example", ["10.0.0.9"], 61.0) is True


def test_groups_of_names_take_turns_and_new_names_that_were_stated_last_come_first() -> None:
    names, origins = Names(30.0), {"a": "x", "b": "x", "c": "x", "d": "y", "e": "x"}

    followed = Followed(names)

    def follow(*hosts: str) -> list[str]:
        return followed.follow([endpoint(host, host) for host in hosts], lambda endpoint: origins[endpoint.name])

    follow("a", "b", "c", "d")
    assert follow("a", "b", "d", "e") == ["c"]
    assert due(names, 0.0) == ["d", "e", "a", "b"]
    for host in ("a", "b", "d", "e"):
        if host in ("a", "d"):
            names.hangs(host, "no answer in time")
        names.answered(host, ["10.0.0.1"], 1.0)
    allowed = [names.take(31.0, lambda group: group.kind == "known") for _ in range(3)]
    assert allowed == [("b", ("x", "known")), ("e", ("x", "known")), None]
    assert names.waiting
    assert [names.take(31.0) for _ in range(3)] == [("a", ("x", "slow")), ("d", ("y", "slow")), None]
    assert not names.waiting


def test_a_name_of_two_files_counts_for_the_one_with_fewer_names() -> None:
    names = Names(30.0)
    stated = [("a", "big"), ("b", "big"), ("a", "small"), ("c", "big")]
    endpoints = [endpoint(f"{origin}-{host}", host) for host, origin in stated]
    Followed(names).follow(endpoints, lambda endpoint: endpoint.name.partition("-")[0])
    groups = dict(iter(lambda: names.take(0.0), None))
    assert {host: group.origin for host, group in groups.items()} == {"a": "small", "b": "big", "c": "big"}


@settings(max_examples=24)
@given(st.permutations(["10.0.0.10", "::ffff:10.0.0.1", "10.0.0.9", "fd00::1", "192.168.0.1"]))
def test_of_several_addresses_the_first_ipv4_counts_in_whatever_order_they_come(answer: list[str]) -> None:
    assert order(answer) == ("10.0.0.9", "10.0.0.10", "192.168.0.1", "fd00::1")


def test_an_earlier_watchers_address_holds_until_the_name_resolves() -> None:
    names, endpoints = names_for("a.example", "b.example")
    names.answered("b.example", ["10.0.0.2"], 1.0)
    names.adopt([endpoint("e0", "a.example", "10.0.0.7"), endpoint("e1", "b.example", "10.0.0.8")])
    assert [each and each.address for each in map(names.resolve, endpoints)] == ["10.0.0.7", "10.0.0.2"]
    names.failed("a.example", "not found", 2.0)
    assert names.adopt([endpoint("e0", "a.example", "10.0.0.7")]) == []
    assert names.adopt([endpoint("e0", "a.example", "10.0.0.9"), endpoint("e1", "b.example", "10.0.0.9")]) == [
        "a.example"
    ]
    assert [each and each.address for each in map(names.resolve, endpoints)] == ["10.0.0.9", "10.0.0.2"]
    assert names.answered("a.example", ["10.0.0.1"], 2.0) is True
    assert names.adopt([endpoint("e0", "a.example", "10.0.0.9")]) == []


def test_a_name_that_no_endpoint_has_is_forgotten() -> None:
    names, _ = names_for("a.example")
    names.answered("a.example", ["10.0.0.1"], 1.0)
    names.set("default/e0")
    assert list(names.forget()) == ["a.example"]
    assert names.answered("a.example", ["10.0.0.2"], 2.0) is False
    assert not names.names


async def test_the_system_resolves_localhost() -> None:
    assert "127.0.0.1" in await SystemLookup()("localhost")
