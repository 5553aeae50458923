"""Plugins that learn how requests end."""

from collections.abc import Callable
from typing import Any, ClassVar

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.request import Refusal
from services.picker.request_stream import RequestStream
from services.picker.responses.usage import NOTHING
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import CompletionProcessor, PreRequest
from services.picker.scheduling.record import Exchange
from services.picker.transport.ext_proc import SERVICE
from tests.ext_proc_server import ExtProcServer
from tests.unit.services.picker.extproc.proxy import (
    FULL_DUPLEX,
    LEAN,
    body,
    headers,
    response_body,
    response_headers,
    response_trailers,
    trailers,
)
from tests.unit.services.picker.handler import refused
from tests.unit.services.picker.hooked import EVENTS, JSON, LAST_EVENT, PATH, USAGE, World, answered
from tests.waiting import eventually

GRPC: Any = grpc.aio


class Ends(CompletionProcessor):
    """Notes how each request ended."""

    TYPE = "ends"
    ended: ClassVar[list[dict[str, Any]]]

    def completed(self, exchange: Exchange) -> None:
        self.ended.append(
            {
                "request": exchange.request_id,
                "endpoint": exchange.endpoint,
                "status": exchange.status,
                "refused": exchange.refusal and exchange.refusal.status,
                "aborted": exchange.aborted,
                "usage": exchange.usage,
                "seconds": exchange.seconds,
            }
        )


class BadEnds(CompletionProcessor):
    TYPE = "bad-ends"

    def completed(self, exchange: Exchange) -> None:
        raise KeyError("lists")


class Doorman(PreRequest):
    """Refuses after the pick."""

    TYPE = "doorman"

    def pre_request(self, cycle: Cycle, picked: tuple[int, ...]) -> Refusal:
        return Refusal(status=429, message="full")


@pytest.fixture(autouse=True)
def _nothing_has_ended() -> None:
    Ends.ended = []


def goes_well(world: World) -> None:
    stream, _ = world.ask(FULL_DUPLEX)
    world.now += 2.0
    world.say(stream, answered(), response_body(JSON, end=True))
    stream.end()


def in_lean_mode(world: World) -> None:
    stream, _ = world.ask()
    world.say(stream, response_headers(served="10.0.0.2:8000"), response_trailers())
    stream.end()


def fails_at_the_server(world: World) -> None:
    stream, _ = world.ask()
    world.say(stream, response_headers(500, end=True, served="10.0.0.1:8000"))
    stream.end()


def before_the_response(world: World) -> None:
    stream, _ = world.ask()
    stream.end()


def during_the_response(world: World) -> None:
    stream, _ = world.ask(FULL_DUPLEX)
    world.say(stream, answered(EVENTS), response_body(LAST_EVENT))
    stream.end()


def before_its_answers_are_made(world: World) -> None:
    """A large request is decided in steps; the stream ends between the decision and its answers."""
    stream = RequestStream(world.handler)
    text = b'{"model": "m", "prompt": "%s"}' % (b"x" * 2**21)
    world.say(stream, headers(PATH, modes=LEAN))
    steps = iter(stream.receive(body(text, end=True).SerializeToString()))
    while not world.ring.of_request("mine", 10):
        assert next(steps) == b""
    stream.end()


def without_a_cached_prefix(world: World) -> None:
    stream, answers = world.ask(prefer="if-available")
    assert refused(answers).status == 412
    stream.end()


def after_a_large_request(world: World) -> None:
    stream, _ = world.ask(size=2**21)
    world.say(stream, answered(), response_trailers())
    stream.end()


def ended(*names: str) -> list[tuple[Any, ...]]:
    """How requests ended: these facts of each."""
    return [tuple(end[name] for name in names) for end in Ends.ended]


ALL = ("endpoint", "status", "refused", "aborted", "usage", "seconds")


@pytest.mark.parametrize(
    ("happens", "ends"),
    [
        (goes_well, ("a1", 200, None, False, USAGE, 2.0)),
        (in_lean_mode, ("a2", 200, None, False, NOTHING, 0.0)),
        (fails_at_the_server, ("a1", 500, None, False, NOTHING, 0.0)),
        (before_the_response, ("", None, None, True, NOTHING, 0.0)),
        (during_the_response, ("a1", 200, None, True, USAGE, 0.0)),
        (before_its_answers_are_made, ("", None, None, True, NOTHING, 0.0)),
        (without_a_cached_prefix, ("", None, 412, False, NOTHING, 0.0)),
        (after_a_large_request, ("a1", 200, None, False, NOTHING, 0.0)),
    ],
)
def test_a_scheduled_request_completes_once_however_it_ends(
    happens: Callable[[World], None], ends: tuple[Any, ...]
) -> None:
    world = World(Ends)
    happens(world)
    assert ended(*ALL) == [ends]
    assert world.load == {}


@pytest.mark.parametrize("size", [100, 2**21], ids=["small", "large"])
def test_a_request_that_is_refused_after_the_pick_completes_once(size: int) -> None:
    world = World(Doorman, Ends)
    stream, answers = world.ask(size=size)
    assert refused(answers).status == 429
    assert ended("refused", "aborted") == [(429, False)]
    stream.end()
    assert len(Ends.ended) == 1


@pytest.mark.parametrize("message", [b'{"prompt": "no model"}', b"no JSON"])
def test_a_request_for_which_nothing_was_picked_does_not_complete(message: bytes) -> None:
    world = World(Ends)
    stream, answers = world.begin(headers(PATH, modes=LEAN), body(message, end=True))
    assert refused(answers).status == 400
    stream.end()
    assert Ends.ended == []


def test_the_load_of_a_request_is_released_before_it_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    world, seen = World(Ends), []
    monkeypatch.setattr(Ends, "completed", lambda *_: seen.append(world.load))
    goes_well(world)
    assert seen == [{}]


def test_a_plugin_that_fails_at_the_end_costs_the_others_nothing() -> None:
    world = World(BadEnds, Ends)
    goes_well(world)
    assert ended("status") == [(200,)]
    assert (world.failures, world.counted) == ([("bad-ends", "completion processor")], ["bad-ends"])
    assert world.load == {}


def test_a_request_ends_with_the_plugins_that_saw_its_beginning() -> None:
    world = World(Ends)
    before, _ = world.ask()
    world.configure()
    after, _ = world.ask()
    before.end()
    after.end()
    assert len(Ends.ended) == 1


async def test_the_end_of_the_picker_completes_open_requests() -> None:
    world = World(Ends)
    server = ExtProcServer(lambda: RequestStream(world.handler), port=0)
    await server.start()
    async with GRPC.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.stream_stream(f"/{SERVICE}/Process")()
        for message in (headers(PATH, modes=LEAN), body(b'{"model": "m", "prompt": "x"}', end=True)):
            await call.write(message.SerializeToString())
        await eventually(lambda: world.load == {"a1": 1}, "the request is routed")
        await server.stop(0)
        await eventually(lambda: server.open == 0, "the stream ends")
    assert ended("request", "aborted") == [("mine", True)]
    assert world.load == {}


MESSAGES = st.sampled_from(
    [
        headers(PATH, modes=LEAN),
        headers(PATH, modes=FULL_DUPLEX),
        headers({**PATH, ":method": "GET"}, modes=LEAN, end=True),
        headers({**PATH, "prefer": "if-available"}, modes=LEAN),
        body(b'{"model": "m", "prompt": "x"}', end=True),
        body(b'{"model": "m", '),
        body(b'"prompt": "x"}', end=True),
        trailers(),
        answered(),
        answered(EVENTS),
        response_headers(503, end=True),
        response_body(LAST_EVENT),
        response_body(JSON, end=True),
        response_trailers(),
    ]
)


@given(messages=st.lists(MESSAGES, max_size=8))
def test_in_whatever_order_messages_come_a_request_completes_once_if_an_endpoint_was_picked(
    messages: list[Any],
) -> None:
    Ends.ended = []
    world = World(Ends)
    stream = RequestStream(world.handler)
    world.say(stream, *messages)
    picked = [decision for decision in world.ring.newest(10) if decision.picked]
    stream.end()
    assert len(Ends.ended) == len(picked)
    assert world.load == {}
