"""Following a resource through everything that an API server, and what is between, can do to a watch."""

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from services.watcher.kubernetes.client import Page
from services.watcher.kubernetes.errors import (
    ApiError,
    BadAnswer,
    ConnectionFailed,
    ErrorKind,
    Expired,
    Forbidden,
    NotFound,
    TimedOut,
    Unavailable,
    error_from_response,
)
from services.watcher.kubernetes.reflector import Paging, Reflector, list_all
from services.watcher.kubernetes.resource import JsonObject, Selection
from services.watcher.kubernetes.settings import KubernetesSettings
from tests.fake_kubernetes.api import FakeApi
from tests.fake_kubernetes.cluster import PODS, Cluster, line, status
from tests.fake_kubernetes.reader import Reader, reading
from tests.fake_kubernetes.timing import FakeTime, until

ALL_PODS = Selection(PODS, "default")
SETTINGS = KubernetesSettings()


class Peer:
    """A cluster with two pods, its API, and somebody who follows the pods."""

    def __init__(self, selection: Selection = ALL_PODS, settings: KubernetesSettings = SETTINGS) -> None:
        self.cluster = Cluster()
        self.cluster.put("a", labels={"app": "vllm"})
        self.cluster.put("b", labels={"app": "vllm"})
        self.time = FakeTime()
        self.api = FakeApi(self.cluster)
        self.watch = Reflector(self.api, selection, settings, self.time.timing)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[Reader]:
        """From the moment at which the reader has caught up, to one at which it has again."""
        async with reading(self.watch, self.cluster) as reader:
            await self.api.idle()
            yield reader
            await self.api.idle()
            assert reader.right
        assert self.api.open == 0


async def test_a_list_and_then_what_changes() -> None:
    peer = Peer()
    async with peer.followed() as reader:
        peer.cluster.put("c")
        await peer.api.idle()
        peer.cluster.put("a", image="new")
        peer.cluster.delete("b")
    assert reader.reports == ["listed a b", "changed c", "changed a", "gone b"]
    assert reader.names == ["a", "c"]


async def test_a_list_in_pages_is_one_list() -> None:
    peer = Peer(settings=KubernetesSettings(kubernetes_page_size=2))
    for name in "cdefg":
        peer.cluster.put(name)
    async with peer.followed() as reader:
        pass
    assert reader.reports == ["listed a b c d e f g"]
    assert [limit for limit, _ in peer.api.pages] == [2, 2, 2, 2]


async def test_page_expiry_during_a_list_starts_the_list_over_in_one_piece() -> None:
    peer = Peer(settings=KubernetesSettings(kubernetes_page_size=1))

    def compact_before_the_second_page() -> None:
        if len(peer.api.pages) == 2:
            peer.cluster.delete("a")
            peer.cluster.compact()

    peer.api.before_page = compact_before_the_second_page
    async with peer.followed() as reader:
        pass
    assert reader.reports == ["listed b"]
    assert [limit for limit, _ in peer.api.pages] == [1, 1, None]
    assert reader.watch.problem is None


async def test_watching_goes_on_without_a_list_after_an_ordinary_end() -> None:
    peer = Peer()
    async with peer.followed() as reader:
        peer.time.now += 300
        peer.api.end()
        await asyncio.sleep(0)
        peer.cluster.put("c")
        await peer.api.idle()
        peer.api.end()
        await peer.api.idle()
        peer.cluster.delete("c")
    assert reader.reports == ["listed a b", "changed c", "gone c"]
    assert peer.api.watches == ["102", "102", "103"]
    assert peer.time.sleeps == []


@pytest.mark.parametrize("at", ["connect", "mid-stream"])
async def test_watching_410_lists_again_at_once(at: str) -> None:
    peer = Peer()
    async with peer.followed() as reader:
        if at == "connect":
            peer.time.now += 300
            peer.cluster.skip(5)
            peer.cluster.compact()
            peer.cluster.states[peer.cluster.version] = {("default", "b"): peer.cluster.objects["default", "b"]}
            peer.api.end()
        else:
            peer.api.send(line("ERROR", status(410, "Expired", "too old resource version: 1 (2)")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    assert reader.reports == ["listed a b", "listed b" if at == "connect" else "listed a b"]
    assert peer.time.sleeps == [0.0]
    assert peer.watch.problem is None


async def test_watching_410_again_and_again_is_a_problem_and_backs_off() -> None:
    """An API server that answers every watch with 410 isn't listed from in a tight loop."""
    peer = Peer()
    peer.api.watch_failures.extend(Expired("watch pods", 410, "Expired") for _ in range(5))
    async with peer.followed() as reader:
        assert reader.reports == ["listed a b", "listed a b", "troubled expired", *["listed a b"] * 4]
    assert peer.time.sleeps[0] == 0.0
    assert all(pause > 0.4 for pause in peer.time.sleeps[1:])
    assert sorted(peer.time.sleeps) == peer.time.sleeps


async def test_watching_bookmarks_move_the_resource_version() -> None:
    """Without them a resource that is quiet for long would have to be listed again."""
    peer = Peer()
    async with peer.followed() as reader:
        peer.cluster.skip(40)
        peer.api.send_bookmark()
        await peer.api.idle()
        peer.cluster.compact()
        peer.time.now += 300
        peer.api.end()
    assert reader.reports == ["listed a b"]
    assert peer.api.watches == ["102", "142"]
    assert peer.watch.resource_version == "142"


async def test_watching_unknown_event_types_are_logged_and_skipped() -> None:
    peer = Peer()
    async with peer.followed() as reader:
        with capture_logs() as logs:
            peer.api.send(line("RENAMED", peer.cluster.objects["default", "a"]))
            await peer.api.idle()
        peer.cluster.put("c")
    assert reader.reports == ["listed a b", "changed c"]
    assert [entry["type"] for entry in logs if entry["event"] == "kubernetes.watch.unknown_event"] == ["RENAMED"]


ERROR_500 = line("ERROR", status(500, "InternalError", "etcd event received with PrevKv=nil"))


@pytest.mark.parametrize(
    ("sent", "kind", "text"),
    [
        (ERROR_500, "unavailable", "etcd event received with PrevKv=nil"),
        (line("ERROR", {"code": "four hundred"}), "unavailable", "Status object is expected"),
        (b"<html>\n", "bad_answer", "<html>"),
        (b'{"type": "ADDED"}\n', "bad_answer", "ADDED"),
        (b'{"type": "ADDED", "object": []}\n', "bad_answer", "ADDED"),
        (b'{"type": "ADDED", "object": {"metadata": {"name": "x"}}}\n', "bad_answer", "resourceVersion"),
        (b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "9"}}}\n', "bad_answer", "metadata.name"),
        (b'{"type": "BOOKMARK", "object": {"metadata": {}}}\n', "bad_answer", "resourceVersion"),
        (
            b'{"type": "DELETED", "object": {"metadata": {"name": "a", "resourceVersion": 9}}}\n',
            "bad_answer",
            "resourceVersion",
        ),
        (b"\xff\xfe\n", "bad_answer", "isn't an event"),
        (b'{"type": "ADDED", "object": ' + b'{"a":' * 100_000 + b"\n", "bad_answer", "isn't an event"),
        (b"x" * 1_000_001, "bad_answer", "longer than the limit of 1M bytes"),
    ],
    ids=lambda data: str(data[:50]),
)
async def test_watching_what_says_nothing_of_use_lists_again_after_a_pause(sent: bytes, kind: str, text: str) -> None:
    """What it should have said is lost, and only a list brings it."""
    peer = Peer(settings=KubernetesSettings(kubernetes_line_limit=1_000_000))
    async with peer.followed() as reader:
        peer.api.send(sent)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert reader.reports == ["listed a b", f"troubled {kind}", "listed a b"]
    assert text in reader.problems[0].text
    assert len(reader.problems[0].text) < 400
    assert [0.25 <= pause <= 0.5 for pause in peer.time.sleeps] == [True]


async def test_watching_a_broken_connection_goes_on_from_the_last_event() -> None:
    """Half an event that came before the break comes again, whole."""
    peer = Peer()
    async with peer.followed() as reader:
        peer.cluster.put("c")
        await peer.api.idle()
        peer.api.send(line("ADDED", peer.cluster.objects["default", "a"])[:-20])
        peer.api.fail()
        await peer.api.idle()
        peer.cluster.put("d")
        peer.cluster.delete("a")
    assert reader.reports == ["listed a b", "changed c", "changed d", "gone a"]
    assert peer.api.watches == ["102", "103"]
    assert peer.watch.problem is None
    assert peer.time.sleeps == []


async def test_watching_that_ends_as_soon_as_it_begins_backs_off() -> None:
    """A server, or a proxy, that closes every watch at once isn't asked in a tight loop."""
    peer = Peer()
    reader = Reader(peer.watch, peer.cluster)
    task = asyncio.create_task(reader.run())
    try:
        for _ in range(400):
            if len(peer.time.sleeps) >= 8:
                break
            await asyncio.sleep(0)
            peer.api.end()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(peer.time.sleeps) >= 8
    assert peer.time.sleeps[7] > 10
    assert ["ends as soon as it has begun" in problem.text for problem in reader.problems] == [True]


@pytest.mark.parametrize("orderly", [True, False])
async def test_watches_that_end_after_each_event_are_opened_once_a_second(orderly: bool) -> None:
    peer = Peer()
    async with peer.followed() as reader:
        for name in "cdef":
            peer.cluster.put(name)
            await peer.api.idle()
            if orderly:
                peer.api.end()
            else:
                peer.api.fail()
            await peer.api.idle()
    assert reader.reports == ["listed a b", *(f"changed {name}" for name in "cdef")]
    assert peer.time.sleeps == [1.0] * 3


async def test_a_watch_that_went_wrong_once_it_had_begun_is_trusted_again_when_it_has_brought_something() -> None:
    """That it begins isn't enough: the one before had begun too."""
    peer = Peer()
    async with peer.followed() as reader:
        peer.api.send(b"garbage\n")
        await peer.api.idle()
        assert (peer.watch.in_touch, peer.watch.problem) == (True, reader.problems[0])
        peer.api.send(b"garbage\n")
        await peer.api.idle()
        assert reader.reports == ["listed a b", "troubled bad_answer", "listed a b", "listed a b"]
        peer.api.send_bookmark()
        await peer.api.idle()
        assert peer.watch.problem is None


async def test_a_watch_of_full_length_without_an_event_is_a_success() -> None:
    peer = Peer()
    peer.api.list_failures.extend(ConnectionFailed("refused") for _ in range(3))
    async with peer.followed():
        assert len(peer.time.sleeps) == 3
        peer.time.now += 300
        peer.api.end()
        await peer.api.idle()
        peer.api.send(b"garbage\n")
        await peer.api.idle()
        assert 0.25 <= peer.time.sleeps[3] <= 0.5, "the pauses begin anew"


async def test_five_minutes_without_an_api_server() -> None:
    """Nothing is forgotten meanwhile, pauses stay within their bounds, and the first answer brings the truth."""
    peer = Peer()
    with capture_logs() as logs:
        async with peer.followed() as reader:
            down_until = peer.time.now + 300
            refused = ConnectionFailed("no connection to https://10.96.0.1:443: Connection refused")
            peer.api.down = lambda: refused if peer.time.now < down_until else None
            confirmed = peer.watch.confirmed_at
            peer.api.fail()
            peer.time.now += 2
            await until(lambda: len(peer.time.sleeps) > 2)
            assert reader.names == ["a", "b"]
            assert not reader.watch.in_touch
            assert peer.watch.confirmed_at == confirmed
            assert [problem.kind for problem in reader.problems] == [ErrorKind.UNREACHABLE]
            peer.cluster.delete("a")
            peer.cluster.compact()
    assert reader.reports == ["listed a b", "troubled unreachable", "listed b"]
    events = [entry["event"] for entry in logs]
    assert [events.count(f"kubernetes.watch.{text}") for text in ("failed", "recovered")] == [1, 1]
    assert all(0.25 <= pause <= 30 for pause in peer.time.sleeps)
    assert max(peer.time.sleeps) >= 15
    assert 10 <= len(peer.time.sleeps) <= 30
    assert peer.watch.problem is None
    assert peer.watch.in_touch is False


async def test_another_problem_is_told_too_and_since_is_when_the_trouble_began() -> None:
    peer = Peer()
    peer.api.list_failures.extend(
        [
            ConnectionFailed("Connection refused"),
            ConnectionFailed("Connection refused"),
            Unavailable("list pods", 503, "ServiceUnavailable", "starting"),
            TimedOut("no answer"),
        ]
    )
    async with peer.followed() as reader:
        pass
    assert [problem.kind for problem in reader.problems] == [
        ErrorKind.UNREACHABLE,
        ErrorKind.UNAVAILABLE,
        ErrorKind.TIMEOUT,
    ]
    assert {problem.since for problem in reader.problems} == {1000.0}


BAD_SELECTOR = msgspec.json.encode(status(400, "BadRequest", 'unable to parse requirement: "tier in"'))


@pytest.mark.parametrize(
    ("failure", "text", "shortest", "longest"),
    [
        (Forbidden("list pods", 403, "Forbidden", "no"), "not allowed to list pods (403 Forbidden): no", 24, 36),
        (NotFound("list pools", 404, "NotFound"), "can't list pools: 404 NotFound", 24, 36),
        (error_from_response("list", 400, "Bad Request", "", BAD_SELECTOR), "unable to parse requirement", 24, 36),
        (Unavailable("list pods", 429, "TooManyRequests", "slow down", retry_after=7.0), "slow down", 7, 7),
        (Unavailable("list pods", 503, "ServiceUnavailable", "starting", retry_after=86_400.0), "starting", 120, 120),
    ],
    ids=["forbidden", "not installed", "refused", "retry after", "retry after a day"],
)
@pytest.mark.parametrize("request_", ["list", "watch"])
async def test_what_a_server_answers_decides_when_it_is_asked_again(
    request_: str, failure: ApiError, text: str, shortest: float, longest: float
) -> None:
    peer = Peer()
    (peer.api.list_failures if request_ == "list" else peer.api.watch_failures).extend([failure] * 3)
    async with peer.followed() as reader:
        pass
    troubled = f"troubled {failure.kind.value}"
    if request_ == "list":
        assert reader.reports == [troubled, "listed a b"]
    else:
        assert reader.reports == ["listed a b", troubled, *["listed a b"] * 3]
    assert text in reader.problems[0].text
    assert [shortest <= pause <= longest for pause in peer.time.sleeps] == [True] * 3


async def test_confirmed_at_moves_with_lists_events_and_bookmarks_and_with_nothing_else() -> None:
    peer = Peer()
    before = peer.watch.confirmed_at
    assert before is None
    renamed = line("RENAMED", peer.cluster.objects["default", "a"])
    async with peer.followed():
        assert peer.watch.confirmed_at == 1000.0
        steps: list[tuple[float, Callable[[], None], float]] = [
            (1010.0, lambda: peer.cluster.put("c"), 1010.0),
            (1020.0, peer.api.send_bookmark, 1020.0),
            (1025.0, lambda: peer.api.send(renamed), 1020.0),
            (1030.0, peer.api.end, 1030.0),
            (1030.0, peer.api.fail, 1030.0),
        ]
        for now, act, confirmed in steps:
            peer.time.now = now
            act()
            await peer.api.idle()
            assert peer.watch.confirmed_at == confirmed


@pytest.mark.parametrize(("orderly", "confirmed"), [(True, 1300.0), (False, 1000.0)], ids=["ended", "broken"])
async def test_the_orderly_end_of_a_silent_watch_confirms_all_of_its_time_and_a_break_only_its_beginning(
    orderly: bool, confirmed: float
) -> None:
    peer = Peer()
    held = asyncio.Event()
    async with peer.followed():
        peer.api.before_watch = held.wait
        peer.time.now += 300
        if orderly:
            peer.api.end()
        else:
            peer.api.fail()
        await until(lambda: not peer.watch.in_touch)
        seen = peer.watch.confirmed_at
        held.set()
        await peer.api.idle()
        assert peer.watch.in_touch
    assert seen == confirmed


async def test_a_watch_that_ends_within_an_event_confirms_nothing_and_goes_on_from_before_it() -> None:
    peer = Peer()
    held = asyncio.Event()
    async with peer.followed() as reader:
        peer.api.before_watch = held.wait
        peer.time.now += 300
        peer.api.send(line("ADDED", peer.cluster.objects["default", "a"])[:-20])
        peer.api.end()
        await until(lambda: not peer.watch.in_touch)
        seen = peer.watch.confirmed_at
        held.set()
    assert seen == 1000.0
    assert reader.reports == ["listed a b"]
    assert peer.api.watches == ["102", "102"]


async def test_a_watch_that_stays_open_without_anything_new_confirms_its_beginning() -> None:
    """A server in whose cluster nothing changes sends no bookmarks: an age that only grew would say nothing."""
    peer = Peer()
    async with peer.followed():
        peer.time.now = 1090.0
        peer.api.fail(TimedOut("nothing came for 90s"))
        await peer.api.idle()
        for now, confirmed in ((1090.0, 1000.0), (1090.9, 1000.0), (1091.0, 1090.0), (1100.0, 1090.0)):
            peer.time.now = now
            assert peer.watch.confirmed_at == confirmed


async def test_a_watch_that_fails_as_it_begins_confirms_nothing() -> None:
    peer = Peer()
    async with peer.followed():
        peer.time.now = 1090.0
        peer.api.fail()
        await peer.api.idle()
        down_until = peer.time.now + 60
        peer.api.down = lambda: ConnectionFailed("refused") if peer.time.now < down_until else None
        peer.api.send(line("ERROR", status(410, "Expired")))
        await until(lambda: len(peer.time.sleeps) > 3)
        assert peer.watch.confirmed_at == 1000.0


async def test_a_list_confirms_the_moment_of_asking() -> None:
    peer = Peer()

    def slow() -> None:
        peer.time.now += 25

    peer.api.before_page = slow
    async with peer.followed():
        assert peer.time.now == 1025.0
        assert peer.watch.confirmed_at == 1000.0


async def test_watches_are_asked_for_times_that_differ() -> None:
    """So that watches that began together don't all end together."""
    peer = Peer()
    async with peer.followed() as reader:
        for _ in range(20):
            peer.time.now += 300
            peer.api.end()
            await peer.api.idle()
    assert reader.reports == ["listed a b"]
    assert all(240 <= timeout <= 360 for timeout in peer.api.timeouts)
    assert len(set(peer.api.timeouts)) == len(peer.api.timeouts)


async def test_listed_objects_are_not_held_after_they_were_taken() -> None:
    """5 000 pods that the reader has boiled down to endpoints don't stay in memory until the next change."""

    class Item(dict[str, Any]):
        """A dict that can be referred to weakly."""

    peer = Peer()
    references: list[weakref.ref[Item]] = []

    def arrive(item: JsonObject, _: object) -> JsonObject:
        made = Item(item)
        references.append(weakref.ref(made))
        return made

    watch = Reflector(peer.api, ALL_PODS, SETTINGS, peer.time.timing, arrive)

    async def read() -> None:
        async for report in watch.run():
            del report

    held = asyncio.Event()
    peer.api.before_watch = held.wait
    task = asyncio.create_task(read())
    try:
        await until(lambda: len(peer.api.watches) == 1)
        gc.collect()
        assert [reference() for reference in references] == [None, None]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_list_whose_pages_never_end_is_a_wrong_answer() -> None:
    class Endless:
        async def page(self, *_: object) -> Page:
            return Page([], "1", next="more")

    api: Any = Endless()
    with pytest.raises(BadAnswer, match="more than 10000 pages"):
        await list_all(api, ALL_PODS, Paging(500), lambda item, _: item)


async def test_others_run_while_the_objects_of_a_long_page_are_made() -> None:
    others = 0

    class Long:
        async def page(self, *_: object) -> Page:
            return Page(map(made, range(20)), "1")

    def made(number: int) -> JsonObject:
        time.sleep(0.002)
        return {"metadata": {"name": str(number), "others": others}}

    async def run() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    api: Any = Long()
    running = asyncio.create_task(run())
    items, _ = await list_all(api, ALL_PODS, Paging(500), lambda item, _: item)
    running.cancel()
    assert len(items) == 20
    assert items[-1]["metadata"]["others"] > items[0]["metadata"]["others"]
