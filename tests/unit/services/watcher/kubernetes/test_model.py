"""Whatever happens to a cluster and to the connection to it, the set that follows from the reports is the server's."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from services.watcher.kubernetes.errors import ConnectionFailed, Expired, Forbidden, TimedOut, Unavailable
from services.watcher.kubernetes.reflector import Reflector
from services.watcher.kubernetes.resource import Selection
from services.watcher.kubernetes.settings import KubernetesSettings
from tests.fake_kubernetes.api import FakeApi
from tests.fake_kubernetes.cluster import PODS, Cluster, line, status
from tests.fake_kubernetes.reader import reading
from tests.fake_kubernetes.timing import FakeTime

NAMES = st.sampled_from("abcdef")
Action: TypeAlias = Callable[[Cluster, FakeApi, FakeTime], None]


def put(name: str, app: str) -> Action:
    return lambda cluster, api, time: cluster.put(name, labels={"app": app})


def delete(name: str) -> Action:
    def act(cluster: Cluster, api: FakeApi, time: FakeTime) -> None:
        if ("default", name) in cluster.objects:
            cluster.delete(name)

    return act


def down(cluster: Cluster, api: FakeApi, time: FakeTime) -> None:
    """The connection breaks and the server isn't back at once."""
    api.watch_failures.append(ConnectionFailed("Connection refused"))
    api.list_failures += [ConnectionFailed("Connection refused"), Unavailable("list", 503), Forbidden("list", 403)]
    api.fail()


def expire_pages(cluster: Cluster, api: FakeApi, time: FakeTime) -> None:
    """The next list takes too long for its pages."""
    seen = len(api.pages)

    def compact_once() -> None:
        if len(api.pages) == seen + 2:
            cluster.compact()

    api.before_page = compact_once


def after(seconds: float, *acts: Action) -> Action:
    def later(cluster: Cluster, api: FakeApi, time: FakeTime) -> None:
        time.now += seconds
        for act in acts:
            act(cluster, api, time)

    return later


def cut(cluster: Cluster, api: FakeApi, time: FakeTime) -> None:
    api.fail()


FAULTS: list[Action] = [
    lambda cluster, api, time: api.end(),
    after(300, lambda cluster, api, time: api.end()),
    cut,
    after(150, lambda cluster, api, time: api.fail(TimedOut("nothing came"))),
    after(0, lambda cluster, api, time: api.send(b'{"type":"DELETED","object":{"metadata":{"name":"a"'), cut),
    down,
    lambda cluster, api, time: cluster.compact(),
    expire_pages,
    after(0, lambda cluster, api, time: api.watch_failures.append(Expired("watch", 410)), cut),
    lambda cluster, api, time: api.send(line("ERROR", status(410, "Expired"))),
    lambda cluster, api, time: api.send(line("ERROR", status(500, "InternalError"))),
    lambda cluster, api, time: api.send(b"garbage\n"),
    lambda cluster, api, time: api.send(line("SOMETHING", {})),
    after(0, lambda cluster, api, time: cluster.skip(3), lambda cluster, api, time: api.send_bookmark()),
]
"""What can happen to a connection; at the end, other resources change and a bookmark says so."""
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(put, NAMES, st.sampled_from(["vllm", "other"])), st.builds(delete, NAMES), st.sampled_from(FAULTS)
)


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(st.tuples(ACTIONS, st.integers(0, 6)), max_size=40),
    labels=st.sampled_from(["", "app=vllm"]),
    page_size=st.integers(1, 8),
    piece=st.sampled_from([0, 1, 13, 100]),
)
def test_the_set_equals_the_servers_after_any_sequence_of_changes_cuts_and_expiries(
    steps: list[tuple[Action, int]], labels: str, page_size: int, piece: int
) -> None:
    """At every list (the reader checks that itself) and in the end. Between two steps the reader gets a few turns of
    the event loop, so that steps meet it in all phases of listing and watching."""

    async def run() -> None:
        cluster, time = Cluster(), FakeTime()
        cluster.put("a", labels={"app": "vllm"})
        api = FakeApi(cluster)
        api.piece = piece
        watch = Reflector(
            api, Selection(PODS, "default", labels), KubernetesSettings(kubernetes_page_size=page_size), time.timing
        )
        async with reading(watch, cluster) as reader:
            for act, turns in steps:
                act(cluster, api, time)
                for _ in range(turns):
                    await asyncio.sleep(0)
            await api.idle()
            assert reader.objects == reader.expected()
            api.send_bookmark()
            await api.idle()
            assert watch.problem is None

    asyncio.run(run())
