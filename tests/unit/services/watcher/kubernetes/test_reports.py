"""What is said of each resource."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from services.watcher.kubernetes.reading import read_item
from services.watcher.kubernetes.reports import Condition, Finding, PoolView, Report, ResourceResult, iterate_reports
from services.watcher.kubernetes.resource import JsonObject, ObjectId
from services.watcher.resources import PoolId
from shared.config.problems import Problem
from tests.unit.services.watcher.kubernetes.readings import (
    EXPERIMENTAL,
    LLAMA,
    STABLE,
    config_map,
    item_of,
    model,
    objective,
    pods,
    pool,
    reading,
    view,
)
from tests.work import counted

LATER = "2027-01-01T00:00:00Z"


def make_reports(views: Sequence[PoolView]) -> list[Report]:
    return [report for report in iterate_reports(views) if report is not None]


def said(*views: PoolView) -> dict[str, Report]:
    return {report.item["metadata"]["name"]: report for report in make_reports(views)}


def reasons(verdict: Report) -> list[str]:
    return [finding.reason for finding in verdict.findings]


GONE = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
IN_FORCE = Condition(True, "Accepted", "in force for InferencePool default/llama")
NOT_THERE = "spec.poolRef.name: there is no InferencePool 'nowhere' in namespace default"


VERDICTS: dict[str, tuple[PoolView, Condition | str | None, str | None]] = {
    "in force": (view(objective("it")), IN_FORCE, None),
    "its pool isn't there": (view(objective("it"), pools=set()), "PoolNotFound", "PoolNotFound"),
    "for another pool that is there": (view(objective("it", pool="other"), pools={"llama", "other"}), None, None),
    "for one that isn't": (view(objective("it", pool="nowhere")), None, f"PoolNotFound {NOT_THERE}"),
    "being deleted, for one that isn't": (view(objective("it", pool="nowhere", **GONE)), None, None),
    "being deleted, and bad": (view(objective("it", priority="high", **GONE)), None, None),
    "pickers can't get it": (
        view(objective("it"), unpublishable={"default_llama.objective.it": "it is too large"}),
        Condition(False, "Invalid", "it is too large"),
        "ResourceRefused it is too large",
    ),
    "pickers can't get another one": (
        view(objective("it"), unpublishable={"default_llama.rewrite.it": "it is too large"}),
        IN_FORCE,
        None,
    ),
    "a refused pool": (
        view(pool("it", port=0), name="it"),
        None,
        "ResourceRefused spec.targetPorts[0].number: 0 is below 1",
    ),
    "a selector without pods": (
        view(pool("it", x="1"), name="it", selected={}),
        None,
        "NoEndpoints spec.selector: no pod of namespace",
    ),
    "a selector without slices": (
        view(pool("it", x="1"), name="it", selected={}, slices_of="s"),
        None,
        "NoEndpoints there is no EndpointSlice of Service",
    ),
    "it isn't known what is selected": (view(pool("it", x="1"), name="it", selected=None), None, None),
    "slices are no pods that could be claimed": (
        view(pool("it", created=LATER, x="1"), pool("b", x="1"), name="it", selected=pods("a", x="1"), slices_of="s"),
        None,
        None,
    ),
}


@pytest.mark.parametrize(("seen", "condition", "finding"), VERDICTS.values(), ids=VERDICTS)
def test_a_resource_has_a_condition_and_what_is_wrong_with_it_is_found(
    seen: PoolView, condition: Condition | str | None, finding: str | None
) -> None:
    each = said(seen).get("it")
    if isinstance(condition, str):
        assert each is not None
        assert each.condition is not None
        assert (each.condition.accepted, each.condition.reason) == (False, condition)
    else:
        assert (each and each.condition) == condition
    if finding is None:
        assert each is None or each.findings == ()
    else:
        assert each is not None
        [found] = each.findings
        assert f"{found.reason} {found.text}".startswith(finding)
        assert found.transient is (found.reason != "ResourceRefused")


def test_what_is_odd_in_what_is_accepted_is_in_the_message() -> None:
    rules = [{"matches": [{}], "targets": [{"modelRewrite": "base"}]}]
    rewrite = item_of("InferenceModelRewrite", "rollout", {"poolRef": {"name": "llama"}, "rules": rules})
    condition = said(view(rewrite))["rollout"].condition
    assert condition is not None
    assert condition.accepted
    assert condition.message.endswith("spec.rules[0].matches: no match names a model, so the rule is never used")


def test_every_problem_of_a_refused_one_is_named() -> None:
    spec = {"poolRef": {"name": "llama"}, "priorty": 1, "priority": "high"}
    each = said(view(item_of("InferenceObjective", "bad", spec)))["bad"]
    assert each.condition is not None
    assert (each.condition.accepted, each.condition.reason) == (False, "Invalid")
    assert "spec.priorty: unknown field" in each.condition.message
    assert "spec.priority: 'high'" in each.condition.message
    assert each.findings == (Finding("ResourceRefused", each.condition.message),)


def test_while_it_is_not_known_which_pools_there_are_nothing_is_said_of_what_refers_to_them() -> None:
    assert said(view(objective(), objective("lost", "nowhere"), pool(x="1"), pools=None)).keys() == {"llama"}


def test_with_several_pools_each_resource_is_spoken_of_once_by_the_one_that_it_is_for() -> None:
    items = objective("a", "llama"), objective("b", "qwen")
    both = {"llama", "qwen"}
    for views in (
        (view(*items, pools=both), view(*items, name="qwen", pools=both)),
        (view(*items, name="qwen", pools=both), view(*items, pools=both)),
    ):
        found = said(*views)
        assert len(make_reports(views)) == 2
        assert all(each.condition is not None and each.condition.accepted for each in found.values())


def test_of_two_of_one_name_in_two_groups_the_other_one_is_told_that_it_does_not_count() -> None:
    shadowed = reading(objective(), shadowed_by="llm-d.ai")
    [report] = make_reports([PoolView(pool=LLAMA, results=[shadowed], pools={"llama"})])
    assert report.condition is not None
    assert report.condition.reason == "Shadowed"
    assert "llm-d.ai" in report.condition.message


def test_of_models_of_one_name_the_oldest_is_accepted() -> None:
    found = said(
        view(
            model("z", "chat", "2026-01-01T00:00:00Z"),
            model("a", "chat", "2026-01-02T00:00:00Z"),
            model("b", "code", "2026-01-03T00:00:00Z"),
        )
    )
    conditions = {name: each.condition.reason for name, each in found.items() if each.condition}
    assert conditions == {"z": "Accepted", "a": "ModelNameInUse", "b": "Accepted"}
    assert "InferenceModel 'z'" in found["a"].findings[0].text


@pytest.mark.parametrize("change", [{"targetModels": [{"name": "x", "weight": 0}]}, {"poolRef": {}}], ids=str)
def test_of_an_older_model_that_is_refused_the_last_good_name_is_still_taken(change: dict[str, Any]) -> None:
    good = model("z", "chat", "2026-01-01T00:00:00Z")
    bad = {**good, "spec": {**good["spec"], "modelName": "other", **change}}
    younger = model("a", "chat", "2026-01-02T00:00:00Z")
    qwen = PoolId("default", "qwen")
    for last_valid, reason in ((good, "ModelNameInUse"), (None, "Accepted")):
        readings = [reading(bad, last_valid=last_valid), reading(younger)]
        found = {
            report.item["metadata"]["name"]: report for report in make_reports([PoolView(pool=LLAMA, results=readings)])
        }
        assert found == {}, "it isn't known which pools there are"
        pools = {"llama", "qwen"}
        other = PoolView(pool=qwen, results=[reading(bad, qwen), reading(younger, qwen)], pools=pools)
        served = PoolView(pool=LLAMA, results=readings, pools=pools)
        for views in ([served], [served, other], [other, served]):
            conditions = {name: each.condition.reason for name, each in said(*views).items() if each.condition}
            assert conditions == {"z": "Invalid", "a": reason}


def test_a_reference_to_a_group_that_has_no_such_pool_is_found() -> None:
    spec = {"poolRef": {"name": "llama", "group": EXPERIMENTAL}, "priority": 1}
    items = [pool(x="1"), item_of("InferenceObjective", "lost", spec)]
    readings = [
        ResourceResult(each.resource, each.item, read_item(each.item, each.kind, "", LLAMA, {STABLE}))
        for each in map(reading, items)
    ]
    views = [PoolView(pool=LLAMA, results=readings, pools={"llama"}, selected=pods("a", x="1"))]
    each = said(*views)["lost"]
    assert each.condition is None
    [finding] = each.findings
    assert (finding.reason, finding.transient) == ("PoolNotFound", True)
    expected = (
        f"spec.poolRef.group: InferencePool 'llama' of namespace default isn't in {EXPERIMENTAL}; {STABLE}, where it"
    )
    assert finding.text.startswith(expected)


def test_a_pod_that_two_pools_select_is_found_on_the_younger_by_whoever_serves_that() -> None:
    items = pool("a-younger", created="2026-02-01T00:00:00Z", x="1"), pool("older", y="2")
    selected = {**pods("a", x="1"), **pods("b", "c", x="1", y="2")}
    [found] = said(view(*items, name="a-younger", selected=selected))["a-younger"].findings
    assert (found.reason, found.transient) == ("PodClaimedTwice", True)
    assert found.text.startswith("spec.selector: it selects pods that InferencePool default/older selects too")
    assert found.example == "(2 of them, such as b)"
    [other] = said(view(*items, name="a-younger", selected=pods("c", x="1", y="2")))["a-younger"].findings
    assert other.text == found.text, "which pods they are doesn't make it another finding"
    assert said(view(*items, name="older", selected=pods("b", "c", x="1", y="2")))["older"].findings == ()


def test_a_pool_of_the_older_group_selects_too_and_one_that_goes_or_says_nothing_does_not() -> None:
    ours = pool("ours", created="2026-02-01T00:00:00Z", x="1")
    for other, claims in (
        (item_of("InferencePool", "old", {"selector": {"x": "1"}}), True),
        (item_of("InferencePool", "all", {"selector": {"matchLabels": {}}}, STABLE), True),
        (item_of("InferencePool", "odd", {"selector": ["x"]}, STABLE), False),
        (item_of("InferencePool", "bare", {}, STABLE), False),
        (item_of("InferencePool", "listed", {"selector": {"matchLabels": {"x": ["1"]}}}, STABLE), False),
        (pool("narrower", x="1", y="1"), False),
        (pool("going", x="1") | {"metadata": {"name": "going", "deletionTimestamp": "2026-03-01T00:00:00Z"}}, False),
        (pool("other", y="1"), False),
        (pool("younger", created="2026-03-01T00:00:00Z", x="1"), False),
        (pool("a", created="2026-02-01T00:00:00Z", x="1"), True),
        (pool("z", created="2026-02-01T00:00:00Z", x="1"), False),
    ):
        found = said(view(ours, other, name="ours", selected=pods("a", x="1")))["ours"]
        assert reasons(found) == (["PodClaimedTwice"] if claims else []), other["metadata"]["name"]


def test_many_pools_and_many_pods_cost_no_more_together_than_apart() -> None:
    def work(pools: int, selected: int) -> int:
        others = [pool(f"other{number}", y=str(number)) for number in range(pools)]
        ours = pool("ours", created=LATER, x="1")
        found = view(ours, *others, name="ours", selected=pods(*map(str, range(selected)), x="1"))
        with counted() as work:
            reports = said(found)
        assert reports["ours"].findings == ()
        return work.instructions

    assert work(100, 200) < 1.2 * (work(100, 1) + work(1, 200))


def test_all_pods_are_looked_at_equally_often_however_many_older_pools_there_are() -> None:
    class Pods(Mapping[ObjectId, JsonObject]):
        def __init__(self, known: Mapping[ObjectId, JsonObject]) -> None:
            self.known = known
            self.iterations = 0

        def __getitem__(self, id: ObjectId) -> JsonObject:
            return self.known[id]

        def __iter__(self) -> Iterator[ObjectId]:
            self.iterations += 1
            return iter(self.known)

        def __len__(self) -> int:
            return len(self.known)

    def iterations(pools: int) -> int:
        selected = Pods({**pods("a", x="1", y="1"), **pods("b", x="1", z="1")})
        older = [pool(f"other{number}", x="1", y="1", z="1") for number in range(pools)]
        ours = pool("ours", created=LATER, x="1")
        assert said(view(ours, *older, name="ours", selected=selected))["ours"].findings == ()
        return selected.iterations

    assert iterations(20) == iterations(1)


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("many", [1, 100])
def test_many_labels_of_many_pools_are_looked_at_in_turns(many: int, common: bool) -> None:
    def longest(pools: int) -> int:
        labels: list[dict[str, Any]] = [
            {f"l{'' if common else number}-{label}": "v" for label in range(many)} for number in range(pools)
        ]
        others = [pool(f"other{number}", **each, last="1") for number, each in enumerate(labels)]
        ours = pool("ours", created=LATER, x="1")
        found = view(ours, *others, name="ours", selected=pods("a", "b", x="1", **labels[0]))
        steps = [0]
        with counted() as work:
            for _ in iterate_reports([found]):
                steps.append(work.instructions)
        return max(after - before for before, after in pairwise(steps))

    assert longest(80) < 1.2 * longest(5)


def test_the_pods_of_many_labels_are_compared_in_turns_until_none_has_all() -> None:
    def steps(labels: dict[str, Any], *selected: dict[str, Any]) -> int:
        ours, older = pool("ours", created=LATER, x="1"), pool("older", **labels)
        carrying = {id: each for at, mine in enumerate(selected) for id, each in pods(str(at), x="1", **mine).items()}
        return len([*iterate_reports([view(ours, older, name="ours", selected=carrying)])])

    labels: dict[str, Any] = {f"l{number}": "1" for number in range(100)}
    first, second = dict([*labels.items()][:50]), dict([*labels.items()][50:])
    shared = steps(labels, labels, labels)
    assert shared > steps({"l0": "1"}, labels, labels) + 90
    assert steps(labels, first, second) < shared - 40


@pytest.mark.parametrize("odd", [{"list": ["no text"]}, ["x"], "x", 5])
def test_labels_that_are_no_texts_end_no_report(odd: object) -> None:
    labelled = {**pods("a", x="1"), ("default", "b"): {"metadata": {"name": "b", "labels": odd}}}
    ours, older = pool("ours", created=LATER, x="1"), pool("older", x="1")
    assert reasons(said(view(ours, older, name="ours", selected=labelled))["ours"]) == ["PodClaimedTwice"]


def test_a_config_map_that_several_pools_have_is_spoken_of_once() -> None:
    refused = config_map(Problem("plugins[0].type", "'x' isn't known"))
    found = make_reports([view(configuration=refused), view(name="qwen", configuration=refused)])
    assert [each.findings for each in found] == [(Finding("ResourceRefused", "plugins[0].type: 'x' isn't known"),)]
    assert make_reports([view(configuration=config_map())])[0].findings == ()


def test_resources_of_one_name_in_two_groups_or_namespaces_are_kept_apart() -> None:
    items = [pool(x="1"), item_of("InferencePool", "llama", {"selector": {"x": "1"}, "targetPortNumber": 1})]
    readings = [reading(items[0]), reading(items[1], shadowed_by=STABLE)]
    found = make_reports([PoolView(pool=PoolId("default", "llama"), results=readings, selected={})])
    assert {each.resource.kind.group: len(each.findings) for each in found} == {STABLE: 1, EXPERIMENTAL: 0}
