"""What is known of a cluster by selection: while it goes well, while the server is away, and as kinds come and go."""

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from services.watcher.kubernetes.client import Client
from services.watcher.kubernetes.errors import ConnectionFailed, Forbidden, KubernetesError, NotFound
from services.watcher.kubernetes.informers import Informer, InformerFactory, InformerSpec
from services.watcher.kubernetes.resource import JsonObject, ObjectId, Resource, tidy
from services.watcher.kubernetes.settings import KubernetesSettings
from shared.datalayer.objects import ObjectKind
from tests.fake_kubernetes import cluster as fake
from tests.fake_kubernetes.api import FakeApi
from tests.fake_kubernetes.timing import FakeTime, until

POD = ObjectKind("", "v1", "Pod")
POOL = ObjectKind("inference.networking.k8s.io", "v1", "InferencePool")
OLD_POOL = ObjectKind("inference.networking.k8s.io", "v1alpha2", "InferencePool")
PODS = InformerSpec((POD,), "default", "app=vllm")
AWAY = 300.0


def resource_of(kind: ObjectKind) -> Resource:
    return Resource(kind, f"{kind.kind.lower()}s", True, frozenset({"list", "watch"}))


class Api(FakeApi):
    """A server that says what it serves; all its kinds have the same objects."""

    def __init__(self, *served: ObjectKind) -> None:
        super().__init__(fake.Cluster())
        self.served = list(served)
        self.namespaced = True
        self.hangs = False
        """Takes questions about what it serves, and answers none."""
        self.hanging = False
        self.asked: list[str] = []

    async def document(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        await asyncio.sleep(0)
        if self.hangs:
            self.hanging = True
            await asyncio.Event().wait()
        if error := self.down():
            raise error
        found = [
            each for each in self.served if path.endswith(f"/{each.group}/{each.version}" if each.group else "/v1")
        ]
        if not found:
            raise NotFound(f"get {path}", 404, "NotFound")
        common = {"namespaced": self.namespaced, "verbs": ["list", "watch"]}
        resources = [{"name": resource_of(entry).plural, "kind": entry.kind, **common} for entry in found]
        return {"resources": resources}


class Peer:
    """A cluster of ours that asks such a server, and what it was told."""

    def __init__(self, *served: ObjectKind) -> None:
        self.time = FakeTime()
        self.api = Api(*served)
        self.tasks: list[asyncio.Task[None]] = []
        self.notified: list[Informer] = []
        self.changed: list[set[ObjectId] | None] = []
        self.factory = InformerFactory(cast(Client, self.api), KubernetesSettings(), self._spawn, self.time.timing)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str, *, essential: bool = True) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self.tasks.append(task)
        return task

    def follow(self, wanted: InformerSpec) -> Informer:
        return self.factory.add(wanted, self.handle)

    def handle(self, informer: Informer, ids: Collection[ObjectId] | None) -> None:
        self.notified.append(informer)
        self.changed.append(None if ids is None else set(ids))

    async def known(self, informer: Informer) -> None:
        await until(lambda: informer.synced)

    @asynccontextmanager
    async def with_references(self) -> AsyncIterator["Peer"]:
        self.factory.start()
        try:
            yield self
        finally:
            for task in self.tasks:
                task.cancel()
            ends = await asyncio.gather(*self.tasks, return_exceptions=True)
            assert [end for end in ends if not isinstance(end, asyncio.CancelledError | None)] == []


def names(informer: Informer) -> list[str]:
    return sorted(name for _, name in informer.objects)


async def test_a_feed_has_what_is_selected_and_tells_of_changes() -> None:
    peer = Peer(POD)
    peer.api.cluster.put("a", labels={"app": "vllm"})
    peer.api.cluster.put("other", labels={"app": "other"})
    async with peer.with_references():
        informer = peer.follow(PODS)
        assert not informer.synced
        await peer.known(informer)
        assert names(informer) == ["a"]
        assert informer.resource == resource_of(POD)
        assert informer in peer.notified
        peer.notified.clear()
        peer.api.cluster.put("b", labels={"app": "vllm"})
        await until(lambda: names(informer) == ["a", "b"])
        peer.api.cluster.delete("a")
        await until(lambda: names(informer) == ["b"])
        assert peer.notified == [informer, informer]
        assert peer.changed[-2:] == [{("default", "b")}, {("default", "a")}]


async def test_those_who_want_the_same_share_a_watch_until_the_last_one_leaves() -> None:
    peer = Peer(POD)
    second: list[Informer] = []

    def handle(informer: Informer, ids: Collection[ObjectId] | None) -> None:
        second.append(informer)

    async with peer.with_references():
        informer = peer.follow(PODS)
        assert peer.factory.add(PODS, handle) is informer
        await peer.api.idle()
        assert peer.api.open == 1
        peer.factory.remove(informer, peer.handle)
        second.clear()
        peer.api.cluster.put("a", labels={"app": "vllm"})
        await until(lambda: bool(second))
        peer.factory.remove(informer, handle)
        await until(lambda: peer.api.open == 0)
        assert peer.factory.state()["feeds"] == []


async def test_a_kind_that_is_not_served_has_no_objects_and_that_is_no_problem() -> None:
    peer = Peer(POD)
    async with peer.with_references():
        informer = peer.follow(InformerSpec((POOL,), "default"))
        await peer.known(informer)
        assert (informer.objects, informer.reflector, informer.problem) == ({}, None, "")
        assert peer.factory.problem() is None
        assert peer.notified == [informer]
        assert informer.confirmed_at(peer.time.now) == peer.time.now


async def test_a_kind_that_has_to_be_installed_is_a_problem_until_it_is_and_after_it_was() -> None:
    peer = Peer(POD)
    peer.api.cluster.put("llama")
    async with peer.with_references():
        expected = "InferencePool isn't installed, and a source names it"
        informer = peer.follow(InformerSpec((POOL,), "default", required=expected))
        peer.follow(InformerSpec((POD,), "default", required="Pod isn't installed, and a source names it"))
        assert (informer.synced, informer.problem) == (False, "")
        await until(lambda: bool(informer.problem))
        assert informer.problem == peer.factory.problem() == expected
        assert not informer.synced
        peer.api.served.append(POOL)
        await peer.known(informer)
        assert (informer.problem, names(informer)) == ("", ["llama"])
        peer.notified.clear()
        peer.api.served.remove(POOL)
        await until(lambda: informer.reflector is None)
        assert informer.problem == expected
        assert (informer.synced, names(informer), peer.notified) == (True, [], [informer]), "its objects went with it"


async def test_of_kinds_that_are_needed_in_the_same_words_one_is_enough() -> None:
    peer = Peer(POOL)
    needed = "InferencePool isn't installed, and default/llama is one"
    other = ObjectKind("inference.networking.x-k8s.io", "v1alpha2", "InferencePool")
    async with peer.with_references():
        informers = [peer.follow(InformerSpec(kinds, required=needed)) for kinds in ((POOL, OLD_POOL), (other,))]
        await until(lambda: all(informer.synced for informer in informers))
        assert peer.factory.problem() is None
        peer.api.served.clear()
        await until(lambda: peer.factory.problem() is not None)
        assert peer.factory.problem() == needed
        peer.api.served.append(other)
        await until(lambda: peer.factory.problem() is None)


async def test_a_kind_without_namespaces_is_watched_once_whoever_asks_for_it_from_wherever() -> None:
    node = ObjectKind("", "v1", "Node")
    peer = Peer(node)
    peer.api.namespaced = False
    peer.api.cluster.put("n1")
    async with peer.with_references():
        first, second = (peer.follow(InformerSpec((node,), namespace)) for namespace in ("a", "b"))
        assert first is not second
        await peer.known(first)
        await peer.known(second)
        await peer.api.idle()
        assert names(first) == names(second) == ["n1"]
        assert peer.api.open == 1
        late = peer.follow(InformerSpec((node,), "c"))
        assert (late.synced, names(late)) == (True, ["n1"])
        peer.api.cluster.put("n2")
        await until(lambda: all(names(each) == ["n1", "n2"] for each in (first, second, late)))
        assert len(peer.api.pages) == 1
        for each in (first, second):
            peer.factory.remove(each, peer.handle)
        peer.api.cluster.delete("n1")
        await until(lambda: names(late) == ["n2"])
        peer.factory.remove(late, peer.handle)
        await until(lambda: peer.api.open == 0)


async def test_of_what_reads_metadata_alone_nothing_else_is_asked_for_and_other_changes_are_none() -> None:
    peer = Peer(POD)
    peer.api.cluster.put("a", labels={"app": "vllm"}, image="x")
    async with peer.with_references():
        informer = peer.follow(InformerSpec((POD,), "default", parts=frozenset({"metadata"})))
        await peer.known(informer)
        await peer.api.idle()
        assert informer.reflector is not None
        assert informer.reflector.selection.metadata_only
        [item] = informer.objects.values()
        assert item.keys() == {"apiVersion", "kind", "metadata"}
        peer.notified.clear()
        peer.api.cluster.put("a", labels={"app": "vllm"}, image="y")
        await peer.api.idle()
        assert (peer.notified, informer.reflector.events) == ([], 1)
        peer.api.cluster.put("a", labels={"app": "other"})
        await until(lambda: peer.notified == [informer])
        whole = peer.follow(InformerSpec((POD,), "default", parts=frozenset({"metadata", "spec"})))
        await peer.known(whole)
        assert whole.reflector is not None
        assert not whole.reflector.selection.metadata_only
        [item] = whole.objects.values()
        assert item.keys() == {"apiVersion", "kind", "metadata", "spec"}


async def test_an_object_that_cannot_be_understood_is_told_of_and_hurts_no_other() -> None:
    def careful(item: JsonObject, resource: Resource) -> JsonObject:
        return {**tidy(item, resource), "size": item["spec"]["size"] + 1}

    peer = Peer(POD)
    for name, size in (("bad", "none"), ("good", 1), ("worse", None)):
        peer.api.cluster.put(name, size=size)
    async with peer.with_references():
        informer = peer.follow(InformerSpec((POD,), "default", strip=careful))
        await peer.known(informer)
        assert names(informer) == ["bad", "good", "worse"]
        assert informer.objects["default", "good"]["size"] == 2
        assert "spec" not in informer.objects["default", "bad"]
        assert informer.problem.startswith("Pod of core in namespace default: default/bad can't be read: TypeError: ")
        assert informer.problem.endswith(", and 1 more")
        assert informer.state()["unreadable"].keys() == {"default/bad", "default/worse"}
        assert informer.synced
        peer.api.cluster.put("bad", size=2)
        await until(lambda: informer.state()["unreadable"].keys() == {"default/worse"})
        peer.api.cluster.delete("worse")
        await until(lambda: names(informer) == ["bad", "good"])
        assert (informer.problem, peer.factory.problem()) == ("", None)


async def test_what_nothing_can_be_made_of_is_told_of_until_there_is_another_form_of_it() -> None:
    peer = Peer(POD)
    for name in "ab":
        peer.api.cluster.put(name, labels={"app": "vllm"}, size=name == "a")

    def read(item: JsonObject) -> int:
        assert item["spec"]["size"], "it has no size"
        return 1

    async with peer.with_references():
        informer = peer.follow(PODS)
        await peer.known(informer)
        with capture_logs() as logs:
            assert [informer.read(item, read, 0) for _, item in sorted(informer.objects.items())] == [1, 0]
        assert [(log["event"], log["name"]) for log in logs] == [("kubernetes.object.unreadable", "b")]
        assert "default/b can't be read: AssertionError: it has no size" in str(peer.factory.problem())
        peer.api.cluster.put("b", labels={"app": "vllm"}, size=1)
        await until(lambda: peer.factory.problem() is None)


async def test_a_server_that_hangs_confirms_nothing_after_two_looks_however_open_its_watches_are() -> None:
    peer = Peer(POD)
    async with peer.with_references():
        informer = peer.follow(PODS)
        absent = peer.follow(InformerSpec((POOL,), "default"))
        await peer.known(informer)
        await peer.api.idle()
        peer.api.hangs = True
        await until(lambda: peer.api.hanging)
        began = peer.time.now
        heard = peer.factory.discovery.last_response_at
        assert heard is not None
        assert began - heard <= 12.0
        for since, each in ((0.0, informer), (0.0, absent), (19.0, informer), (19.0, absent)):
            assert each.confirmed_at(heard + since) == heard + since
        for each in (informer, absent):
            assert each.confirmed_at(heard + 21.0) == heard
        assert informer.reflector is not None
        assert informer.reflector.in_touch
        peer.time.now = heard + 60.0
        peer.api.cluster.put("a", labels={"app": "vllm"})
        await peer.api.idle()
        assert informer.confirmed_at(heard + 61.0) == heard + 61.0, "by the watch itself"
        assert absent.confirmed_at(heard + 61.0) == heard


async def test_a_newer_version_takes_the_place_of_an_older_one_and_what_is_known_stays_meanwhile() -> None:
    peer = Peer(OLD_POOL)
    peer.api.cluster.put("llama")
    async with peer.with_references():
        informer = peer.follow(InformerSpec((POOL, OLD_POOL), "default"))
        await until(lambda: names(informer) == ["llama"])
        assert informer.resource == resource_of(OLD_POOL)
        peer.api.list_failures.extend([ConnectionFailed("no connection")] * 3)
        seen: list[list[str]] = []
        peer.factory.add(informer.spec, lambda item, _: seen.append(names(item)))
        peer.api.served.append(POOL)
        await until(lambda: informer.resource == resource_of(POOL))
        assert names(informer) == ["llama"], "not known anew yet"
        await until(lambda: informer.synced)
        assert all(each == ["llama"] for each in seen)


AWAY_ERROR = ConnectionFailed("no connection to https://127.0.0.1:6443: Connection refused")
REFUSAL = Forbidden("list pods", 403, "Forbidden", 'User "watcher" cannot list resource "pods"')


@pytest.mark.parametrize(
    ("error", "words"), [(AWAY_ERROR, "Connection refused"), (REFUSAL, 'cannot list resource "pods"')]
)
async def test_five_minutes_without_the_server_change_nothing_but_the_age_of_what_is_known(
    error: KubernetesError, words: str
) -> None:
    peer = Peer(POD)
    for name in "ab":
        peer.api.cluster.put(name, labels={"app": "vllm"})
    async with peer.with_references():
        informer = peer.follow(PODS)
        await peer.known(informer)
        await peer.api.idle()
        assert informer.confirmed_at(peer.time.now) == peer.time.now
        peer.api.down = lambda: error
        gone = peer.time.now
        peer.api.fail()
        peer.api.cluster.delete("a")
        await until(lambda: peer.time.now > gone + AWAY, turns=100_000)
        assert names(informer) == ["a", "b"]
        assert informer.synced
        assert words in informer.problem
        assert words in str(peer.factory.problem())
        assert informer.confirmed_at(peer.time.now) <= gone + 1
        peer.api.down = lambda: None
        await until(lambda: names(informer) == ["b"], turns=100_000)
        await until(lambda: peer.factory.problem() is None, turns=100_000)
        assert informer.confirmed_at(peer.time.now) == peer.time.now


async def test_before_the_server_was_ever_reached_nothing_is_known_and_nothing_is_confirmed() -> None:
    peer = Peer(POD)
    peer.api.down = lambda: AWAY_ERROR
    async with peer.with_references():
        informer = peer.follow(PODS)
        began = peer.time.now
        await until(lambda: peer.time.now > began + AWAY, turns=100_000)
        assert not informer.synced
        assert informer.confirmed_at(peer.time.now) == float("-inf")
        assert "Connection refused" in str(peer.factory.problem())
        state = peer.factory.state()
        assert "Connection refused" in state["discovery"]
        assert state["feeds"][0]["served"] is None
        peer.api.down = lambda: None
        await until(lambda: informer.synced, turns=100_000)
