"""Requests as the API server gets them, and answers that aren't what they should be."""

import asyncio
import gc
import time
from pathlib import Path

import pytest
from aiohttp import web

from services.watcher.kubernetes import client as module
from services.watcher.kubernetes.client import USER_AGENT
from services.watcher.kubernetes.errors import (
    AnswerTooLarge,
    BadAnswer,
    Conflict,
    ConnectionFailed,
    Forbidden,
    NotFound,
    TimedOut,
    TlsFailed,
    Unavailable,
)
from services.watcher.kubernetes.reflector import Paging, list_all
from services.watcher.kubernetes.resource import JsonObject, Resource, Selection
from shared import tasks
from shared.datalayer.objects import ObjectKind
from tests.fake_kubernetes.cluster import PODS
from tests.fake_kubernetes.server import ApiServer, Handler, answer, refusal
from tests.faults.watcher_kubernetes.conftest import Connect

ALL_PODS = Selection(PODS, "default")
POOLS = Resource(ObjectKind("inference.networking.k8s.io", "v1", "InferencePool"), "inferencepools", True)
EVENTS = Resource(ObjectKind("events.k8s.io", "v1", "Event"), "events", True)


async def test_a_list_asks_for_pages_of_what_is_selected(server: ApiServer, connected: Connect) -> None:
    server.cluster.put("c", labels={"app": "vllm"})
    server.cluster.put("d", labels={"app": "other"})
    client = await connected()
    items, version = await list_all(client, Selection(PODS, "default", "app=vllm", "status.phase!=Failed"), Paging(2))
    assert [item["metadata"]["name"] for item in items] == ["a", "b", "c"]
    assert version == "104"
    first, second = server.seen
    chosen = {"labelSelector": "app=vllm", "fieldSelector": "status.phase!=Failed", "limit": "2"}
    assert (first.path, first.query) == ("/api/v1/namespaces/default/pods", chosen)
    assert second.query == {**chosen, "continue": "104@2"}
    assert first.headers["User-Agent"] == USER_AGENT
    assert first.headers["Accept"] == "application/json"
    assert first.headers["Accept-Encoding"] == "identity"
    assert first.headers["Authorization"] == "Bearer secret"


async def test_a_list_that_is_cancelled_within_a_page_leaves_the_garbage_collector_on(
    server: ApiServer, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.in_turns, "__defaults__", (0.0, time.monotonic))  # others run after each pod
    client = await connected()

    def strip(item: JsonObject, _: Resource) -> JsonObject:
        listing.cancel()
        return item

    before = gc.isenabled()
    gc.enable()
    try:
        listing = asyncio.create_task(list_all(client, ALL_PODS, Paging(500), strip))
        with pytest.raises(asyncio.CancelledError) as error:
            await listing
        assert error.tb is not None, "it keeps whatever the list has left"
        assert gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()


async def test_metadata_alone_is_asked_for_by_the_accept_header(server: ApiServer, connected: Connect) -> None:
    client = await connected()
    selection = Selection(PODS, "default", metadata_only=True)
    await client.page(selection, 500)
    async with client.stream(selection, "102", 30.0):
        pass
    accepted = [seen.headers["Accept"] for seen in server.seen]
    assert accepted == [
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
    ]


async def test_a_watch_asks_for_bookmarks_and_for_its_time(server: ApiServer, connected: Connect) -> None:
    client = await connected()
    async with client.stream(Selection(PODS, "default", "app=vllm"), "102", 287.3) as chunks:
        server.cluster.put("c", labels={"app": "vllm"})
        assert b'"ADDED"' in await anext(chunks)
    assert server.seen[0].query == {
        "labelSelector": "app=vllm",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "102",
        "timeoutSeconds": "287",
    }


async def test_server_side_apply_names_the_field_manager(server: ApiServer, connected: Connect) -> None:
    server.next.append(answer(200, {"kind": "InferencePool", "metadata": {"name": "p"}}))
    body = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "p"}}
    client = await connected()
    await client.apply(POOLS, "p", body, namespace="x", field_manager="pointsman", subresource="status")
    seen = server.seen[0]
    assert (seen.method, seen.path, seen.body) == ("PATCH", POOLS.path("x", "p", "status"), body)
    assert seen.query == {"fieldManager": "pointsman", "force": "false"}
    assert seen.headers["Content-Type"] == "application/apply-patch+yaml"


async def test_an_object_is_created(server: ApiServer, connected: Connect) -> None:
    server.next.append(answer(201, {"kind": "Event", "metadata": {"name": "e"}}))
    made = await (await connected()).create(EVENTS, {"metadata": {"generateName": "p."}}, namespace="x")
    seen = server.seen[0]
    assert (seen.method, seen.path) == ("POST", "/apis/events.k8s.io/v1/namespaces/x/events")
    assert seen.body == {"metadata": {"generateName": "p."}}
    assert made["metadata"] == {"name": "e"}


async def test_an_apiserver_that_is_down_refuses_connections(server: ApiServer, connected: Connect) -> None:
    client = await connected()
    await server.stop()
    with pytest.raises(ConnectionFailed, match=rf"no connection to {server.url}: .*refused") as caught:
        await client.page(ALL_PODS, 500)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("scheme", "host", "expected", "reason"),
    [
        ("http", "apiserver.invalid:6443", ConnectionFailed, "the name in {} can't be looked up"),
        ("https", "", TlsFailed, "no TLS with {}"),
    ],
)
async def test_what_is_no_api_server_is_named(
    server: ApiServer,
    connected: Connect,
    tmp_path: Path,
    scheme: str,
    host: str,
    expected: type[Exception],
    reason: str,
) -> None:
    url = f"{scheme}://{host or server.url.removeprefix('http://')}"
    client = await connected(kubeconfig=server.kubeconfig(tmp_path / "other", server=url))
    with pytest.raises(expected, match=reason.format(url)):
        await client.page(ALL_PODS, 500)


def sends(data: bytes, kind: str = "application/json", length: str = "", more: bytes = b"") -> Handler:
    """These bytes, then others again and again for seconds, or the connection's end where there are less than said."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind, **({"Content-Length": length} if length else {})})
        await response.prepare(request)
        await response.write(data)
        for _ in range(100 if more else 0):
            await response.write(more)
            await asyncio.sleep(0.02)
        if length:
            assert request.transport is not None
            request.transport.close()
        return response

    return handle


NO_LISTS = (
    *(b"", b"[]", b"{", b"\xff", b'{"items":[]}'),
    b'{"metadata":{"resourceVersion":"1"},"items":{"a":1}}',
    b'{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{}}]}',
    b'{"metadata":{"resourceVersion":"1"},"items":[1]}',
    b'{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a","resourceVersion":"1"},"x":1e999}]}',
    b'{"metadata":{"resourceVersion":"1"},"items":' + b"[" * 100_000,
)
WHAT = {
    "list": "list pods in namespace default",
    "watch": "watch pods in namespace default",
    "patch": "patch pods/status default/a",
}
CONFLICT = 'conflict with "gateway": .status.parents'


@pytest.mark.parametrize(
    ("handler", "expected", "reason"),
    [
        (refusal(403, "Forbidden", "cannot"), Forbidden, "not allowed to {what}.*cannot"),
        (refusal(404, "NotFound"), NotFound, "can't {what}: 404"),
        (refusal(409, "Conflict", CONFLICT), Conflict, f"can't {{what}}: .*{CONFLICT}"),
        (refusal(429, "TooManyRequests", Retry_After="3"), Unavailable, "can't {what}"),
        (
            sends(b"<html>Please log in", "text/html"),
            BadAnswer,
            "can't {what}: 200 with text/html",
        ),
    ],
    ids=["forbidden", "not found", "conflict", "too many requests", "somebody's login page"],
)
@pytest.mark.parametrize("verb", ["list", "watch", "patch"])
async def test_an_answer_that_is_a_refusal_is_told_as_such(
    server: ApiServer, connected: Connect, verb: str, handler: Handler, expected: type[Exception], reason: str
) -> None:
    server.next.append(handler)
    client = await connected()

    async def ask() -> None:
        if verb == "list":
            await client.page(ALL_PODS, 500)
        elif verb == "watch":
            await client.stream(ALL_PODS, "102", 30.0).__aenter__()
        else:
            await client.apply(PODS, "a", {}, namespace="default", field_manager="pointsman", subresource="status")

    with pytest.raises(expected, match=reason.format(what=WHAT[verb])) as caught:
        await ask()
    assert getattr(caught.value, "retry_after", None) == (3.0 if expected is Unavailable else None)


@pytest.mark.parametrize(
    ("handler", "expected", "reason"),
    [
        (sends(b'{"items":[', length="1000"), ConnectionFailed, "broke off"),
        (sends(b" ", more=b" "), TimedOut, "didn't answer completely within 200ms"),
        *((sends(body), BadAnswer, "") for body in NO_LISTS),
    ],
)
async def test_an_answer_that_is_no_list_is_told(
    server: ApiServer, connected: Connect, handler: Handler, expected: type[Exception], reason: str
) -> None:
    server.next.append(handler)
    timeout = 0.2 if expected is TimedOut else 30.0
    with pytest.raises(expected, match=reason or None):
        list((await (await connected(kubernetes_request_timeout=timeout)).page(ALL_PODS, 500)).items)


@pytest.mark.parametrize("limited", ["a page", "any answer"])
async def test_a_page_that_is_too_large_is_asked_for_with_fewer_objects(
    server: ApiServer, connected: Connect, monkeypatch: pytest.MonkeyPatch, limited: str
) -> None:
    for name in "cdefg":
        server.cluster.put(name)
    client = await connected(**{} if limited == "a page" else {"kubernetes_answer_limit": 600})
    if limited == "a page":
        monkeypatch.setattr(module, "MAX_PAGE", 600)
    paging = Paging(11)
    items, _ = await list_all(client, ALL_PODS, paging)
    assert [item["metadata"]["name"] for item in items] == list("abcdefg")
    assert [seen.query["limit"] for seen in server.seen] == ["11", "2", "2", "2", "2"]
    server.seen.clear()
    for _ in range(2):
        await list_all(client, ALL_PODS, paging)
    assert [seen.query["limit"] for seen in server.seen] == ["2", "2", "2", "2", "4", *["1"] * 7]


async def test_an_object_that_is_too_large_is_told_with_the_setting(server: ApiServer, connected: Connect) -> None:
    client = await connected(kubernetes_answer_limit=100)
    reason = r"can't list pods in namespace default: .*larger than the limit of 100 bytes \(--kubernetes-answer-limit\)"
    with pytest.raises(BadAnswer, match=f"{reason}, and it has a single Pod"):
        await list_all(client, ALL_PODS, Paging(4))
    assert [seen.query["limit"] for seen in server.seen] == ["4", "1"]


async def test_an_object_may_be_larger_than_a_page_of_several(
    server: ApiServer, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PAGE", 100)
    client = await connected()
    assert [len(list((await client.page(ALL_PODS, limit)).items)) for limit in (None, 1)] == [2, 1]
    with pytest.raises(AnswerTooLarge, match=r"limit of 100 bytes$"):
        await client.page(ALL_PODS, 2)


async def test_a_list_of_nothing_may_have_null_for_items(server: ApiServer, connected: Connect) -> None:
    server.next.append(answer(200, {"metadata": {"resourceVersion": "1"}, "items": None}))
    assert list((await (await connected()).page(ALL_PODS, 500)).items) == []


async def test_a_server_that_does_not_speak_http(connected: Connect, server: ApiServer, tmp_path: Path) -> None:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(speak, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
        client = await connected(kubeconfig=server.kubeconfig(tmp_path / "other", server=url))
        with pytest.raises(BadAnswer, match=f"{url} doesn't speak HTTP as expected"):
            await client.page(ALL_PODS, 500)
    finally:
        other.close()
        await other.wait_closed()


async def test_one_pool_of_connections_serves_all_requests(server: ApiServer, connected: Connect) -> None:
    ports = set()

    async def note(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    server.paths["/api"] = note
    client = await connected()
    for _ in range(5):
        await client.page(ALL_PODS, 500)
    assert len(ports) == 1
