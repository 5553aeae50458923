"""What is said of each resource."""

from services.watcher.kubernetes.reading import read_item
from services.watcher.kubernetes.verdicts import Condition, Finding, PoolView, Reading, Verdict, verdicts
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


def said(*views: PoolView) -> dict[str, Verdict]:
    return {one.item["metadata"]["name"]: one for one in verdicts(views)}


def reasons(verdict: Verdict) -> list[str]:
    return [one.reason for one in verdict.findings]


def test_what_is_in_force_is_accepted_for_its_pool() -> None:
    one = said(view(objective()))["premium"]
    assert one.condition == Condition(True, "Accepted", "in force for InferencePool default/llama")
    assert one.findings == ()


def test_what_is_odd_in_what_is_accepted_is_in_the_message() -> None:
    rules = [{"matches": [{}], "targets": [{"modelRewrite": "base"}]}]
    rewrite = item_of("InferenceModelRewrite", "rollout", {"poolRef": {"name": "llama"}, "rules": rules})
    condition = said(view(rewrite))["rollout"].condition
    assert condition is not None
    assert condition.accepted
    assert condition.message.endswith("spec.rules[0].matches: no match names a model, so the rule is never used")


def test_every_problem_of_a_refused_one_is_named() -> None:
    spec = {"poolRef": {"name": "llama"}, "priorty": 1, "priority": "high"}
    one = said(view(item_of("InferenceObjective", "bad", spec)))["bad"]
    assert one.condition is not None
    assert (one.condition.accepted, one.condition.reason) == (False, "Invalid")
    assert "spec.priorty: unknown field" in one.condition.message
    assert "spec.priority: 'high'" in one.condition.message
    assert one.findings == (Finding("ResourceRefused", one.condition.message),)


def test_of_what_is_for_another_pool_that_exists_nothing_is_said() -> None:
    one = said(view(objective(pool="other"), pools={"llama", "other"}))["premium"]
    assert (one.condition, one.findings) == (None, ())


def test_a_pool_that_does_not_exist_is_found_missing_but_is_no_condition_of_ours() -> None:
    one = said(view(objective(pool="nowhere")))["premium"]
    assert one.condition is None
    assert reasons(one) == ["PoolNotFound"]
    assert one.findings[0].patient
    assert one.findings[0].text.startswith(
        "spec.poolRef.name: there is no InferencePool 'nowhere' in namespace default"
    )


def test_without_its_own_pool_nothing_is_accepted() -> None:
    one = said(view(objective(), pools=set()))["premium"]
    assert one.condition is not None
    assert (one.condition.accepted, one.condition.reason) == (False, "PoolNotFound")


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
        assert len(verdicts(views)) == 2
        assert all(one.condition is not None and one.condition.accepted for one in found.values())


def test_of_two_of_one_name_in_two_groups_the_other_one_is_told_that_it_does_not_count() -> None:
    shadowed = reading(objective(), shadowed_by="llm-d.ai")
    [one] = verdicts([PoolView(pool=LLAMA, readings=[shadowed], pools={"llama"})])
    assert one.condition is not None
    assert one.condition.reason == "Shadowed"
    assert "llm-d.ai" in one.condition.message


def test_of_models_of_one_name_the_oldest_is_accepted() -> None:
    found = said(
        view(
            model("z", "chat", "2026-01-01T00:00:00Z"),
            model("a", "chat", "2026-01-02T00:00:00Z"),
            model("b", "code", "2026-01-03T00:00:00Z"),
        )
    )
    conditions = {name: one.condition.reason for name, one in found.items() if one.condition}
    assert conditions == {"z": "Accepted", "a": "ModelNameInUse", "b": "Accepted"}
    assert "InferenceModel 'z'" in found["a"].findings[0].text


def test_of_an_older_model_that_is_refused_the_last_good_name_is_still_taken() -> None:
    good = model("z", "chat", "2026-01-01T00:00:00Z")
    bad = {**good, "spec": {**good["spec"], "modelName": "other", "targetModels": [{"name": "x", "weight": 0}]}}
    younger = reading(model("a", "chat", "2026-01-02T00:00:00Z"))
    for last_good, reason in ((good, "ModelNameInUse"), (None, "Accepted")):
        readings = [reading(bad, last_good=last_good), younger]
        found = {one.item["metadata"]["name"]: one for one in verdicts([PoolView(pool=LLAMA, readings=readings)])}
        assert found == {}, "it isn't known which pools there are"
        views = [PoolView(pool=LLAMA, readings=readings, pools={"llama"})]
        conditions = {name: one.condition.reason for name, one in said(*views).items() if one.condition}
        assert conditions == {"z": "Invalid", "a": reason}


def test_a_reference_to_a_group_that_has_no_such_pool_is_found() -> None:
    spec = {"poolRef": {"name": "llama", "group": EXPERIMENTAL}, "priority": 1}
    items = [pool(x="1"), item_of("InferenceObjective", "lost", spec)]
    readings = [
        Reading(one.resource, one.item, read_item(one.item, one.kind, "", LLAMA, {STABLE}))
        for one in map(reading, items)
    ]
    views = [PoolView(pool=LLAMA, readings=readings, pools={"llama"}, selected=pods("a", x="1"))]
    one = said(*views)["lost"]
    assert one.condition is None
    [finding] = one.findings
    assert (finding.reason, finding.patient) == ("PoolNotFound", True)
    expected = (
        f"spec.poolRef.group: InferencePool 'llama' of namespace default isn't in {EXPERIMENTAL}; {STABLE}, where it"
    )
    assert finding.text.startswith(expected)


def test_of_what_is_being_deleted_nothing_is_said() -> None:
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert verdicts([view(objective(pool="nowhere", **gone), objective("bad", priority="high", **gone))]) == ()


def test_a_refused_pool_is_found() -> None:
    one = said(view(pool(port=0)))["llama"]
    assert one.findings == (Finding("ResourceRefused", "spec.targetPorts[0].number: 0 is below 1"),)


def test_a_selector_without_pods_is_found_only_when_it_is_known() -> None:
    assert reasons(said(view(pool(app="vllm"), selected={}))["llama"]) == ["NoEndpoints"]
    assert reasons(said(view(pool(app="vllm"), selected=None))["llama"]) == []


def test_what_is_missing_is_a_slice_where_slices_are_read() -> None:
    one = said(view(pool(app="vllm"), selected={}, slices_of="servers"))["llama"]
    assert "Service 'servers'" in one.findings[0].text


def test_slices_are_no_pods_that_could_be_claimed() -> None:
    items = pool(x="1"), pool("b", created="2027-01-01T00:00:00Z", x="1")
    one = said(view(*items, name="b", selected=pods("a", x="1"), slices_of="servers"))["b"]
    assert one.findings == ()


def test_a_pod_that_two_pools_select_is_found_on_the_younger_by_whoever_serves_that() -> None:
    items = pool("a-younger", created="2026-02-01T00:00:00Z", x="1"), pool("older", y="2")
    selected = {**pods("a", x="1"), **pods("b", "c", x="1", y="2")}
    [found] = said(view(*items, name="a-younger", selected=selected))["a-younger"].findings
    assert (found.reason, found.patient) == ("PodClaimedTwice", True)
    assert found.text.startswith("spec.selector: it selects pods that InferencePool default/older selects too")
    assert found.example == "(2 of them, such as b)"
    assert said(view(*items, name="older", selected=pods("b", "c", x="1", y="2")))["older"].findings == ()


def test_of_two_pools_of_one_second_the_later_name_is_the_younger() -> None:
    items = pool("first", x="1"), pool("second", x="1")
    both = [view(*items, name=name, selected=pods("a", x="1")) for name in ("first", "second")]
    found = {name: reasons(one) for name, one in said(*both).items()}
    assert found == {"first": [], "second": ["PodClaimedTwice"]}


def test_which_pods_are_claimed_twice_does_not_make_it_another_finding() -> None:
    items = pool("first", x="1"), pool("second", x="1")
    texts = {said(view(*items, name="second", selected=pods(one, x="1")))["second"].findings[0].text for one in "ab"}
    assert len(texts) == 1


def test_a_pool_of_the_older_group_selects_too_and_one_that_goes_or_says_nothing_does_not() -> None:
    ours = pool("ours", created="2026-02-01T00:00:00Z", x="1")
    for other, claims in (
        (item_of("InferencePool", "old", {"selector": {"x": "1"}}), True),
        (item_of("InferencePool", "all", {"selector": {"matchLabels": {}}}, STABLE), True),
        (item_of("InferencePool", "odd", {"selector": ["x"]}, STABLE), False),
        (item_of("InferencePool", "bare", {}, STABLE), False),
        (pool("going", x="1") | {"metadata": {"name": "going", "deletionTimestamp": "2026-03-01T00:00:00Z"}}, False),
        (pool("other", y="1"), False),
        (pool("younger", created="2026-03-01T00:00:00Z", x="1"), False),
    ):
        found = said(view(ours, other, name="ours", selected=pods("a", x="1")))["ours"]
        assert reasons(found) == (["PodClaimedTwice"] if claims else []), other["metadata"]["name"]


def test_a_config_map_that_several_pools_have_is_spoken_of_once() -> None:
    refused = config_map(Problem("plugins[0].type", "'x' isn't known"))
    found = verdicts([view(configuration=refused), view(name="qwen", configuration=refused)])
    assert [one.findings for one in found] == [(Finding("ResourceRefused", "plugins[0].type: 'x' isn't known"),)]
    assert verdicts([view(configuration=config_map())])[0].findings == ()


def test_resources_of_one_name_in_two_groups_or_namespaces_are_kept_apart() -> None:
    items = [pool(x="1"), item_of("InferencePool", "llama", {"selector": {"x": "1"}, "targetPortNumber": 1})]
    readings = [reading(items[0]), reading(items[1], shadowed_by=STABLE)]
    found = verdicts([PoolView(pool=PoolId("default", "llama"), readings=readings, selected={})])
    assert {one.resource.kind.group: len(one.findings) for one in found} == {STABLE: 1, EXPERIMENTAL: 0}
