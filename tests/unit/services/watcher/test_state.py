"""The last good documents of each origin, merged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.watcher.documents import Documents
from services.watcher.resources import PoolId
from services.watcher.sources import Delete, Event, Rejected, Removed, Reset, Upsert
from services.watcher.state import Changes, State, collect
from shared.config.problems import Problem
from shared.datalayer.objects import NODE, KubernetesObject
from shared.model import Configuration, Endpoint, Objective, Pool

BAD = (Problem("endpoints[0].port", "0 isn't a port", 3),)


def endpoint(name: str) -> Endpoint:
    return Endpoint(id=f"default/{name}", name=name, address="10.0.0.1", port=80)


def endpoints(origin: str, *names: str) -> Reset:
    return Reset(origin, Documents(endpoints=tuple(endpoint(name) for name in names)))


def applied(state: State, events: list[Event], now: float) -> bool:
    """What all steps of it come to."""
    steps = state.apply(events, now)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)


def names(state: State) -> list[str]:
    assert state.merged is not None
    return [each_endpoint.name for _, each_endpoint in sorted(state.merged.endpoints.items())]


def test_nothing_holds_before_the_first_good_set() -> None:
    state = State()
    assert applied(state, [Rejected("a", BAD)], now=1.0) is False
    assert applied(state, [Reset("b", Documents())], now=2.0) is False
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
    "one endpoint more": ([Upsert("b", endpoint("z"))], True, "x y z", {}),
    "the same endpoint": ([Upsert("b", endpoint("y"))], False, "x y", {}),
    "one endpoint less": ([Delete("a", "default/x")], True, "y", {}),
    "an endpoint that isn't there": ([Delete("a", "default/y")], False, "x y", {}),
    "one endpoint of two origins": (
        [Upsert("b", endpoint("x")), Upsert("b", endpoint("z"))],
        False,
        "x y",
        {"b": "document: endpoint 'default/x' is in a too"},
    ),
    "an endpoint that moves in two steps": (
        [Upsert("b", endpoint("x")), Upsert("b", endpoint("z")), Delete("a", "default/x")],
        True,
        "x y z",
        {},
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
    applied(state, [endpoints("a", "x"), endpoints("b", "y")], now=1.0)
    assert applied(state, events, now=2.0) is changes
    assert " ".join(names(state)) == expected
    if problems is not None:
        assert {origin: " ".join(map(str, found)) for origin, found in state.problems().items()} == problems


def test_the_changes_have_what_was_before() -> None:
    state = State()
    applied(state, [endpoints("a", "x", "y")], now=1.0)
    first = Changes({"default/x": None, "default/y": None}, objects=True, configuration=True)
    assert state.take_changes() == first
    moved = Endpoint(id="default/x", name="x", address="10.0.0.2", port=80)
    applied(state, [Upsert("a", moved), Delete("a", "default/y"), Upsert("a", endpoint("z"))], now=2.0)
    applied(state, [Upsert("a", endpoint("x"))], now=2.0)
    assert state.take_changes() == Changes({"default/x": endpoint("x"), "default/y": endpoint("y"), "default/z": None})
    objectives = [Objective(name="o", priority=priority) for priority in (1, 2)]
    for priority, before in enumerate([None, objectives[0]]):
        applied(state, [Reset("b", Documents(resources=(objectives[priority],)))], now=3.0)
        assert state.take_changes() == Changes(resources={(Objective, "o"): before})


NAMES, ORIGINS = st.sampled_from("xyz"), st.sampled_from("ab")
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(lambda origin, name: Upsert(origin, endpoint(name)), ORIGINS, NAMES),
    st.builds(lambda origin, name: Delete(origin, f"default/{name}"), ORIGINS, NAMES),
    st.builds(lambda origin, names: endpoints(origin, *names), ORIGINS, st.sets(NAMES)),
)


@given(st.lists(EVENTS, max_size=12))
def test_single_changes_come_to_the_same_as_complete_statements(events: list[Event]) -> None:
    state, stated = State(), {origin: set[str]() for origin in "ab"}
    applied(state, [endpoints("a"), endpoints("b")], now=0.0)
    for event in events:
        applied(state, [event], now=1.0)
        match event:
            case Reset(origin, documents):
                stated[origin] = {each_endpoint.name for each_endpoint in documents.endpoints or ()}
            case Upsert(origin, one):
                stated[origin].add(one.name)
            case Delete(origin, id):
                stated[origin].discard(id.removeprefix("default/"))
        whole = State()
        applied(whole, [endpoints(origin, *found) for origin, found in stated.items()], now=1.0)
        assert state.problems() == whole.problems()
        if not whole.problems():
            assert names(state) == names(whole)


def test_a_good_reading_clears_the_problems() -> None:
    state = State()
    applied(state, [endpoints("a", "x")], now=1.0)
    applied(state, [Rejected("a", BAD)], now=2.0)
    assert state.since == 2.0
    applied(state, [Rejected("a", BAD)], now=3.0)
    assert state.since == 2.0
    applied(state, [endpoints("a", "x")], now=4.0)
    assert state.problems() == {}
    assert state.since is None


def test_a_resource_of_two_origins_keeps_the_set_that_fitted() -> None:
    state = State()
    applied(state, [Reset("a", Documents(endpoints=(), resources=(Objective(name="o", priority=1),)))], now=1.0)
    applied(state, [Reset("b", Documents(resources=(Objective(name="o", priority=2),)))], now=2.0)
    assert state.merged is not None
    assert [*state.merged.resources.values()] == [Objective(name="o", priority=1)]
    assert [str(problem) for problem in state.problems()["b"]] == ["document: InferenceObjective 'o' is in a too"]


def configured(origin: str, text: str) -> Reset:
    return Reset(origin, Documents(endpoints=(), configuration=Configuration(text=text, origin=origin)))


def test_two_configurations_keep_the_set_that_fitted() -> None:
    state = State()
    applied(state, [configured("a", "1")], now=1.0)
    applied(state, [configured("b", "2")], now=2.0)
    assert state.merged is not None
    assert state.merged.configuration == Configuration(text="1", origin="a")
    assert [str(problem) for problem in state.problems()["b"]] == [
        "document: EndpointPickerConfig is in a too; a pool has one"
    ]


def test_the_preferred_origins_configuration_goes_before_the_others() -> None:
    state = State(preferred="z")
    applied(state, [configured("a", "1"), configured("z", "2")], now=1.0)
    assert state.merged is not None
    assert state.merged.configuration == Configuration(text="2", origin="z")
    assert state.problems() == {}
    assert state.ignored() == {"a": ("EndpointPickerConfig: z takes precedence",)}


def test_the_facts_have_a_pool_whether_or_not_a_document_describes_it() -> None:
    state = State()
    applied(state, [endpoints("a", "x")], now=1.0)
    pool = PoolId("models", "llama")
    assert state.merged is not None
    assert state.merged.other_facts(pool) == [Pool(name="llama", namespace="models")]
    described = Pool(name="llama", namespace="models", app_protocol="http")
    applied(state, [Reset("b", Documents(resources=(described,)))], now=2.0)
    assert state.merged.other_facts(pool) == [described]


def test_a_fact_of_which_nothing_good_is_known_is_unknown_until_its_origin_is_good_or_gone() -> None:
    state = State()
    applied(state, [Rejected("a", BAD, ("objective", "x")), Rejected("b", BAD)], now=1.0)
    assert state.unknown() == {("objective", "x")}
    applied(state, [endpoints("a", "x")], now=2.0)
    assert state.unknown() == set()
    applied(state, [Rejected("a", BAD, ("objective", "x")), Rejected("c", BAD, ("objective", "z"))], now=3.0)
    assert state.unknown() == {("objective", "z")}, "of the other, what was good holds"
    applied(state, [Removed("c")], now=4.0)
    assert state.unknown() == set()


def test_many_origins_that_are_rejected_are_taken_in_steps() -> None:
    assert sum(1 for _ in State().apply([Rejected(str(number), BAD) for number in range(500)], 0.0)) >= 500


def test_of_endpoints_that_two_files_give_the_first_are_named_and_the_others_counted() -> None:
    state = State()
    applied(state, [endpoints(origin, *map(str, range(5000))) for origin in ("a", "b")], 0.0)
    assert len(state.problems()["b"]) <= 200
    assert "4900 more" in str(state.problems()["b"][-1])


def test_problems_of_all_origins_come_in_one_list() -> None:
    collected = collect({"a.yaml": list(BAD), "b.yaml": [Problem("", "is empty")]})
    assert [str(error) for error in collected.errors] == [
        "a.yaml: endpoints[0].port: 0 isn't a port (line 3)",
        "b.yaml: is empty",
    ]


def node(name: str) -> KubernetesObject:
    return KubernetesObject(NODE, name, {"metadata": {"name": name}})


def nodes(origin: str, *found: str) -> Reset:
    return Reset(origin, Documents(objects=tuple(node(name) for name in found)))


def seen(state: State) -> list[str]:
    assert state.merged is not None
    return sorted(each_object.name for each_object in state.merged.objects.values())


def test_the_objects_of_all_origins_are_merged_and_what_isnt_stated_any_more_is_gone() -> None:
    state = State()
    assert applied(state, [endpoints("e"), nodes("b", "n2"), nodes("a", "n3", "n1")], now=1.0)
    assert seen(state) == ["n1", "n2", "n3"]
    assert applied(state, [nodes("a", "n1")], now=2.0)
    assert seen(state) == ["n1", "n2"]
    assert applied(state, [Removed("b")], now=3.0)
    assert seen(state) == ["n1"]
    assert applied(state, [nodes("a", "n1")], now=4.0) is False


def test_an_object_that_two_origins_state_is_a_conflict() -> None:
    state = State()
    applied(state, [endpoints("e"), nodes("a", "n1")], now=1.0)
    assert applied(state, [nodes("b", "n1", "n2")], now=2.0) is False
    assert state.problems() == {"b": [Problem("", "v1 Node n1 is in a too")]}
    assert seen(state) == ["n1"]


def test_many_items_that_two_origins_state_are_found_in_steps_and_other_changes_do_not_find_them_again() -> None:
    state, many = State(), [f"e{number:04}" for number in range(1500)]
    applied(state, [endpoints("a", *many)], now=1.0)
    steps = sum(1 for _ in state.apply([endpoints("b", *many)], 2.0))
    assert steps >= 2 * len(many)
    shown = state.problems()["b"]
    assert [str(problem) for problem in (*shown[:1], *shown[-2:])] == [
        "document: endpoint 'default/e0000' is in a too",
        "document: endpoint 'default/e0099' is in a too",
        "… and 1400 more that are given twice",
    ]
    assert sum(1 for _ in state.apply([endpoints("c", "other")], 3.0)) < 10
    assert state.problems()["b"] == shown
    assert applied(state, [Removed("b")], now=4.0)
    assert state.problems() == {}
