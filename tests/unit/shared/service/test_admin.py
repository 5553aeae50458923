"""The admin routes, asked without a network, and the socket that they are served on."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from fastapi import APIRouter, HTTPException, Response
from prometheus_client import CollectorRegistry, Counter, Gauge
from starlette.types import Message

from shared.config.problems import Invalid
from shared.service.admin import AdminServer, InTurn, ProcessPages, build_app
from shared.service.pages import SLICE
from shared.service.readiness import Phase, Readiness
from shared.tasks import cancel
from shared.version import VERSION
from tests.asgi import pieces
from tests.waiting import eventually

STATE: dict[str, Any] = {}


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
async def client(readiness: Readiness) -> AsyncIterator[httpx.AsyncClient]:
    registry = CollectorRegistry()
    Counter("picks", "Picks", registry=registry).inc(3)
    app = build_app(ProcessPages(readiness, registry, _state))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield client


def _state() -> Mapping[str, Any]:
    return STATE


async def test_a_process_that_answers_is_alive(client: httpx.AsyncClient, readiness: Readiness) -> None:
    readiness.phase = Phase.STARTING
    answer = await client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_readiness_is_200_or_503_with_the_reasons(client: httpx.AsyncClient, readiness: Readiness) -> None:
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()) == (
        200,
        {"ready": True, "reasons": {}, "notes": {}, "configurations": []},
    )
    readiness.require("bus", lambda: "no nats-server at nats://127.0.0.1:4222")
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["reasons"]) == (503, {"bus": "no nats-server at nats://127.0.0.1:4222"})


async def test_what_is_amiss_without_standing_in_the_way_is_a_note(
    client: httpx.AsyncClient, readiness: Readiness
) -> None:
    readiness.mention("configuration", lambda: "the last good one holds")
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["notes"]) == (200, {"configuration": "the last good one holds"})


async def test_a_long_list_of_the_state_is_made_item_by_item(readiness: Readiness) -> None:
    state = {"pool": "p", "endpoints": iter([{"id": 1}, {"id": 2}]), "others": iter([]), "peers": []}
    app = build_app(ProcessPages(readiness, CollectorRegistry(), lambda: state))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answer = await client.get("/debug/state")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"pool": "p", "endpoints": [{"id": 1}, {"id": 2}], "others": [], "peers": []}


async def test_the_root_lists_every_path_with_its_summary(readiness: Readiness) -> None:
    router = APIRouter()

    @router.get("/debug/things", summary="What things there are.")
    async def things() -> list[str]:
        return []

    @router.get("/debug/things/{thing_id:path}", summary="One thing.")
    @router.get("/other", summary="One thing.")
    async def thing(thing_id: str = "") -> str:
        return thing_id

    app = build_app(ProcessPages(readiness, CollectorRegistry(), dict), router, title="pointsman shop")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        root, debug = (await client.get("/")).text, (await client.get("/debug")).text
        schema = (await client.get("/openapi.json")).json()
    assert root.splitlines()[0] == debug.splitlines()[0] == f"pointsman shop, version {VERSION}"
    everything, below_debug = (
        {path.strip(): text.strip() for path, _, text in (line.partition("  ") for line in page.splitlines()[2:])}
        for page in (root, debug)
    )
    own = ["/debug/things", "/debug/things/{thing id}", "/other"]
    assert sorted(everything) == sorted(
        ["/", "/debug", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics", "/debug/state", *own]
    )
    assert everything["/debug/things"] == "What things there are."
    assert sorted(below_debug) == ["/debug/state", *own[:2]]
    assert {path.replace("_", " ") for path in schema["paths"]} == set(everything)


async def test_a_refusal_repeats_only_the_beginning_of_what_was_sent(readiness: Readiness) -> None:
    router = APIRouter()

    @router.post("/things")
    async def things(names: list[str]) -> None:
        pass

    app = build_app(ProcessPages(readiness, CollectorRegistry(), dict), router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answer = await client.post("/things", json={"names": [[]] * 10_000})
    assert (answer.status_code, answer.json()["error"].count("[]")) == (400, 6)


async def test_responses_are_typed(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    schemas = {
        (path, status): response["content"]["application/json"]["schema"].get("$ref", "").rpartition("/")[2]
        for path in ("/healthz", "/readyz", "/debug/state")
        for status, response in paths[path]["get"]["responses"].items()
    }
    assert schemas == {
        ("/healthz", "200"): "Health",
        ("/readyz", "200"): "ReadinessPage",
        ("/readyz", "503"): "ReadinessPage",
        ("/debug/state", "200"): "State",
    }


async def test_the_documentation_page_loads_nothing_from_another_origin(client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; connect-src 'self'; ")
    assert "openapi.json" in answer.text
    assert "//" not in answer.text.replace("  //", "").replace("\n// ", "")


async def test_metrics_are_in_prometheus_text_format(client: httpx.AsyncClient) -> None:
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "picks_total 3.0\n" in answer.text


async def test_a_long_page_of_metrics_is_sent_in_slices(readiness: Readiness) -> None:
    registry = CollectorRegistry()
    queue = Gauge("queue", "Queue", ["endpoint"], registry=registry)
    for number in range(3 * SLICE):
        queue.labels(f"{number}").set(number)
    sent = await pieces(build_app(ProcessPages(readiness, registry, dict)), "/metrics")
    counts = [piece.count(b"queue{") for piece in sent]
    assert (max(counts), sum(counts)) == (SLICE, 3 * SLICE)


async def test_the_state_is_json_whatever_is_in_it(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "missing": float("nan"),
        "endless": float("inf"),
        "array": np.array([1.5, float("nan")]),
        "number": np.int64(5),
        "set": frozenset({1}),
        "view": MappingProxyType({"a": 1}),
        "error": ValueError("odd"),
    }
    monkeypatch.setitem(globals(), "STATE", values)
    answer = await client.get("/debug/state")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "missing": None,
        "endless": None,
        "array": [1.5, None],
        "number": 5,
        "set": [1],
        "view": {"a": 1},
        "error": "odd",
    }


async def test_a_taken_port_is_named(readiness: Readiness) -> None:
    app = build_app(ProcessPages(readiness, CollectorRegistry(), _state))
    first = AdminServer(app, "127.0.0.1", 0)
    try:
        with pytest.raises(Invalid) as caught:
            AdminServer(app, "127.0.0.1", first.port)
        assert caught.value.lines() == [
            f"--admin-port: 127.0.0.1:{first.port} is taken by another process; 0 takes a free port"
        ]
    finally:
        first.stop()
        await first.serve()


def test_an_address_of_another_machine_is_named(readiness: Readiness) -> None:
    app = build_app(ProcessPages(readiness, CollectorRegistry(), _state))
    with pytest.raises(Invalid, match=r"--admin-host: '192\.0\.2\.1' is no address of this machine"):
        AdminServer(app, "192.0.2.1", 0)


def test_a_name_that_cant_be_resolved_is_named(readiness: Readiness, monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(_socket: socket.socket, _address: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket.socket, "bind", bind)
    app = build_app(ProcessPages(readiness, CollectorRegistry(), _state))
    with pytest.raises(
        Invalid, match="--admin-host: 'nowhere' is no address of this machine: Name or service not known"
    ):
        AdminServer(app, "nowhere", 0)
    monkeypatch.undo()
    with pytest.raises(Invalid, match=r"--admin-host: 'ä\.\.b' is no host name"):
        AdminServer(app, "ä..b", 0)


@asynccontextmanager
async def served(readiness: Readiness, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[int]:
    """The port of a server with these options."""
    server = AdminServer(build_app(ProcessPages(readiness, CollectorRegistry(), _state)), host, 0, **options)
    serving = asyncio.create_task(server.serve())
    try:
        yield server.port
    finally:
        server.stop()
        await serving


async def ended(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionResetError):
        assert await reader.read() == b""


@pytest.mark.parametrize(
    ("listening", "asked", "status"),
    [
        ("127.0.0.1", "localhost:9090", 200),
        ("127.0.0.1", "127.0.0.2", 200),
        ("127.0.0.1", "[::1]:9090", 200),
        ("127.0.0.1", "Metrics.example:80", 200),
        ("127.0.0.1", None, 200),
        ("127.0.0.1", "evil.example:9090", 403),
        ("127.0.0.1", "127.0.0.1.evil.example", 403),
        ("127.0.0.1", "", 403),
        ("localhost", "evil.example", 403),
        ("::ffff:127.0.0.1", "evil.example", 403),
        ("0.0.0.0", "evil.example", 200),
    ],
)
async def test_on_a_loopback_address_only_requests_for_known_hosts_are_answered(
    readiness: Readiness, listening: str, asked: str | None, status: int
) -> None:
    async with served(readiness, listening, hostnames=("metrics.example",)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        host = "" if asked is None else f"host: {asked}\r\n"
        writer.write(f"GET /healthz HTTP/1.0\r\n{host}\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert int(head.split()[1]) == status
        if status == 403:
            assert msgspec.json.decode(body) == {
                "error": f"{asked!r} is no name of this process; --admin-hostnames lists them"
            }
        writer.close()


async def test_a_request_that_never_ends_is_given_up(readiness: Readiness) -> None:
    async with served(readiness, timeout=0.1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: ")
        await ended(reader)
        writer.close()


async def test_of_too_many_connections_the_idlest_ends(readiness: Readiness) -> None:
    async with served(readiness, timeout=600.0, connections=2) as port:
        (first, one), (second, two) = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for writer, reader in ((two, second), (one, first), (one, first)):
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: here\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"x-content-type-options: nosniff\r\n" in head
            await reader.readuntil(b"}")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.head("/healthz")).status_code == 200
            await ended(second)
            assert not first.at_eof()
        one.close()
        two.close()


FIRST_PAGE = """
import asyncio, sys
from prometheus_client import CollectorRegistry
from shared.service.admin import ProcessPages, build_app
from shared.service.readiness import Readiness

async def ask(path):
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    await build_app(ProcessPages(Readiness(), CollectorRegistry(), dict))(scope, asyncio.Queue().get, send)

async def send(message):
    pass

asyncio.run(ask("/healthz"))
before = {*sys.modules}
asyncio.run(ask("/metrics"))
print(*({*sys.modules} - before))
"""


def test_the_first_page_imports_nothing() -> None:
    found = subprocess.run([sys.executable, "-c", FIRST_PAGE], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


async def test_a_client_that_goes_away_does_not_wait_for_its_turn() -> None:
    turns, gone = asyncio.Semaphore(1), asyncio.Event()
    made, sent, asked = list[str](), list[Message](), [{"type": "http.request", "body": b"", "more_body": False}]

    async def make(client: str) -> Response:
        made.append(client)
        return Response(client)

    async def receive() -> Message:
        if asked:
            return asked.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def stay() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    await turns.acquire()
    leaves = asyncio.create_task(InTurn(turns, partial(make, "leaves"))({"type": "http"}, receive, send))
    stays = asyncio.create_task(InTurn(turns, partial(make, "stays"))({"type": "http"}, stay, send))
    await eventually(lambda: not asked)
    gone.set()
    await eventually(leaves.done)
    assert not stays.done()
    turns.release()
    await stays
    assert (made, [message.get("body") for message in sent]) == (["stays"], [None, b"stays"])
    assert not turns.locked()


async def test_a_request_that_is_refused_while_it_waits_gets_the_refusal() -> None:
    turns = asyncio.Semaphore(1)

    async def make() -> Response:
        raise AssertionError

    async def receive() -> Message:
        raise HTTPException(413, "too long")

    async def send(message: Message) -> None:
        raise AssertionError

    await turns.acquire()
    with pytest.raises(HTTPException, match="too long"):
        await InTurn(turns, make)({"type": "http"}, receive, send)
    turns.release()
    assert not turns.locked()


async def test_a_page_that_is_cancelled_in_its_turn_leaves_it_to_the_next() -> None:
    turns, making = asyncio.Semaphore(1), asyncio.Event()

    async def make() -> Response:
        making.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    page = asyncio.create_task(InTurn(turns, make)({"type": "http"}, receive, send))
    await making.wait()
    await cancel(page)
    assert not turns.locked()


async def test_no_state_is_made_for_a_client_that_has_gone(readiness: Readiness) -> None:
    made = list[int]()

    def state() -> Mapping[str, Any]:
        made.append(1)
        return STATE

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": "/debug/state", "headers": [], "query_string": b""}
    clients = 10
    app = build_app(ProcessPages(readiness, CollectorRegistry(), state))
    await asyncio.gather(*(app(scope, gone, send) for _ in range(clients)))
    assert len(made) < clients
