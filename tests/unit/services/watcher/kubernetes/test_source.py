"""What one pool's source tells of what is in the cluster, with informers that are the test's."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.watcher.configuration import installed
from services.watcher.kubernetes import source as module
from services.watcher.kubernetes.config_map import ConfigMapKey
from services.watcher.kubernetes.errors import ErrorKind
from services.watcher.kubernetes.informers import Handler, Informer, InformerFactory, InformerSpec
from services.watcher.kubernetes.reflector import Problem
from services.watcher.kubernetes.resource import JsonObject, Resource
from services.watcher.kubernetes.source import PODS, KubernetesSource, PoolOptions
from services.watcher.problem_budget import OVERHEAD, SIZE
from services.watcher.resources import PoolId
from services.watcher.sources import Delete, Event, Rejected, Removed, Reset, Upsert
from shared import tasks
from shared.config.loaded import LoadedConfig
from shared.config.loader import load
from shared.config.problems import count_problems
from shared.datalayer.objects import ObjectKind
from shared.model import Configuration, Pool
from tests.unit.services.watcher.kubernetes.readings import EXPERIMENTAL, STABLE, item_of, objective
from tests.work import counted, longest_turn

OURS = PoolId("default", "llama")
ALONE = Pool(name="llama", namespace="default", selector={"app": "vllm"}, target_ports=(8000,))
CONFIG = ConfigMapKey("default", "picker")
CONFIGURED = "ConfigMap default/picker"
"""Its origin."""
GOOD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: []\n"
NODE = ObjectKind("", "v1", "Node")


class Informers:
    """Takes the place of a cluster: what is known of each selection is what the test says."""

    def __init__(self) -> None:
        self.informers: dict[InformerSpec, Informer] = {}
        self.left: list[InformerSpec] = []

    def add(self, spec: InformerSpec, handler: Handler) -> Informer:
        informer = self.informers.setdefault(spec, Informer(spec))
        informer.handlers.append(handler)
        return informer

    def remove(self, informer: Informer, handler: Handler) -> None:
        informer.handlers.remove(handler)
        del self.informers[informer.spec]
        self.left.append(informer.spec)

    def find(self, kind: str, group: str = "", labels: str | None = None) -> Informer:
        """The one informer of a kind and group, and of labels where there are several."""
        (informer,) = [
            informer
            for spec, informer in self.informers.items()
            if (spec.kinds[0].kind, spec.kinds[0].group) == (kind, group) and labels in (None, spec.labels)
        ]
        return informer

    def say(self, informer: Informer, *items: JsonObject) -> None:
        """These are all objects now, and they are known."""
        informer.discovered = True
        informer.resource = Resource(informer.spec.kinds[0], "things", True)
        informer.objects = {(item["metadata"].get("namespace", ""), item["metadata"]["name"]): item for item in items}
        informer.notify()

    def say_the_rest(self, *but: Informer) -> None:
        """There is nothing else, and of these it isn't known."""
        for informer in [*self.informers.values()]:
            if not informer.synced and informer not in but:
                self.say(informer)


class Peer:
    """A source with such informers, and all that it told."""

    def __init__(self, *, validate: Callable[[Configuration], LoadedConfig] | None = None, **plan: Any) -> None:
        self.informers = Informers()
        self.source = KubernetesSource(PoolOptions(pool=OURS, **plan), validate or _validate)
        self.source.start(cast(InformerFactory, self.informers))

    def pods(self, labels: str = "app=vllm") -> Informer:
        return self.informers.find("Pod", labels=labels)

    async def loaded(self) -> dict[str, Event]:
        """By origin, once everything that is required is known."""
        return _by_origin(await self.source.load())

    async def waits(self) -> bool:
        """Whether `load` waits for something."""
        task = asyncio.ensure_future(self.source.load())
        for _ in range(5):
            await asyncio.sleep(0)
        done = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return not done

    async def changes(self) -> dict[str, Event]:
        """What is told of the last changes."""
        return _by_origin(await self.source.changes())

    async def configured(self) -> Event:
        """What is told next of the configuration."""
        while CONFIGURED not in (found := await self.changes()):
            pass
        return found[CONFIGURED]


def _validate(configuration: Configuration) -> LoadedConfig:
    return load(configuration.text, installed(), configuration.origin)


def _by_origin(events: Iterable[Event]) -> dict[str, Event]:
    found = {event.origin: event for event in events}
    assert len(found) == len(list(events)), "each origin once"
    return found


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COALESCE", 0.0)
    monkeypatch.setattr(module, "GAP", 0.0)


def pod(name: str, address: str = "10.0.0.1", uid: str = "u", **labels: str) -> JsonObject:
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": name, "namespace": "default", "uid": uid, "labels": labels},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "podIP": address, "conditions": ready},
    }


def pool(selector: str = "vllm", *ports: int, group: str = STABLE, **metadata: Any) -> JsonObject:
    spec: dict[str, Any] = {
        "selector": {"matchLabels": {"app": selector}},
        "targetPorts": [{"number": port} for port in ports or (8000,)],
    }
    if group == EXPERIMENTAL:
        spec = {"selector": {"app": selector}, "targetPortNumber": (ports or (8000,))[0]}
    return item_of("InferencePool", "llama", spec, group, **metadata)


def config_map(text: str = GOOD, key: str = "config.yaml") -> JsonObject:
    return {"metadata": {"name": "picker", "namespace": "default"}, "data": {key: text}}


def endpoints(event: Event | None) -> dict[str, str]:
    """`address:port` by id, of what is told of the pods."""
    assert isinstance(event, Reset)
    assert event.documents.endpoints is not None
    return {endpoint.id: endpoint.authority for endpoint in event.documents.endpoints}


async def served(**plan: Any) -> Peer:
    """A peer with a pool and a pod, loaded."""
    peer = Peer(**plan)
    peer.informers.say(peer.informers.find("InferencePool", STABLE), pool())
    peer.informers.say_the_rest()
    assert await peer.waits()
    peer.informers.say(peer.pods(), pod("a"))
    found = await peer.loaded()
    assert endpoints(found[PODS]) == {"default/a-rank-0": "10.0.0.1:8000"}
    return peer


async def test_nothing_is_told_to_be_complete_before_the_pools_of_all_groups_and_their_pods_are_known() -> None:
    peer = Peer()
    assert await peer.waits()
    former = peer.informers.find("InferencePool", EXPERIMENTAL)
    peer.informers.say(peer.informers.find("InferencePool", STABLE), pool())
    peer.informers.say_the_rest(former)
    assert await peer.waits(), "the other group's pool isn't known, nor what is selected"
    peer.informers.say(former)
    assert await peer.waits(), "what is selected isn't known"
    peer.informers.say(peer.pods())
    assert endpoints((await peer.loaded())[PODS]) == {}
    nowhere = Peer()
    nowhere.informers.say_the_rest()
    assert endpoints((await nowhere.loaded())[PODS]) == {}


async def test_a_burst_is_one_change_and_what_did_not_change_is_not_told_again() -> None:
    peer = await served()
    running = [pod(f"p{at}", f"10.0.1.{at}") for at in range(50)]
    for count in range(1, 51):
        peer.informers.say(peer.pods(), *running[:count])
    found = await peer.changes()
    assert found.keys() == {PODS}
    assert len(endpoints(found[PODS])) == 50
    peer.informers.say(peer.pods(), *running)
    assert await peer.changes() == {}


async def test_a_change_is_told_at_once_and_further_ones_together_after_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = await served()
    monkeypatch.setattr(module, "GAP", 3600.0)
    peer.informers.say(peer.pods(), pod("a"), pod("b"))
    assert len(endpoints((await peer.changes())[PODS])) == 2
    peer.informers.say(peer.pods(), pod("a"))
    further = asyncio.ensure_future(peer.changes())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not further.done()
    further.cancel()


async def test_a_pod_that_changes_is_told_alone() -> None:
    peer = await served()
    pods = peer.pods()
    for name, objects, expected in (
        ("b", {"a": pod("a"), "b": pod("b", "10.0.0.2")}, {"default/b-rank-0": "10.0.0.2:8000"}),
        ("a", {"a": pod("a", "10.0.0.9"), "b": pod("b", "10.0.0.2")}, {"default/a-rank-0": "10.0.0.9:8000"}),
        ("a", {"b": pod("b", "10.0.0.2")}, {"default/a-rank-0": None}),
        ("a", {"b": pod("b", "10.0.0.2")}, {}),
    ):
        pods.objects = {("default", name): item for name, item in objects.items()}
        pods.notify([("default", name)])
        found = await peer.source.changes()
        assert {entry.id: None for entry in found if isinstance(entry, Delete)} | {
            upsert.endpoint.id: upsert.endpoint.authority for upsert in found if isinstance(upsert, Upsert)
        } == expected
        assert all(each.origin == PODS for each in found)
    assert endpoints((await peer.loaded())[PODS]) == {"default/b-rank-0": "10.0.0.2:8000"}, "all of them again"


async def test_others_run_while_a_thousand_pods_are_listed_again_and_only_what_changed_is_another_object() -> None:
    peer = await served()
    peer.informers.say(peer.pods(), *(pod(f"p{number}") for number in range(1000)))
    before = (await peer.changes())[PODS]
    peer.informers.say(
        peer.pods(), *(pod(f"p{number}", "10.0.0.2" if number == 7 else "10.0.0.1") for number in range(1000))
    )
    found: dict[str, Event] = {}

    async def changes() -> None:
        found.update(await peer.changes())

    assert await longest_turn(changes()) < 0.25
    after = found[PODS]
    assert isinstance(before, Reset)
    assert isinstance(after, Reset)
    former = {id(endpoint) for endpoint in before.documents.endpoints or ()}
    assert [endpoint.name for endpoint in after.documents.endpoints or () if id(endpoint) not in former] == [
        "p7-rank-0"
    ]


async def test_others_run_while_the_ports_of_many_pods_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.in_turns, "__defaults__", (0.0, time.monotonic))  # others run after each pod
    peer = await served()
    peer.informers.say(peer.pods(), *(pod(f"p{number}") for number in range(200)))
    await peer.changes()
    peer.informers.say(peer.informers.find("InferencePool", STABLE), pool("vllm", *range(9000, 9008)))
    found: dict[str, Event] = {}

    async def changes() -> None:
        found.update(await peer.changes())

    assert await longest_turn(changes()) < 0.1
    assert len(endpoints(found[PODS])) == 1600


async def test_what_changes_while_pods_are_read_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.in_turns, "__defaults__", (0.0, time.monotonic))  # others run after each pod
    peer = await served()
    informer = peer.pods()
    peer.informers.say(informer, *(pod(f"p{number}") for number in range(100)))
    reading = asyncio.ensure_future(peer.changes())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not reading.done()
    ids = [("default", "p0"), ("default", "p99")]
    for namespace, name in ids:
        informer.objects[namespace, name] = pod(name, "10.0.0.9")
    informer.notify(ids)
    reported = endpoints((await reading)[PODS])
    assert {id for id, authority in reported.items() if authority == "10.0.0.9:8000"} == {
        "default/p0-rank-0",
        "default/p99-rank-0",
    }
    assert len(reported) == 100


@pytest.mark.parametrize("keeps", [True, False])
async def test_unreachable_pods_are_kept_only_while_no_other_is_ready_and_if_asked_for(keeps: bool) -> None:
    peer = await served(keep_unreachable=keeps)
    known = {"a": pod("a"), "b": pod("b", "10.0.0.2")}
    for ready, expected, warned in (
        ({"a", "b"}, {"a", "b"}, False),
        ({"b"}, {"b"}, False),
        (set(), {"a", "b"} if keeps else set(), keeps),
        ({"b"}, {"b"}, False),
        ({"a", "b"}, {"a", "b"}, False),
    ):
        for name, item in known.items():
            status = {"Ready": str(name in ready), "ContainersReady": "True"}
            conditions = [{"type": kind, "status": value} for kind, value in status.items()]
            known[name] = {**item, "status": {**item["status"], "conditions": conditions}}
        for name, item in known.items():
            peer.pods().objects["default", name] = item
            peer.pods().notify([("default", name)])
        await peer.source.changes()
        reported = (await peer.loaded())[PODS]
        assert endpoints(reported).keys() == {f"default/{name}-rank-0" for name in expected}
        assert isinstance(reported, Reset)
        assert bool(reported.documents.warnings) is warned


async def test_a_server_that_moves_between_slices_keeps_its_endpoint() -> None:
    def slice_of(name: str, *servers: str) -> JsonObject:
        entries = [{"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": server}} for server in servers]
        return {"metadata": {"name": name, "namespace": "default"}, "addressType": "IPv4", "endpoints": entries}

    peer = Peer(stand_alone=ALONE, slices_of="servers")
    slices = peer.informers.find("EndpointSlice", "discovery.k8s.io")
    peer.informers.say(slices, slice_of("x", "a"), slice_of("y"))
    await peer.loaded()
    for x, y, expected in (("a", "a", []), ("", "a", []), ("", "", [Delete(PODS, "default/a-rank-0")])):
        slices.objects = {("default", name): slice_of(name, *held) for name, held in (("x", x), ("y", y))}
        slices.notify([("default", "x"), ("default", "y")])
        assert await peer.source.changes() == expected


async def test_another_selector_holds_back_until_it_is_known_what_it_selects() -> None:
    peer = await served()
    peer.informers.say(peer.informers.find("InferencePool", STABLE), pool("sglang"))
    found = await peer.changes()
    assert PODS not in found, "what was told last holds"
    peer.informers.say(peer.informers.find("InferencePool", STABLE), pool())
    assert PODS not in await peer.changes(), "nothing has changed when it is changed back"
    assert [each.labels for each in peer.informers.left] == ["app=sglang"]
    peer.informers.say(peer.informers.find("InferencePool", STABLE), pool("sglang"))
    await peer.changes()
    peer.informers.say(peer.pods(), pod("a"), pod("a2", "10.0.0.3"))
    assert "default/a2-rank-0" in endpoints((await peer.changes())[PODS]), "and is still followed"
    peer.informers.say(peer.pods("app=sglang"), pod("b", "10.0.0.2"))
    assert endpoints((await peer.changes())[PODS]) == {"default/b-rank-0": "10.0.0.2:8000"}
    assert [entry.labels for entry in peer.informers.left][1:] == ["app=vllm"]


async def test_other_ports_are_other_endpoints_of_the_same_pods_at_once() -> None:
    peer = await served()
    peer.informers.say(peer.informers.find("InferencePool", STABLE), pool("vllm", 9000, 9001))
    found = endpoints((await peer.changes())[PODS])
    assert found == {"default/a-rank-0": "10.0.0.1:9000", "default/a-rank-1": "10.0.0.1:9001"}
    assert not peer.informers.left


async def test_another_selector_with_other_ports_leaves_the_former_pods_their_ports() -> None:
    peer = await served()
    pools = peer.informers.find("InferencePool", STABLE)
    peer.informers.say(pools, pool("sglang", 9000))
    assert PODS not in await peer.changes(), "no pool has named these pods with this port"
    peer.informers.say(peer.pods(), pod("a"), pod("a2", "10.0.0.3"))
    expected = {"default/a-rank-0": "10.0.0.1:8000", "default/a2-rank-0": "10.0.0.3:8000"}
    assert endpoints((await peer.changes())[PODS]) == expected
    peer.informers.say(peer.pods("app=sglang"), pod("b", "10.0.0.2"))
    assert endpoints((await peer.changes())[PODS]) == {"default/b-rank-0": "10.0.0.2:9000"}
    peer.informers.say(pools, pool("vllm", 9001))
    assert PODS not in await peer.changes()
    peer.informers.say(pools, pool("sglang", 9002))
    assert endpoints((await peer.changes())[PODS]) == {"default/b-rank-0": "10.0.0.2:9002"}, "not its former port"


def bad_pool(group: str = STABLE) -> JsonObject:
    return pool("vllm", 70000, group=group)


@pytest.mark.parametrize("then", ["it is good", "it is gone"])
async def test_a_pool_that_is_refused_at_the_start_isnt_known_to_have_no_endpoints(then: str) -> None:
    """Another watcher has published what held before: that must not be taken away."""
    peer = Peer()
    stable = peer.informers.find("InferencePool", STABLE)
    peer.informers.say(stable, bad_pool())
    peer.informers.say_the_rest()
    assert await peer.waits()
    assert "70000" in (peer.source.load_problem() or "")
    if then == "it is gone":
        peer.informers.say(stable)
        assert endpoints((await peer.loaded())[PODS]) == {}
        return
    peer.informers.say(stable, pool())
    assert await peer.waits(), "what it selects isn't known"
    peer.informers.say(peer.pods(), pod("a"))
    assert len(endpoints((await peer.loaded())[PODS])) == 1
    assert peer.source.load_problem() is None


async def test_nothing_is_said_to_be_in_force_before_everything_is_known() -> None:
    peer = Peer(config_map=CONFIG)
    peer.informers.say(peer.informers.find("InferencePool", STABLE), pool())
    ours = item_of("InferenceObjective", "premium", {"poolRef": {"name": "llama"}, "priority": 1})
    bad = item_of("InferenceObjective", "bad", {"poolRef": {"name": "llama"}, "priority": "high"})
    peer.informers.say(peer.informers.find("InferenceObjective", EXPERIMENTAL), ours, bad)
    peer.informers.say_the_rest()
    assert await peer.waits()
    peer.informers.say(peer.pods(), pod("a"))
    assert await peer.waits(), "there is no configuration"
    assert {result.id[1] for result in peer.source.view().results} == {"llama", "bad"}, "what is wrong can be said"
    peer.informers.say(peer.informers.find("ConfigMap"), config_map())
    await peer.loaded()
    assert {each_result.id[1] for each_result in peer.source.view().results} == {"llama", "bad", "premium"}


async def test_a_change_of_one_resource_costs_the_same_beside_any_number_of_others() -> None:
    async def work(others: int) -> int:
        peer = await served()
        objectives = peer.informers.find("InferenceObjective", EXPERIMENTAL)
        peer.informers.say(objectives, *[objective(f"o{number}") for number in range(others)])
        await peer.changes()
        for name, priority in (("first", 1), ("first", 2), ("o7", 2)):
            changed = objective(name, priority=priority)
            objectives.objects["default", name] = changed
            objectives.notify([("default", name)])
            with counted() as work:
                (event,) = await peer.source.changes()
            assert event.origin == f"InferenceObjective default/{name}"
        return work.instructions

    assert await work(400) < 1.2 * await work(40)


async def test_many_changed_resources_are_told_in_parts_and_loaded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHANGES", 10)
    peer = await served()
    objectives = peer.informers.find("InferenceObjective", EXPERIMENTAL)
    peer.informers.say(objectives, *[objective(f"o{number}") for number in range(35)])
    assert [len(await peer.changes()) for _ in range(4)] == [10, 10, 10, 5]
    assert len(await peer.loaded()) == 37, "the pool and its pods, too"
    peer.informers.say(objectives)
    assert len(await peer.loaded()) == 37, "what is gone, too"


async def test_what_goes_before_everything_is_told_again_is_told_too() -> None:
    peer = await served()
    objectives = peer.informers.find("InferenceObjective", EXPERIMENTAL)
    peer.informers.say(objectives, objective("o"))
    await peer.changes()
    peer.source.set_object_kinds({NODE: None})
    telling = asyncio.ensure_future(peer.source.load())
    await asyncio.sleep(0)
    peer.informers.say(objectives)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not telling.done(), "the nodes aren't known"
    peer.informers.say(peer.informers.find("Node"))
    assert Removed("InferenceObjective default/o") in await telling


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({}, lambda event: event.problems),
        (
            {"matches": [{}], "targets": [{"modelRewrite": "m"}]},
            lambda event: event.documents.warnings,
        ),
    ],
    ids=["problems", "warnings"],
)
async def test_of_the_problems_of_all_resources_a_limited_number_is_kept(
    rule: JsonObject, kept: Callable[[Any], Sequence[Any]]
) -> None:
    peer, many = await served(), 400
    rewrites = peer.informers.find("InferenceModelRewrite", EXPERIMENTAL)
    spec = {"poolRef": {"name": "llama"}, "rules": [rule] * 200}
    peer.informers.say(rewrites, *[item_of("InferenceModelRewrite", f"r{number}", spec) for number in range(many)])
    told = (await peer.changes()).values()
    assert sum(count_problems(kept(event)) for event in told) == many * 200
    assert sum(len(kept(event)) for event in told) <= SIZE // OVERHEAD + 2 * many
    loaded = await peer.loaded()
    outcomes = [result.outcome for result in peer.source.view().results if isinstance(result.outcome, Rejected | Reset)]
    results = {outcome.origin: outcome for outcome in outcomes}
    assert all(kept(results[event.origin]) is kept(event) is kept(loaded[event.origin]) for event in told)


async def test_what_holds_of_a_resource_that_goes_isnt_held_by_a_refused_one_of_its_name() -> None:
    """In a migration from one API group to the other both have a resource of the name for a time."""
    peer = await served()
    stable, former = peer.informers.find("InferencePool", STABLE), peer.informers.find("InferencePool", EXPERIMENTAL)
    peer.informers.say(former, bad_pool(EXPERIMENTAL))
    assert await peer.changes() == {}
    peer.informers.say(stable)
    events = await peer.source.changes()
    assert [type(event) for event in events if event.origin == "InferencePool default/llama"] == [Removed, Rejected]
    assert endpoints({each_event.origin: each_event for each_event in events}[PODS]) == {}


async def test_of_two_groups_a_good_pool_counts_before_a_refused_one_and_the_last_good_one_holds() -> None:
    peer = await served()
    stable, former = peer.informers.find("InferencePool", STABLE), peer.informers.find("InferencePool", EXPERIMENTAL)
    peer.informers.say(former, pool("vllm", 9000, group=EXPERIMENTAL))
    assert await peer.changes() == {}
    peer.informers.say(stable, bad_pool())
    assert endpoints((await peer.changes())[PODS]) == {"default/a-rank-0": "10.0.0.1:9000"}, "the other group's is good"
    peer.informers.say(former, bad_pool(EXPERIMENTAL))
    found = await peer.changes()
    assert PODS not in found, "its last good version holds"
    assert isinstance(found["InferencePool default/llama"], Rejected)
    peer.informers.say(peer.pods(), pod("b", "10.0.0.2"))
    assert endpoints((await peer.changes())[PODS]) == {"default/b-rank-0": "10.0.0.2:9000"}
    peer.informers.say(stable, pool())
    assert endpoints((await peer.changes())[PODS]) == {"default/b-rank-0": "10.0.0.2:8000"}


async def test_a_pool_that_goes_or_is_being_deleted_takes_its_endpoints_along() -> None:
    for gone in ([], [pool(deletionTimestamp="2026-08-01T12:00:00Z")]):
        peer = await served()
        peer.informers.say(peer.informers.find("InferencePool", STABLE), *gone)
        found = await peer.changes()
        assert endpoints(found[PODS]) == {}
        assert found["InferencePool default/llama"] == Removed("InferencePool default/llama")
        assert [each.labels for each in peer.informers.left] == ["app=vllm"]


async def test_resources_of_other_pools_are_left_out_with_the_reason() -> None:
    peer = await served()
    ours = item_of("InferenceObjective", "premium", {"poolRef": {"name": "llama"}, "priority": 1})
    theirs = item_of("InferenceObjective", "other", {"poolRef": {"name": "qwen"}, "priority": 1})
    bad = item_of("InferenceObjective", "bad", {"poolRef": {"name": "llama"}, "priority": "high"})
    peer.informers.say(peer.informers.find("InferenceObjective", EXPERIMENTAL), ours, theirs, bad)
    found = await peer.changes()
    assert found.keys() == {"InferenceObjective default/premium", "InferenceObjective default/bad"}
    assert isinstance(found["InferenceObjective default/bad"], Rejected)
    assert "qwen" in dict(peer.source.ignored())["InferenceObjective default/other"]
    peer.informers.say(peer.informers.find("InferenceObjective", EXPERIMENTAL), theirs)
    assert {type(change) for change in (await peer.changes()).values()} == {Removed}


async def test_an_optional_kind_that_cannot_be_read_is_not_waited_for() -> None:
    peer = Peer()
    peer.informers.say(peer.informers.find("InferencePool", STABLE), pool())
    models = peer.informers.find("InferenceModel", EXPERIMENTAL)
    peer.informers.say_the_rest(models)
    assert await peer.waits()
    peer.informers.say(peer.pods(), pod("a"))
    assert await peer.waits(), "it may come"
    problem = Problem(ErrorKind.FORBIDDEN, "not allowed to list inferencemodels", 0.0)
    models.reflector = cast(Any, SimpleNamespace(listed=False, problem=problem))
    assert len(endpoints((await peer.loaded())[PODS])) == 1


async def test_the_configuration_is_waited_for_and_a_bad_one_leaves_the_last() -> None:
    peer = Peer(stand_alone=ALONE, config_map=CONFIG)
    assert [str(spec.kinds[0]) for spec in peer.informers.informers] == ["v1 Pod", "v1 ConfigMap"], "no resources"
    peer.informers.say(peer.pods(), pod("a"))
    maps = peer.informers.find("ConfigMap")
    assert maps.spec.fields == "metadata.name=picker"
    peer.informers.say(maps)
    assert await peer.waits()
    peer.informers.say(maps, config_map("kind: EndpointPickerConfig\nplugins: [{type: nonsense}]\n"))
    assert await peer.waits(), "there is no last one"
    peer.informers.say(maps, config_map())
    loaded = await peer.loaded()
    found, alone = loaded[CONFIGURED], loaded["InferencePool default/llama"]
    assert isinstance(alone, Reset)
    assert alone.documents.resources == (ALONE,)
    assert isinstance(found, Reset)
    assert found.documents.configuration == Configuration(text=GOOD, origin="ConfigMap default/picker config.yaml")
    for bad, words in (
        (config_map("plugins: 1"), "plugins"),
        ({**config_map(), "data": None}, "isn't among its keys: none"),
        (config_map(GOOD + "#" * 1_100_000), "it makes a message of 1100"),
        (None, "it doesn't exist"),
    ):
        peer.informers.say(maps, *([bad] if bad else []))
        rejected = await peer.configured()
        assert isinstance(rejected, Rejected)
        assert words in str(rejected.problems)


async def test_pods_are_told_while_a_configuration_is_validated_however_often_it_changes() -> None:
    asked = [asyncio.Event() for _ in range(3)]
    answers = [threading.Event() for _ in range(3)]
    loop = asyncio.get_running_loop()
    validated: list[str] = []

    def validate(configuration: Configuration) -> LoadedConfig:
        at = len(validated)
        validated.append(configuration.text)
        loop.call_soon_threadsafe(asked[at].set)
        answers[at].wait()
        return _validate(configuration)

    peer = Peer(validate=validate, stand_alone=ALONE, config_map=CONFIG)
    maps = peer.informers.find("ConfigMap")
    texts = [f"{GOOD}# {number}\n" for number in range(4)]
    try:
        peer.informers.say(peer.pods())
        peer.informers.say(maps, config_map(texts[0]))
        answers[0].set()
        await peer.loaded()
        peer.informers.say(maps, config_map(texts[1]))
        assert await peer.changes() == {}
        await asked[1].wait()
        for number, text in enumerate((*texts[2:], texts[2])):
            peer.informers.say(maps, config_map(text))
            peer.informers.say(peer.pods(), pod(f"p{number}"))
            assert endpoints((await peer.changes())[PODS]).keys() == {f"default/p{number}-rank-0"}
        answers[1].set()
        answers[2].set()
        for text in texts[1:3]:
            found = await peer.configured()
            assert isinstance(found, Reset)
            assert found.documents.configuration is not None
            assert found.documents.configuration.text == text
        assert validated == texts[:3], "one that was replaced meanwhile is left out"
    finally:
        for answer in answers:
            answer.set()


async def test_a_change_that_leaves_the_configuration_as_it_is_validates_nothing() -> None:
    validated = 0

    def validate(configuration: Configuration) -> LoadedConfig:
        nonlocal validated
        validated += 1
        return _validate(configuration)

    peer = Peer(validate=validate, stand_alone=ALONE, config_map=CONFIG)
    maps = peer.informers.find("ConfigMap")
    peer.informers.say(peer.pods())
    peer.informers.say(maps, config_map())
    await peer.loaded()
    annotated = config_map()
    annotated["metadata"]["annotations"] = {"a": "b"}
    peer.informers.say(maps, annotated)
    assert await peer.changes() == {}
    assert validated == 1
    shown = peer.source.view().configuration
    assert shown is not None
    assert shown.item is annotated


@pytest.mark.parametrize("data", [["config.yaml"], ["config.yaml", {}], "x", 5, True, {"config.yaml": GOOD, "b": 5}])
async def test_data_that_is_no_map_of_texts_refuses_the_configuration_and_ends_nothing(data: object) -> None:
    peer = Peer(stand_alone=ALONE, config_map=CONFIG)
    peer.informers.say(peer.informers.find("ConfigMap"), {**config_map(), "data": data})
    rejected = await peer.configured()
    assert isinstance(rejected, Rejected)
    assert [*map(str, rejected.problems)] == ["data: it isn't a map of texts"]


async def test_a_plugin_that_fails_on_a_configuration_refuses_it_and_ends_nothing() -> None:
    def fails(_: Configuration) -> LoadedConfig:
        raise ZeroDivisionError("division by zero")

    peer = Peer(validate=fails, stand_alone=ALONE, config_map=CONFIG)
    peer.informers.say(peer.informers.find("ConfigMap"), config_map())
    rejected = await peer.configured()
    assert isinstance(rejected, Rejected)
    assert "it can't be loaded: ZeroDivisionError: division by zero" in str(rejected.problems)


@pytest.mark.parametrize(
    ("key", "data", "origin"),
    [
        ("", {"anything": GOOD}, "ConfigMap default/picker anything"),
        ("", {"b.yaml": GOOD, "a.yaml": GOOD, "README": "…"}, "ConfigMap default/picker a.yaml"),
        ("b.yaml", {"b.yaml": GOOD, "a.yaml": "plugins: 1"}, "ConfigMap default/picker b.yaml"),
        ("c.yaml", {"b.yaml": GOOD}, None),
        ("", {"a": GOOD, "b": GOOD}, None),
    ],
)
async def test_the_key_is_the_named_one_the_only_one_or_the_first_yaml(
    key: str, data: dict[str, str], origin: str | None
) -> None:
    peer = Peer(stand_alone=ALONE, config_map=ConfigMapKey("default", "picker", key))
    peer.informers.say(peer.informers.find("ConfigMap"), {**config_map(), "data": data})
    found = await peer.configured()
    if origin is None:
        assert isinstance(found, Rejected)
        assert "isn't among its keys" in str(found.problems)
    else:
        assert isinstance(found, Reset)
        assert found.documents.configuration is not None
        assert found.documents.configuration.origin == origin


def slice_of(name: str, address: Any, kind: str = "IPv4", **more: Any) -> JsonObject:
    entry = {"addresses": [address], "targetRef": {"kind": "Pod", "name": "a"}, **more}
    return {"metadata": {"name": name, "namespace": "default"}, "addressType": kind, "endpoints": [entry]}


async def test_of_a_server_in_two_slices_one_address_is_taken_whichever_is_listed_first() -> None:
    for both in (
        (slice_of("x", "fd00::1", "IPv6"), slice_of("y", "10.0.0.1")),
        (slice_of("x", "10.0.0.1"), slice_of("y", "10.0.0.2")),
    ):
        peer = Peer(stand_alone=ALONE, slices_of="servers")
        informer = peer.informers.find("EndpointSlice", "discovery.k8s.io")
        assert informer.spec.labels == "kubernetes.io/service-name=servers"
        peer.informers.say(informer, *both)
        assert endpoints((await peer.loaded())[PODS]) == {"default/a-rank-0": "10.0.0.1:8000"}


MALFORMED_PODS: list[tuple[str, str, Any]] = [
    *(("status", "hostIP", odd) for odd in (5, ["x"], {"a": 1})),
    *(("status", "podIP", odd) for odd in (5, ["x"], "node-1", "10.0.0.300")),
    *(("metadata", "labels", odd) for odd in ("x", ["x"], {"app": 5}, {"app": {"a": "b"}})),
    ("metadata", "uid", 5),
    ("spec", "nodeName", ["x"]),
]


@pytest.mark.parametrize(("part", "field", "odd"), MALFORMED_PODS)
async def test_a_malformed_pod_is_no_endpoint_and_affects_no_other(part: str, field: str, odd: object) -> None:
    malformed = pod("bad")
    malformed[part][field] = odd
    peer = Peer(stand_alone=ALONE)
    peer.informers.say(peer.pods(), malformed, pod("good"))
    assert endpoints((await peer.loaded())[PODS]).keys() == {"default/good-rank-0"}
    assert "default/bad can't be read" in peer.pods().problem
    peer.informers.say(peer.pods(), pod("bad"), pod("good"))
    assert endpoints((await peer.changes())[PODS]).keys() == {"default/bad-rank-0", "default/good-rank-0"}
    assert not peer.pods().problem


@pytest.mark.parametrize(
    "odd",
    [
        *({"addresses": [address]} for address in (5, True, ["x"], {"a": 1}, "node-1")),
        *({"targetRef": {"kind": "Pod", "name": "a", **more}} for more in ({"uid": 5}, {"name": 5}, {"name": ["x"]})),
        {"nodeName": 5},
    ],
    ids=str,
)
async def test_a_malformed_slice_has_no_endpoints_and_affects_no_other(odd: dict[str, Any]) -> None:
    peer = Peer(stand_alone=ALONE, slices_of="servers")
    informer = peer.informers.find("EndpointSlice", "discovery.k8s.io")
    peer.informers.say(informer, slice_of("x", "10.0.0.1"), slice_of("y", "10.0.0.2", **odd))
    assert endpoints((await peer.loaded())[PODS]) == {"default/a-rank-0": "10.0.0.1:8000"}
    assert "default/y can't be read" in informer.problem


async def test_objects_that_extractors_want_are_told_as_long_as_they_are_wanted() -> None:
    peer = await served()
    assert peer.source.set_object_kinds({NODE: None}) is False
    node = {"metadata": {"name": "n1", "labels": {"zone": "a"}}}
    nodes = peer.informers.find("Node")
    peer.informers.say(nodes, node)
    found = await peer.changes()
    reported = found[f"objects {NODE}"]
    assert isinstance(reported, Reset)
    [each_object] = reported.documents.objects
    assert (each_object.kind, each_object.name, each_object.namespace) == (NODE, "n1", "")
    peer.informers.say(peer.pods(), pod("b"))
    assert (await peer.changes()).keys() == {PODS}, "they stay while others change"
    peer.source.set_object_kinds({NODE: frozenset({"metadata"})})
    assert nodes.spec in peer.informers.left, "less is read of them"
    nodes = peer.informers.find("Node")
    assert nodes.spec.parts == frozenset({"metadata"})
    peer.source.set_object_kinds({NODE: frozenset({"metadata"})})
    assert peer.informers.find("Node") is nodes
    peer.informers.say(nodes, node)
    await peer.changes()
    peer.source.set_object_kinds({})
    peer.informers.say(peer.pods(), pod("c"))
    assert (await peer.changes())[f"objects {NODE}"] == Removed(f"objects {NODE}")
    assert nodes.spec in peer.informers.left


def node(name: str, zone: str = "a") -> JsonObject:
    return {"metadata": {"name": name, "labels": {"zone": zone}}}


async def test_a_change_of_one_object_costs_the_same_beside_any_number_of_others() -> None:
    async def work(others: int) -> int:
        peer = await served()
        peer.source.set_object_kinds({NODE: None})
        nodes = peer.informers.find("Node")
        peer.informers.say(nodes, *[node(f"n{number}") for number in range(others)])
        await peer.changes()
        nodes.objects["", "n7"] = node("n7", "b")
        nodes.notify([("", "n7")])
        with counted() as work:
            (event,) = await peer.source.changes()
        assert isinstance(event, Reset)
        zones = {each.name: each.content["metadata"]["labels"]["zone"] for each in event.documents.objects}
        assert zones == {f"n{number}": "b" if number == 7 else "a" for number in range(others)}
        return work.instructions

    assert await work(400) < 1.2 * await work(40)


async def test_others_run_while_many_objects_are_listed_again_and_only_what_changed_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks.in_turns, "__defaults__", (0.0, time.monotonic))  # others run after each object
    peer = await served()
    peer.source.set_object_kinds({NODE: None})
    nodes = peer.informers.find("Node")
    peer.informers.say(nodes, *[node(f"n{number}") for number in range(300)])
    before = (await peer.changes())[f"objects {NODE}"]
    peer.informers.say(nodes, *[node(f"n{number}", "b" if number == 7 else "a") for number in range(299)])
    found: dict[str, Event] = {}

    async def changes() -> None:
        found.update(await peer.changes())

    assert await longest_turn(changes()) < 0.1
    after = found[f"objects {NODE}"]
    assert isinstance(before, Reset)
    assert isinstance(after, Reset)
    former = {id(each) for each in before.documents.objects}
    assert [each.name for each in after.documents.objects if id(each) not in former] == ["n7"]
    assert len(after.documents.objects) == 299
    peer.informers.say(nodes, *[node(f"n{number}", "b" if number == 7 else "a") for number in range(299)])
    assert await peer.changes() == {}


async def test_what_holds_was_confirmed_when_the_oldest_of_what_is_required_was() -> None:
    peer = await served()
    assert peer.source.confirmed_at(1000.0) == 1000.0
    away = SimpleNamespace(listed=True, in_touch=False, confirmed_at=400.0, problem=None)
    peer.pods().reflector = cast(Any, away)
    assert peer.source.confirmed_at(1000.0) == 400.0
    assert Peer().source.confirmed_at(1000.0) == float("-inf")


async def test_a_pod_that_nothing_can_be_made_of_is_no_endpoint_and_takes_no_other_along() -> None:
    peer = await served(ip_family="IPv4")
    odd = pod("odd", "no address")
    peer.informers.say(peer.pods(), odd, pod("b", "10.0.0.2"))
    assert endpoints((await peer.changes())[PODS]) == {"default/b-rank-0": "10.0.0.2:8000"}
    assert "default/odd can't be read: ValueError: 'no address'" in peer.pods().problem
    peer.informers.say(peer.pods(), pod("odd"), pod("b", "10.0.0.2"))
    assert len(endpoints((await peer.changes())[PODS])) == 2
    assert peer.pods().problem == ""


async def test_what_refers_to_the_pool_by_its_group_is_read_again_when_the_pool_is_in_another_one() -> None:
    peer = await served()
    reference = {"name": "llama", "group": EXPERIMENTAL}
    former = item_of("InferenceObjective", "former", {"poolRef": reference, "priority": 1})
    today = item_of("InferenceObjective", "today", {"poolRef": {"name": "llama"}, "priority": 1})
    peer.informers.say(peer.informers.find("InferenceObjective", EXPERIMENTAL), former, today)
    assert (await peer.changes()).keys() == {"InferenceObjective default/today"}
    assert EXPERIMENTAL in dict(peer.source.ignored())["InferenceObjective default/former"]
    peer.informers.say(peer.informers.find("InferencePool", EXPERIMENTAL), pool(group=EXPERIMENTAL))
    assert (await peer.changes()).keys() == {"InferenceObjective default/former"}, "there are two now"
    peer.informers.say(peer.informers.find("InferencePool", STABLE))
    found = await peer.changes()
    assert found["InferenceObjective default/today"] == Removed("InferenceObjective default/today")


async def test_a_pool_of_some_group_has_to_be_installed_and_what_extractors_hear_of_too() -> None:
    peer = Peer()
    assert {
        informer.required for informer in peer.informers.informers if informer.kinds[0].kind == "InferencePool"
    } == {"InferencePool isn't installed, and default/llama is one"}
    assert {
        each_informer.required
        for each_informer in peer.informers.informers
        if each_informer.kinds[0].kind != "InferencePool"
    } == {""}
    peer.source.set_object_kinds({NODE: None})
    node = peer.informers.find("Node").spec
    assert node.required == "v1 Node isn't installed, and a source of the configuration names it"


async def test_of_what_is_refused_the_last_good_one_is_told_along_with_the_pods_that_are_selected() -> None:
    peer = await served()
    informer = peer.informers.find("InferenceModel", EXPERIMENTAL)
    spec = {"poolRef": {"name": "llama"}, "modelName": "chat"}
    peer.informers.say(informer, item_of("InferenceModel", "m", spec))
    await peer.changes()
    peer.informers.say(informer, item_of("InferenceModel", "m", {**spec, "criticality": "Utmost"}))
    await peer.changes()
    view = peer.source.view()
    [reading] = [result for result in view.results if result.kind == "InferenceModel"]
    assert isinstance(reading.outcome, Rejected)
    assert reading.last_valid is not None
    assert [type(resource).__name__ for resource in reading.last_valid.documents.resources] == ["Model"]
    assert view.selected is not None
    assert view.selected["default", "a"]["metadata"]["name"] == "a"
    peer.informers.say(informer)
    await peer.changes()
    peer.informers.say(informer, item_of("InferenceModel", "m", {**spec, "criticality": "Utmost"}))
    await peer.changes()
    [reading] = [each_result for each_result in peer.source.view().results if each_result.kind == "InferenceModel"]
    assert reading.last_valid is None, "it is another one of the name"
