"""A picker's process and clients that aren't ours: gRPC for Go, nghttp and h2load."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.picker.transport.ext_proc import METHOD
from tests.certificates import Authority
from tests.http2_peers import find_go_client, find_nghttp, found
from tests.nats import NatsServer
from tests.protocol.collector.harness import Owner, endpoint
from tests.protocol.picker.process import PORTS, Picker
from tests.unit.services.picker.extproc.proxy import LEAN, body, headers, response_headers, response_trailers
from tests.unit.services.picker.transport.http2.peer import message
from tests.waiting import eventually

DESTINATION = "127.0.0.1:8000"
PROMPT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
CONVERSATION = (
    headers({":method": "POST", ":path": "/v1/chat/completions"}, modes=LEAN),
    body(PROMPT, end=True),
    response_headers(served=DESTINATION),
    response_trailers(),
)
HEALTH = "/grpc.health.v1.Health/Check"
GRPC = ("-H", "content-type: application/grpc", "-H", "te: trailers")


@pytest.fixture(scope="module")
def go_client() -> Path:
    return found(find_go_client)


@pytest.fixture(scope="module")
def nghttp() -> dict[str, Path]:
    return found(find_nghttp)


@asynccontextmanager
async def picker(nats: NatsServer, owner: Owner, folder: Path, *flags: str) -> AsyncIterator[Picker]:
    """A process with an endpoint. At the end none of its streams is open."""
    await owner.publish([endpoint("a", 8000)])
    process = Picker(nats.url, "p", folder / "log", *PORTS, *flags)
    try:
        await process.ready()
        yield process
        left: dict[str, Any] = {}

        async def nothing_is_open() -> bool:
            left["streams"] = await process.metric("pointsman_ext_proc_open_streams")
            left["exchanges"] = (await process.state())["open_exchanges"]
            return not any(left.values())

        await eventually(nothing_is_open, lambda: left)
    finally:
        process.kill()


async def told(*command: object, given: str = "") -> str:
    """What a program prints that is given this text, and ends well."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*map(str, command), stdin=pipe, stdout=pipe)
    try:
        printed, _ = await process.communicate(given.encode())
    except asyncio.CancelledError:
        process.kill()
        raise
    assert process.returncode == 0
    return printed.decode()


def outcome(
    *answers: str, count: int = 1, code: str = "OK", destination: str = DESTINATION, echoed: bool = False
) -> dict[str, Any]:
    return {"answers": [*answers], "destination": destination, "echoed": echoed, "code": code, "count": count}


REQUEST = ("request headers", "request body")
ALL = (*REQUEST, "response headers", "response trailers")
STREAMED = (*REQUEST, "response headers", "response body")
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "four messages": ({"body": 1_000}, outcome(*ALL)),
    "a body of 8 MB": ({"body": 8 * 2**20}, outcome(*ALL)),
    "a body beyond a message's limit": (
        {"body": 20 * 2**20},
        outcome("request headers", code="ResourceExhausted", destination=""),
    ),
    "bodies in pieces, larger than all windows": (
        {"duplex": True, "body": 3 * 2**20, "response": 6 * 2**20},
        outcome(*STREAMED, echoed=True),
    ),
    "compressed messages": ({"gzip": True, "body": 2**20}, outcome(*ALL)),
    "many streams": ({"streams": 400, "body": 1_000}, outcome(*ALL, count=400)),
    "many streams with bodies in pieces": (
        {"streams": 40, "duplex": True, "body": 2**17, "response": 2**17},
        outcome(*STREAMED, count=40, echoed=True),
    ),
    "calls that are cancelled": (
        {"streams": 40, "cancel": "request body"},
        outcome(*REQUEST, code="Canceled", count=40),
    ),
    "calls whose deadline is over": (
        {"streams": 40, "deadline": 200},
        outcome(code="DeadlineExceeded", destination="", count=40),
    ),
    "an unknown method": ({"method": "/no.Such/Method"}, outcome(code="Unimplemented", destination="")),
    "health": ({"health": True}, {**outcome(destination=""), "answers": ["SERVING"]}),
    "four messages afterwards": ({"body": 1_000}, outcome(*ALL)),
}


@pytest.mark.parametrize(("transport", "tls"), [("http2", False), ("http2", True), ("grpcio", False), ("grpcio", True)])
async def test_a_client_in_go_has_its_conversations(
    go_client: Path, transport: str, tls: bool, nats: NatsServer, owner: Owner, tmp_path: Path
) -> None:
    """With TLS, both sides have a certificate; a client without one isn't served."""
    flags = [f"--transport={transport}", f"--secure-serving={str(tls).lower()}"]
    trust: list[object] = []
    own: list[object] = []
    if tls:
        authority = Authority(tmp_path, "ca")
        for source, name in zip(authority.issue(), ("tls.crt", "tls.key"), strict=True):
            source.rename(tmp_path / name)
        flags += [f"--cert-path={tmp_path}", f"--client-ca-file={authority.ca}"]
        certificate, key = authority.issue()
        trust, own = ["-ca", authority.ca], ["-cert", certificate, "-key", key]
    async with picker(nats, owner, tmp_path, *flags) as process:
        client = (go_client, "-address", f"127.0.0.1:{(await process.state())['grpc_port']}", *trust)
        # grpcio refuses what is compressed
        cases = {name: case for name, case in CASES.items() if transport == "http2" or "gzip" not in case[0]}
        asked = [json.dumps({"name": name, **case}) for name, (case, _) in cases.items()]
        printed = await told(*client, *own, given="\n".join(asked))
        outcomes = {row["name"]: row["outcomes"] for row in map(json.loads, printed.splitlines())}
        assert outcomes == {name: [expected] for name, (_, expected) in cases.items()}
        if tls:
            (refused,) = json.loads(await told(*client, given='{"health": true}'))["outcomes"]
            assert refused["code"] == "Unavailable"


ANSWER = {":status: 200", "grpc-status: 0"}
NGHTTP: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "a conversation": (GRPC, ANSWER),
    "without a table of headers": ((*GRPC, "--header-table-size=0"), ANSWER),
    "with a table of headers that grows": ((*GRPC, "--header-table-size=0", "--header-table-size=8K"), ANSWER),
    "with windows of 15 bytes": ((*GRPC, "--window-bits=4"), ANSWER),
    "with padding": ((*GRPC, "--padding=200"), ANSWER),
    "with trailers": ((*GRPC, "--trailer=x: y"), ANSWER),
    "without a content-length": ((*GRPC, "--no-content-length"), ANSWER),
    "of JSON": (("-H", "content-type: application/json"), {":status: 415"}),
    "of another method": ((*GRPC, "-H", ":method: PUT"), {":status: 405"}),
    "of an unknown method": ((*GRPC, "-H", ":path: /no.Such/Method"), {":status: 200", "grpc-status: 12"}),
    "of an unknown encoding": ((*GRPC, "-H", "grpc-encoding: br"), {":status: 200", "grpc-status: 12"}),
}
_STATUS = re.compile(r"recv \(stream_id=\d+\) ((?::|grpc-)status: \d+)")
AT_ONCE = 20


@pytest.fixture
def conversation(tmp_path: Path) -> Path:
    """A file with all messages of a conversation, as gRPC frames them."""
    path = tmp_path / "messages"
    path.write_bytes(b"".join(message(request.SerializeToString()) for request in CONVERSATION))
    return path


async def test_nghttp_is_answered(
    nghttp: dict[str, Path], conversation: Path, nats: NatsServer, owner: Owner, tmp_path: Path
) -> None:
    check = tmp_path / "check"
    check.write_bytes(message(b""))
    async with picker(nats, owner, tmp_path, "--secure-serving=false") as process:
        state = await process.state()
        served, answers = {}, {}
        for name, (flags, expected) in NGHTTP.items():
            url = f"http://127.0.0.1:{state['grpc_port']}{METHOD}"
            printed = await told(
                nghttp["nghttp"], "-nv", f"--multiply={AT_ONCE}", f"--data={conversation}", *flags, url
            )
            served[name] = Counter(_STATUS.findall(printed))
            answers[name] = Counter(dict.fromkeys(expected, AT_ONCE))
        assert served == answers
        url = f"http://127.0.0.1:{state['grpc_health_port']}{HEALTH}"
        printed = await told(nghttp["nghttp"], "-nv", f"--data={check}", *GRPC, url)
        assert set(_STATUS.findall(printed)) == ANSWER


@pytest.mark.parametrize("tls", [False, True])
async def test_h2load_finds_no_stream_that_fails(
    nghttp: dict[str, Path], conversation: Path, tls: bool, nats: NatsServer, owner: Owner, tmp_path: Path
) -> None:
    count = 3_000
    async with picker(nats, owner, tmp_path, f"--secure-serving={str(tls).lower()}") as process:
        url = f"http{'s' * tls}://127.0.0.1:{(await process.state())['grpc_port']}{METHOD}"
        load = ("--requests", str(count), "--clients=10", "--max-concurrent-streams=20", f"--data={conversation}")
        printed = await told(nghttp["h2load"], *load, *GRPC, url)
        assert f" {count} done, {count} succeeded, 0 failed, 0 errored, 0 timeout\n" in printed
        assert f"status codes: {count} 2xx, 0 3xx, 0 4xx, 0 5xx\n" in printed
        assert await process.metric("pointsman_ext_proc_streams_total", outcome="finished") == count
        assert await process.metric("pointsman_picker_picks_total") == count
