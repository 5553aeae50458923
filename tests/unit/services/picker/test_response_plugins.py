"""Plugins that act on responses: they set headers, and learn how bodies come."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from services.picker.extproc.messages import BodyMode
from services.picker.request import Headers
from services.picker.responses.usage import NOTHING, Usage
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import PreRequest, ResponseBodyProcessor, ResponseHeaderProcessor
from services.picker.scheduling.record import Exchange
from shared.plugin import Plugin, Role
from tests.unit.services.picker.extproc.proxy import (
    FULL_DUPLEX,
    LEAN,
    headers,
    response_body,
    response_headers,
    response_trailers,
)
from tests.unit.services.picker.hooked import (
    BUFFERED,
    EVENT,
    EVENTS,
    JSON,
    LAST_EVENT,
    PATH,
    STREAMED,
    USAGE,
    Modes,
    World,
    answered,
    boom,
)


class Session(PreRequest, ResponseHeaderProcessor):
    """Keeps a header of the request, and tells the client who serves it."""

    TYPE = "session"
    ROLES = frozenset({Role.PRE_REQUEST, Role.RESPONSE_HEADERS})

    def pre_request(self, cycle: Cycle, picked: tuple[int, ...]) -> Mapping[str, str]:
        cycle.remember(self, cycle.request.headers.get("x-session-id"))
        return {}

    def response_headers(self, exchange: Exchange, headers: Headers) -> Mapping[str, str]:
        by = headers.get("server")
        return {
            "x-session-token": f"{exchange.remembered.get(self)} {exchange.endpoint} {exchange.status} {by}".strip()
        }


class Stamp(ResponseHeaderProcessor):
    TYPE = "stamp"
    stamps: ClassVar[Callable[[Exchange, Headers], Any]]

    def response_headers(self, exchange: Exchange, headers: Headers) -> Mapping[str, str]:
        return type(self).stamps(exchange, headers)  # type: ignore[no-any-return]


class Meter(ResponseBodyProcessor):
    """What it was called for: `first`, `last` or a chunk between, with the usage so far."""

    TYPE = "meter"
    calls: ClassVar[list[tuple[str, Usage]]]

    def response_body(self, exchange: Exchange, *, first: bool, last: bool) -> None:
        self.calls.append(("first" if first else "last" if last else "chunk", exchange.usage))


class FineMeter(Meter):
    TYPE = "fine-meter"
    EVERY_CHUNK = True


class BadMeter(Meter):
    TYPE = "bad-meter"
    EVERY_CHUNK = True

    def response_body(self, exchange: Exchange, *, first: bool, last: bool) -> None:
        raise KeyError("lists")


@pytest.fixture(autouse=True)
def _nothing_was_called() -> None:
    Meter.calls = []


# Response headers


@pytest.mark.parametrize("served", ["10.0.0.1:8000", "10.0.0.2:8000", "192.0.2.1:80", ""])
def test_a_plugin_sets_response_headers_by_who_serves_and_by_what_it_kept_of_the_request(served: str) -> None:
    world = World(Session)
    stream, _ = world.ask(x_session_id="s7")
    message = response_headers(503, served=served)
    message.response_headers.headers.headers.add(key="server", raw_value=b"vllm")
    (answer,) = world.say(stream, message)
    by = {"10.0.0.1:8000": "a1", "10.0.0.2:8000": "a2"}.get(served, served)
    assert answer.set_headers == {"x-session-token": f"s7 {by} 503 vllm"}


def test_a_later_plugin_overwrites_the_headers_of_an_earlier_one() -> None:
    Stamp.stamps = lambda *_: {"x-session-token": "stamped", "x-stamp": "1"}
    world = World(Session, Stamp)
    stream, _ = world.ask()
    (answer,) = world.say(stream, response_headers())
    assert answer.set_headers == {"x-session-token": "stamped", "x-stamp": "1"}


@pytest.mark.parametrize(
    "stamps",
    [
        boom,
        lambda *_: None,
        lambda *_: {":status": "200"},
        lambda *_: {"x-split": "a\r\nb: c"},
        lambda *_: {"content-length": "7"},
    ],
    ids=["raises", "returns none", "pseudo-header", "two lines", "reserved"],
)
def test_a_plugin_that_fails_on_response_headers_is_left_out(stamps: Any) -> None:
    Stamp.stamps = stamps
    world = World(Stamp, Session)
    stream, _ = world.ask()
    (answer,) = world.say(stream, response_headers(served="10.0.0.1:8000"))
    assert list(answer.set_headers) == ["x-session-token"]
    stream.end()
    assert (world.failures, world.counted) == ([("stamp", "response header processor")], ["stamp"])
    assert world.load == {}


def test_more_response_headers_than_a_picker_reads_are_shown_to_no_plugin() -> None:
    Stamp.stamps = lambda exchange, shown: {"x-stamp": f"{len(list(shown.names()))} headers, {exchange.status}"}
    world = World(Stamp)
    stream, _ = world.ask()
    many = {f"x-{number}": "1" for number in range(world.handler.limits.header_count + 1)}
    (answer,) = world.say(stream, headers({":status": "200", **many}, phase="response_headers"))
    assert answer.set_headers == {"x-stamp": "0 headers, 200"}


def test_an_answer_of_the_proxy_itself_is_shown_to_no_plugin() -> None:
    world = World(Session, Meter)
    stream, _ = world.begin(headers(PATH, modes=LEAN))
    answers = world.say(stream, response_headers(504), response_body(b"late", end=True))
    stream.end()
    assert not any(answer.set_headers for answer in answers)
    assert Meter.calls == []


# Response bodies

TWO_CALLS = [("first", NOTHING), ("last", USAGE)]
UNREAD = [("first", NOTHING), ("last", NOTHING)]


@pytest.mark.parametrize(
    ("modes", "kind", "pieces", "meter", "fine"),
    [
        (FULL_DUPLEX, EVENTS, [EVENT, EVENT, EVENT, LAST_EVENT], TWO_CALLS, ["first", "chunk", "chunk", "last"]),
        (FULL_DUPLEX, EVENTS, [EVENT, LAST_EVENT, b""], TWO_CALLS, ["first", "chunk", "last"]),
        (LEAN, EVENTS, [EVENT, EVENT, LAST_EVENT], TWO_CALLS, ["first", "chunk", "last"]),
        (STREAMED, EVENTS, [EVENT, EVENT, LAST_EVENT], TWO_CALLS, ["first", "chunk", "last"]),
        (
            STREAMED,
            "text/plain",
            [b"a", b"b", b"c"],
            [("first", NOTHING), ("last", NOTHING)],
            ["first", "chunk", "last"],
        ),
        (BUFFERED, "application/json", [JSON], [("first", USAGE), ("last", USAGE)], ["first", "last"]),
        (FULL_DUPLEX, "application/json", [b""], [], []),
    ],
)
def test_a_plugin_hears_of_the_first_piece_and_of_the_end_or_of_every_chunk(
    modes: Modes, kind: str, pieces: list[bytes], meter: list[tuple[str, Usage]], fine: list[str]
) -> None:
    for plugin in (Meter, FineMeter):
        Meter.calls = []
        world = World(plugin)
        stream, _ = world.ask(modes)
        world.say(stream, answered(kind))
        *most, last = pieces
        world.say(stream, *map(response_body, most), response_body(last, end=True))
        stream.end()
        if plugin is Meter:
            assert Meter.calls == meter
        else:
            assert [call for call, _ in Meter.calls] == fine


def test_chunks_with_news_beside_the_body_count_as_chunks() -> None:
    world = World(FineMeter)
    stream, _ = world.ask(FULL_DUPLEX)
    world.say(stream, answered(EVENTS), response_body(EVENT))
    for number in range(3):
        chunk = response_body(EVENT)
        chunk.metadata_context.filter_metadata["other"].update({"number": str(number)})
        world.say(stream, chunk)
    world.say(stream, response_trailers())
    assert [call for call, _ in Meter.calls] == ["first", "chunk", "chunk", "chunk", "last"]


def test_a_body_that_breaks_off_has_no_last_piece() -> None:
    world = World(FineMeter)
    stream, _ = world.ask(FULL_DUPLEX)
    world.say(stream, answered(EVENTS), response_body(EVENT), response_body(EVENT))
    stream.end()
    assert [call for call, _ in Meter.calls] == ["first", "chunk"]


@pytest.mark.parametrize(
    ("plugin", "asked"), [(Meter, BodyMode.STREAMED), (Session, None)], ids=["of bodies", "of headers"]
)
def test_bodies_are_requested_for_plugins_that_read_them_only(plugin: type[Plugin], asked: BodyMode | None) -> None:
    world = World(plugin)
    stream, _ = world.ask(LEAN)
    (answer,) = world.say(stream, answered())
    assert answer.asked == asked


def test_a_plugin_that_fails_on_every_chunk_is_counted_for_each_and_shown_once() -> None:
    world = World(BadMeter)
    stream, _ = world.ask(FULL_DUPLEX)
    chunks = [response_body(EVENT)] * 3
    answers = world.say(stream, answered(EVENTS), *chunks, response_body(LAST_EVENT, end=True))
    assert b"".join(answer.streamed or b"" for answer in answers) == EVENT * 3 + LAST_EVENT
    assert (world.failures, world.counted) == ([("bad-meter", "response body processor")], ["bad-meter"] * 4)
