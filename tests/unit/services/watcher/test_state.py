"""The last good documents of each origin, merged."""

import pytest

from services.watcher.documents import Documents
from services.watcher.resources import PoolId
from services.watcher.sources import Event, Rejected, Removed, Reset
from services.watcher.state import State, collect
from shared.config.problems import Problem
from shared.datalayer.objects import NODE, KubernetesObject
from shared.model import Configuration, Endpoint, Objective, Pool

BAD = (Problem("endpoints[0].port", "0 isn't a port", 3),)


def endpoint(name: str) -> Endpoint:
    return Endpoint(id=f"default/{name}", name=name, address="10.0.0.1", port=80)


def endpoints(origin: str, *names: str) -> Reset:
    return Reset(origin, Documents(endpoints=tuple(endpoint(name) for name in names)))


def names(state: State) -> list[str]:
    assert state.merged is not None
    return [one.name for one in state.merged.endpoints]


def test_nothing_holds_before_the_first_good_set() -> None:
    state = State()
    assert state.apply([Rejected("a", BAD)], now=1.0) is False
    assert state.apply([Reset("b", Documents())], now=2.0) is False
    assert state.merged is None
    assert state.problems() == {"a": list(BAD)}, "and not that there is no list of endpoints"


NO_LIST = "endpoints: in no document; `endpoints: []` says that there are none"


CASES: dict[str, tuple[list[Event], bool, str, dict[str, str] | None]] = {
    "the same": ([endpoints("b", "y")], False, "x y", {}),
    "all origins are merged by id": ([endpoints("a", "m"), endpoints("b", "c", "z")], True, "c m z", {}),
    "an empty list": ([endpoints("a")], True, "y", {}),
    "a rejected origin keeps its last good documents": ([Rejected("a", BAD)], False, "x y", {"a": str(BAD[0])}),
    "others go on": ([Rejected("a", BAD), endpoints("b", "z")], True, "x z", {"a": str(BAD[0])}),
    "a removed origin takes its documents along": ([Removed("b")], True, "x", {}),
    "an endpoint of two origins keeps the set that fitted": (
        [endpoints("b", "x", "y")],
        False,
        "x y",
        {"b": "document: endpoint 'default/x' is in a too"},
    ),
    "an endpoint may move at once": ([endpoints("a"), endpoints("b", "x", "y")], False, "x y", {}),
    "without any list the last set holds": ([Removed("a"), Reset("b", Documents())], False, "x y", {"b": NO_LIST}),
    "when every origin is gone the last set holds": ([Removed("a"), Removed("b")], False, "x y", None),
}


@pytest.mark.parametrize(("events", "changes", "expected", "problems"), CASES.values(), ids=CASES)
def test_the_endpoints_of_all_origins_are_merged_and_what_does_not_fit_changes_nothing(
    events: list[Event], changes: bool, expected: str, problems: dict[str, str] | None
) -> None:
    state = State()
    state.apply([endpoints("a", "x"), endpoints("b", "y")], now=1.0)
    assert state.apply(events, now=2.0) is changes
    assert " ".join(names(state)) == expected
    if problems is not None:
        assert {origin: " ".join(map(str, found)) for origin, found in state.problems().items()} == problems


def test_a_good_reading_clears_the_problems() -> None:
    state = State()
    state.apply([endpoints("a", "x")], now=1.0)
    state.apply([Rejected("a", BAD)], now=2.0)
    assert state.since == 2.0
    state.apply([Rejected("a", BAD)], now=3.0)
    assert state.since == 2.0
    state.apply([endpoints("a", "x")], now=4.0)
    assert state.problems() == {}
    assert state.since is None


def test_a_resource_of_two_origins_keeps_the_set_that_fitted() -> None:
    state = State()
    state.apply([Reset("a", Documents(endpoints=(), resources=(Objective(name="o", priority=1),)))], now=1.0)
    state.apply([Reset("b", Documents(resources=(Objective(name="o", priority=2),)))], now=2.0)
    assert state.merged is not None
    assert state.merged.resources == (Objective(name="o", priority=1),)
    assert [str(one) for one in state.problems()["b"]] == ["document: InferenceObjective 'o' is in a too"]


def configured(origin: str, text: str) -> Reset:
    return Reset(origin, Documents(endpoints=(), configuration=Configuration(text=text, origin=origin)))


def test_two_configurations_keep_the_set_that_fitted() -> None:
    state = State()
    state.apply([configured("a", "1")], now=1.0)
    state.apply([configured("b", "2")], now=2.0)
    assert state.merged is not None
    assert state.merged.configuration == Configuration(text="1", origin="a")
    assert [str(one) for one in state.problems()["b"]] == ["document: EndpointPickerConfig is in a too; a pool has one"]


def test_the_preferred_origins_configuration_goes_before_the_others() -> None:
    state = State(preferred="z")
    state.apply([configured("a", "1"), configured("z", "2")], now=1.0)
    assert state.merged is not None
    assert state.merged.configuration == Configuration(text="2", origin="z")
    assert state.problems() == {}
    assert state.ignored() == {"a": ("EndpointPickerConfig: z goes before it",)}


def test_the_facts_have_a_pool_whether_or_not_a_document_describes_it() -> None:
    state = State()
    state.apply([endpoints("a", "x")], now=1.0)
    pool = PoolId("models", "llama")
    assert state.merged is not None
    assert state.merged.facts([endpoint("x")], pool) == (endpoint("x"), Pool(name="llama", namespace="models"))
    described = Pool(name="llama", namespace="models", app_protocol="http")
    state.apply([Reset("b", Documents(resources=(described,)))], now=2.0)
    assert state.merged.facts([], pool) == (described,)


def test_a_fact_of_which_nothing_good_is_known_is_unknown_until_its_origin_is_good_or_gone() -> None:
    state = State()
    state.apply([Rejected("a", BAD, ("objective", "x")), Rejected("b", BAD)], now=1.0)
    assert state.unknown() == {("objective", "x")}
    state.apply([endpoints("a", "x")], now=2.0)
    assert state.unknown() == set()
    state.apply([Rejected("a", BAD, ("objective", "x")), Rejected("c", BAD, ("objective", "z"))], now=3.0)
    assert state.unknown() == {("objective", "z")}, "of the other, what was good holds"
    state.apply([Removed("c")], now=4.0)
    assert state.unknown() == set()


def test_problems_of_all_origins_come_in_one_list() -> None:
    collected = collect({"a.yaml": list(BAD), "b.yaml": [Problem("", "is empty")]})
    assert [str(one) for one in collected.errors] == [
        "a.yaml: endpoints[0].port: 0 isn't a port (line 3)",
        "b.yaml: is empty",
    ]


def node(name: str) -> KubernetesObject:
    return KubernetesObject(NODE, name, {"metadata": {"name": name}})


def nodes(origin: str, *found: str) -> Reset:
    return Reset(origin, Documents(objects=tuple(node(name) for name in found)))


def seen(state: State) -> list[str]:
    assert state.merged is not None
    return [one.name for one in state.merged.objects]


def test_the_objects_of_all_origins_are_merged_and_what_isnt_stated_any_more_is_gone() -> None:
    state = State()
    assert state.apply([endpoints("e"), nodes("b", "n2"), nodes("a", "n3", "n1")], now=1.0)
    assert seen(state) == ["n1", "n2", "n3"]
    assert state.apply([nodes("a", "n1")], now=2.0)
    assert seen(state) == ["n1", "n2"]
    assert state.apply([Removed("b")], now=3.0)
    assert seen(state) == ["n1"]
    assert state.apply([nodes("a", "n1")], now=4.0) is False


def test_an_object_that_two_origins_state_is_a_conflict() -> None:
    state = State()
    state.apply([endpoints("e"), nodes("a", "n1")], now=1.0)
    assert state.apply([nodes("b", "n1", "n2")], now=2.0) is False
    assert state.problems() == {"b": [Problem("", "v1 Node n1 is in a too")]}
    assert seen(state) == ["n1"]
