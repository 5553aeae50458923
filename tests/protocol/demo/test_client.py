"""The demo's client against a server that answers well, badly, or not to the end."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from pointsman.demo.client import ATTEMPTS, SERVED_BY, Client
from pointsman.demo.tally import Tally
from pointsman.demo.workload import Workload
from tests.waiting import eventually

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def loaded(handler: Handler, *, rate: float = 200.0, **options: Any) -> AsyncIterator[tuple[Client, Tally]]:
    """A client, and its tally, of a server whose every POST is handled by `handler`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await handler(request, await request.json())

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    tally = Tally()
    try:
        async with Client(f"http://127.0.0.1:{port}", Workload(rate, 1), tally, **options) as client:
            yield client, tally
    finally:
        await runner.cleanup()


async def send(client: Client, tally: Tally, count: int) -> None:
    """Run the load until so many requests were sent, and wait for their outcomes."""
    running = asyncio.create_task(client.run())
    await eventually(lambda: tally.sent >= count)
    running.cancel()
    await client.finish()


def pieces(body: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    """A right answer to the request: one object, or the events of a stream."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": body["max_tokens"],
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    part = {"content": "text"}
    chat = "messages" in body
    if not body.get("stream"):
        choice = {"finish_reason": "length"} | ({"message": part} if chat else {"text": "text"})
        return [{"model": body["model"], "choices": [choice], "usage": usage} | changes]
    choice = {"finish_reason": "length"} | ({"delta": part} if chat else {"text": "text"})
    return [
        {"model": body["model"], "choices": [choice]} | changes,
        {"model": body["model"], "choices": [], "usage": usage} | changes,
    ]


async def right(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await answer(request, body, name="model-1")


async def answer(request: web.Request, body: dict[str, Any], *, name: str, **changes: Any) -> web.StreamResponse:
    parts = pieces(body, **changes)
    if not body.get("stream"):
        return web.json_response(parts[0], headers={SERVED_BY: name})
    response = web.StreamResponse(headers={SERVED_BY: name})
    await response.prepare(request)
    for part in parts:
        await response.write(b"data: " + json.dumps(part).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def broken(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Begins an answer and closes the connection in the middle of it."""
    response = web.StreamResponse(headers={SERVED_BY: "model-1"})
    await response.prepare(request)
    await response.write(b"data: {")
    assert request.transport is not None
    request.transport.abort()
    return response


async def test_right_answers_of_all_kinds() -> None:
    async with loaded(right) as (client, tally):
        await send(client, tally, 60)
    assert tally.succeeded == tally.sent >= 60
    assert not tally.reasons
    assert tally.cached_share() == 0.5
    assert 0 < len(tally.first_token.values()) < len(tally.duration.values())  # those that were streamed
    assert tally.served == {"model-1": tally.succeeded}


async def headless(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Closes the connection without an answer, right after a kill."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def bad_gateway(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """What Envoy answers when the server broke off before its answer was passed on."""
    return web.Response(status=502)


async def oops(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=500, text="oops", headers={SERVED_BY: "model-2"})


async def never(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(600)
    return web.Response()


@pytest.mark.parametrize(
    ("handler", "timeout", "killed", "reason"),
    [
        (oops, 60.0, False, "status 500 from model-2: oops"),
        (broken, 60.0, False, "the response of model-1 broke off: "),
        (never, 0.2, False, "no response: "),
        (headless, 60.0, True, "no response: "),
        (bad_gateway, 60.0, True, "status 502 from Envoy: "),
    ],
)
async def test_what_is_a_failure_and_is_not_sent_again(
    handler: Handler, timeout: float, killed: bool, reason: str
) -> None:
    """Also right after a kill, where no server has answered: Envoy should have sent it to another."""
    asked = 0

    async def handle(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if killed:
            tally.add_kill("model-1", asyncio.get_running_loop().time())
        return await handler(request, body)

    async with loaded(handle, timeout=timeout) as (client, tally):
        await send(client, tally, 10)
    assert tally.failed == tally.sent
    assert asked <= tally.sent, "the server may not have heard of one that was given up"
    assert tally.interrupted == 0
    assert all(each_reason.startswith(reason) for each_reason in tally.reasons)


@pytest.mark.parametrize("lost", [broken, headless, bad_gateway])
async def test_an_answer_that_a_killed_server_had_begun_is_asked_for_again(lost: Handler) -> None:
    """As the client has seen, or Envoy says."""
    cut: dict[str, str] = {}

    async def once(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        key = json.dumps(body)
        if key in cut:
            return await answer(request, body, name="model-2")
        cut[key] = request.headers["x-request-id"]
        tally.add_kill("model-1", asyncio.get_running_loop().time())
        return await lost(request, body)

    async def responding_server(request_id: str) -> str:
        return "model-1" if request_id in cut.values() else ""

    async with loaded(once, responding_server=responding_server) as (client, tally):
        await send(client, tally, 10)
    assert tally.succeeded == tally.sent
    assert tally.interrupted == tally.sent
    assert tally.unseen == (0 if lost is broken else tally.sent)
    assert tally.served == {"model-2": tally.sent}
    assert len(set(cut.values())) == len(cut), "each attempt has a name of its own"


async def test_a_request_that_is_cut_off_again_and_again_has_failed() -> None:
    async def always(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        tally.add_kill("model-1", asyncio.get_running_loop().time())
        return await broken(request, body)

    async with loaded(always) as (client, tally):
        await send(client, tally, 3)
    assert tally.failed == tally.sent
    assert tally.interrupted == ATTEMPTS * tally.sent
    assert tally.reasons == {f"interrupted by killed servers {ATTEMPTS} times": tally.sent}


async def test_no_more_than_so_many_are_open() -> None:
    most = 0
    release = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal most
        most = max(most, tally.open)
        if tally.open >= 4:
            asyncio.get_running_loop().call_later(0.05, release.set)
        await release.wait()
        return await right(request, body)

    async with loaded(slow, max_open=4) as (client, tally):
        await send(client, tally, 12)
    assert most == 4
    assert tally.throttled > 0
    assert tally.succeeded == tally.sent
