"""Spans of requests that a whole process shows badly: evicted ones, long bodies, and what the SDK lacks."""

import sys
import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from services.picker.request_stream import HEAVY
from services.picker.tracing import provider
from services.picker.tracing.provider import Tracing
from services.picker.tracing.stream_factory import stream_factory
from services.picker.tracing.traced_stream import TracedRequestStream
from shared.config.problems import Invalid
from tests.unit.services.picker.extproc.proxy import LEAN, body, headers, response_headers
from tests.unit.services.picker.handler import PickerUnderTest, destinations
from tests.unit.services.picker.world import NOW, pool

CHAT = [(":method", "POST"), (":path", "/v1/chat/completions"), ("x-request-id", "mine")]


class Kept(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


class Stuck(SpanExporter):
    """One whose receiver never answers."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.released.wait()
        return SpanExportResult.FAILURE


class World(PickerUnderTest):
    """A picker that traces everything. Its wall clock is a million seconds ahead of its other one."""

    def __init__(self, exporter: SpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(pool("a1"), limit=4 * HEAVY)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        self.tracing = Tracing("p", exporter, clock=lambda: self.now, wall_clock=lambda: int((self.now + 1e6) * 1e9))

    def stream(self) -> TracedRequestStream:
        return TracedRequestStream(self.handler, self.tracing)


async def test_a_long_body_has_one_span_with_the_times_of_its_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    world = World(kept, monkeypatch)
    stream = world.stream()
    world.say(stream, headers(CHAT, modes=LEAN))
    world.now += 2
    text = b'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}' % (b"x" * 2 * HEAVY)
    answers = world.say(stream, body(text, end=True))
    assert destinations(answers) == "10.0.0.1:8000"
    world.now += 3
    world.say(stream, response_headers(end=True))
    stream.end()
    await world.tracing.shutdown()
    (span,) = kept.spans
    start, end = (NOW + 1e6) * 1e9, (NOW + 1e6 + 5) * 1e9
    assert [span.start_time, span.end_time] == pytest.approx([start, end])
    times = {event.name: event.timestamp for event in span.events}
    assert times["pointsman.prepare"] == pytest.approx(start + 2e9)
    assert times["pointsman.respond"] == pytest.approx(start + 5e9)


@pytest.mark.parametrize(
    ("method", "shown", "original"),
    [("POST", "POST", None), ("Post", "_OTHER", "Post"), ("M" * 50_000, "_OTHER", "M" * 256)],
)
async def test_a_method_is_one_that_is_known(
    method: str, shown: str, original: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept()
    world = World(kept, monkeypatch)
    stream = world.stream()
    world.say(stream, headers([(":method", method), *CHAT[1:]], modes=LEAN, end=True))
    stream.end()
    await world.tracing.shutdown()
    (span,) = kept.spans
    attributes = span.attributes or {}
    assert attributes["http.request.method"] == shown
    assert attributes.get("http.request.method_original") == original


TRACEPARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest.mark.parametrize(
    ("shown", "parent", "state"),
    [
        ([("traceparent", TRACEPARENT), ("tracestate", "a=1,b=2")], True, "a=1,b=2"),
        ([("traceparent", TRACEPARENT), ("tracestate", "a=1,b" + " " * 600 + "=2")], True, ""),
        ([("traceparent", TRACEPARENT), *[("tracestate", f"a{number}={'x' * 100}") for number in range(6)]], True, ""),
        ([("traceparent", TRACEPARENT.replace("00-", "01-", 1) + "-" + "x" * 600)], False, ""),
    ],
)
async def test_a_context_is_kept_as_far_as_w3c_asks(
    shown: list[tuple[str, str]], parent: bool, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept()
    world = World(kept, monkeypatch)
    stream = world.stream()
    world.say(stream, headers([*CHAT, *shown], modes=LEAN, end=True))
    stream.end()
    await world.tracing.shutdown()
    (span,) = kept.spans
    assert (span.parent is not None, span.context.trace_state.to_header()) == (parent, state)


async def test_an_evicted_request_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    world = World(kept, monkeypatch)
    stream = world.stream()
    world.say(stream, headers(CHAT, modes=LEAN), body(b'{"model": "m", "prompt": "x"}', end=True))
    stream.evict()
    stream.end()
    await world.tracing.shutdown()
    (span,) = kept.spans
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 429
    assert span.attributes["pointsman.refusal.reason"] == "evicted"


async def test_a_receiver_that_never_answers_doesnt_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "SHUTDOWN_TIMEOUT", 0.1)
    stuck = Stuck()
    world = World(stuck, monkeypatch)
    stream = world.stream()
    world.say(stream, headers(CHAT, modes=LEAN, end=True))
    stream.end()
    await world.tracing.shutdown()
    assert not stuck.released.is_set()
    stuck.released.set()


def test_without_the_sdk_the_flag_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PickerUnderTest(pool("a1"))
    for name in [name for name in sys.modules if name.startswith("services.picker.tracing.")]:
        if not name.endswith(".stream_factory"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(Invalid, match=r"pip install 'pointsman\[traces\]'"):
        stream_factory(world.handler, "p", tracing=True)
