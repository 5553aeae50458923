"""The last good documents of each origin, merged."""

from services.watcher.documents import Documents
from services.watcher.resources import PoolId
from services.watcher.sources import Rejected, Removed, Reset
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
    assert state.merged is None
    assert state.problems() == {"a": list(BAD)}


def test_the_endpoints_of_all_origins_are_merged_by_id() -> None:
    state = State()
    assert state.apply([endpoints("b", "z", "c"), endpoints("a", "m")], now=1.0)
    assert names(state) == ["c", "m", "z"]


def test_what_an_origin_no_longer_states_is_gone() -> None:
    state = State()
    state.apply([endpoints("a", "x", "y")], now=1.0)
    assert state.apply([endpoints("a", "y")], now=2.0)
    assert names(state) == ["y"]


def test_an_empty_list_removes_all_endpoints() -> None:
    state = State()
    state.apply([endpoints("a", "x")], now=1.0)
    assert state.apply([endpoints("a")], now=2.0)
    assert names(state) == []


def test_a_rejected_origin_keeps_its_last_good_documents() -> None:
    state = State()
    state.apply([endpoints("a", "x"), endpoints("b", "y")], now=1.0)
    assert state.apply([Rejected("a", BAD)], now=2.0) is False
    assert state.apply([endpoints("b", "z")], now=3.0) is True
    assert names(state) == ["x", "z"]
    assert state.problems() == {"a": list(BAD)}


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


def test_a_removed_origin_takes_its_documents_along() -> None:
    state = State()
    state.apply([endpoints("a", "x"), endpoints("b", "y")], now=1.0)
    assert state.apply([Removed("b")], now=2.0)
    assert names(state) == ["x"]


def test_an_endpoint_of_two_origins_keeps_the_set_that_fitted() -> None:
    state = State()
    state.apply([endpoints("a", "x"), endpoints("b", "y")], now=1.0)
    assert state.apply([endpoints("b", "x", "y")], now=2.0) is False
    assert names(state) == ["x", "y"]
    assert [str(one) for one in state.problems()["b"]] == ["document: endpoint 'default/x' is in a too"]


def test_an_endpoint_may_move_from_one_origin_to_another_at_once() -> None:
    state = State()
    state.apply([endpoints("a", "x"), endpoints("b", "y")], now=1.0)
    assert state.apply([endpoints("a"), endpoints("b", "x", "y")], now=2.0) is False
    assert (names(state), state.problems()) == (["x", "y"], {})


def test_a_set_without_any_list_of_endpoints_keeps_the_last_one() -> None:
    """The only file with endpoints is renamed away, or its document is lost: that isn't the same as an empty list."""
    state = State()
    state.apply([endpoints("a", "x"), Reset("b", Documents())], now=1.0)
    assert state.apply([Removed("a")], now=2.0) is False
    assert names(state) == ["x"]
    assert [str(one) for one in state.problems()["b"]] == [
        "endpoints: in no document; `endpoints: []` says that there are none"
    ]


def test_when_every_origin_is_gone_the_last_set_holds() -> None:
    state = State()
    state.apply([endpoints("a", "x")], now=1.0)
    assert state.apply([Removed("a")], now=2.0) is False
    assert names(state) == ["x"]


def test_a_rejected_origin_is_the_one_to_blame_for_missing_endpoints() -> None:
    state = State()
    state.apply([Rejected("a", BAD), Reset("b", Documents())], now=1.0)
    assert state.problems() == {"a": list(BAD)}
    assert state.merged is None


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


def test_problems_of_all_origins_come_in_one_list() -> None:
    collected = collect({"a.yaml": list(BAD), "b.yaml": [Problem("", "is empty")]})
    assert [str(one) for one in collected.errors] == [
        "a.yaml: endpoints[0].port: 0 isn't a port (line 3)",
        "b.yaml: is empty",
    ]


def test_it_says_what_it_has() -> None:
    state = State()
    assert repr(state) == "<State none yet of 0 origins, 0 with problems>"
    state.apply([endpoints("a", "x"), Rejected("b", BAD)], now=1.0)
    assert repr(state) == "<State 1 endpoints of 1 origins, 1 with problems>"


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


def test_objects_that_stand_for_themselves_are_origins_of_their_own() -> None:
    """A source that watches objects one by one reports each as an origin."""
    state = State()
    state.apply([endpoints("e"), nodes("v1 Node n1", "n1"), nodes("v1 Node n2", "n2")], now=1.0)
    state.apply([Removed("v1 Node n1")], now=2.0)
    assert seen(state) == ["n2"]


def test_an_object_that_two_origins_state_is_a_conflict() -> None:
    state = State()
    state.apply([endpoints("e"), nodes("a", "n1")], now=1.0)
    assert state.apply([nodes("b", "n1", "n2")], now=2.0) is False
    assert state.problems() == {"b": [Problem("", "v1 Node n1 is in a too")]}
    assert seen(state) == ["n1"]


def test_a_rejected_origin_keeps_its_objects() -> None:
    state = State()
    state.apply([endpoints("e"), nodes("a", "n1")], now=1.0)
    state.apply([Rejected("a", BAD)], now=2.0)
    assert seen(state) == ["n1"]
