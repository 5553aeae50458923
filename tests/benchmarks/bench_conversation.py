"""What one ext_proc conversation costs on one core, without a network: alone, with the decision, and in a picker.

    .venv/bin/python -m tests.benchmarks.bench_conversation

Messages come as bytes and answers leave as bytes, so decoding and encoding count. Each figure is the best of several
rounds, in µs a conversation, conversations/s on one core, and the ratio to a fixed loop of plain Python that runs in
between: the ratio is what can be compared across machines and across days.

The last rows are the same conversation in a picker whose pool has room, without and with flow control, and what flow
control adds: the median over short rounds that alternate, of the difference between neighbours, which other programs
disturb less than two minima. The detector is asked anew every tenth time. The last one is about traces.
"""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from opentelemetry.sdk.environment_variables import OTEL_TRACES_SAMPLER
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry

from services.picker.admin.decisions import DecisionRing
from services.picker.admin.flow_metrics import FlowMetrics
from services.picker.admin.metrics import FOLD_EVERY
from services.picker.extproc.conversation import Conversation
from services.picker.extproc.events import Limits, RequestReady
from services.picker.extproc.messages import BodyMode, ProcessingRequest
from services.picker.flow_control.admission import FlowAdmission
from services.picker.parsers.openai import OpenAIParser
from services.picker.parsers.parser import ParserChain
from services.picker.request import Request, Route
from services.picker.request_handler import RequestHandler
from services.picker.request_stream import RequestStream
from services.picker.responses.reader import ResponseReader
from services.picker.tracing.otlp import encode
from services.picker.tracing.provider import Tracing
from services.picker.tracing.traced_stream import TracedRequestStream
from tests.benchmarks.bench_decide import FRAME_EVERY, NOW, world
from tests.unit.services.picker.extproc.proxy import (
    body,
    headers,
    response_body,
    response_headers,
    response_trailers,
)

LEAN = (BodyMode.BUFFERED, BodyMode.NONE)
FULL_DUPLEX = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"base-v2",'
    b'"choices":[{"index":0,"delta":{"content":"tok"},"finish_reason":null}]}\n\n'
)
USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"base-v2","choices":[],'
    b'"usage":{"prompt_tokens":250,"completion_tokens":199,"total_tokens":449}}\n\ndata: [DONE]\n\n'
)
ROUNDS = 7
ROUND_SECONDS = 0.15
ROUTE = Route(destinations=("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"))
ROOMY = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [{gate}]
plugins:
- {{type: utilization-detector, parameters: {{queueDepthThreshold: 1000, kvCacheUtilThreshold: 1}}}}
saturationDetector: {{pluginRef: utilization-detector}}
"""
"""With a detector for which the pool is never full."""
REQUEST_HEADERS = {
    ":method": "POST",
    ":path": "/v1/chat/completions",
    ":authority": "models.example.com",
    ":scheme": "https",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "authorization": "Bearer sk-0123456789abcdef0123456789abcdef",
    "content-type": "application/json",
    "user-agent": "OpenAI/Python 1.60.0",
    "x-forwarded-for": "192.0.2.7",
    "x-forwarded-proto": "https",
    "x-request-id": "5b0d6b5e-2b0a-4c55-9a3e-0f3f5d1d8f6c",
    "x-stainless-lang": "python",
    "x-stainless-retry-count": "0",
}


def chat_body(size: int) -> bytes:
    """A chat request of about `size` bytes."""
    text = "The quick brown fox jumps over the lazy dog. " * (size // 45 + 1)
    return b'{"model":"base","stream":true,"messages":[{"role":"user","content":"%s"}]}' % text[:size].encode()


def wire(*messages: ProcessingRequest) -> list[bytes]:
    return [message.SerializeToString() for message in messages]


def lean(size: int) -> list[bytes]:
    """BUFFERED and lean, as our Envoy configuration asks: headers, body, response headers, response trailers."""
    sent = chat_body(size)
    return wire(
        headers({**REQUEST_HEADERS, "content-length": str(len(sent))}, modes=LEAN),
        body(sent, end=True),
        response_headers(served="10.0.0.1:8000"),
        response_trailers(),
    )


def observed(size: int, response_chunks: int) -> list[bytes]:
    """The same with an event stream for which the picker asks, to read its usage at the end."""
    return lean(size)[:2] + wire(
        headers({":status": "200", "content-type": "text/event-stream"}, phase="response_headers"),
        *(response_body(chunk) for chunk in [EVENT] * (response_chunks - 1) + [USAGE]),
        response_body(b"", end=True),
    )


def full_duplex(size: int, response_chunks: int, last: bytes = b"") -> list[bytes]:
    """FULL_DUPLEX_STREAMED both ways, as gateways ask; the request comes in chunks of 16 kB."""
    sent = chat_body(size)
    starts = range(0, len(sent), 16_384)
    response = [EVENT] * (response_chunks - 1) + [last or EVENT]
    return wire(
        headers({**REQUEST_HEADERS, "content-length": str(len(sent))}, modes=FULL_DUPLEX),
        *(body(sent[at : at + 16_384], end=at == starts[-1]) for at in starts),
        headers({":status": "200", "content-type": "text/event-stream"}, phase="response_headers"),
        *(response_body(chunk, end=at == response_chunks - 1) for at, chunk in enumerate(response)),
    )


def converse(
    messages: Sequence[bytes], parsers: ParserChain | None, model: str | None = None, client_model: str = ""
) -> Callable[[], None]:
    """One conversation from bytes to bytes; with parsers, the request's body is read too, and with a client's model the
    response's."""
    limits = Limits()
    route = Route(destinations=ROUTE.destinations, target_model=model)

    def run() -> None:
        conversation = Conversation(limits, lambda: "made")
        for message in messages:
            if conversation.response.relay(message) is not None:
                continue
            for event in conversation.receive(message, 0.0):
                if type(event) is RequestReady:
                    if parsers is not None:
                        parsers.parse(event.head.path, event.head.headers, event.body)
                    reader = ResponseReader(model or "", client_model) if client_model else None
                    conversation.route(route, reader, lambda: True)
            conversation.responses()
        conversation.end(1.0)

    return run


def _handler(endpoints: int, configuration: str = "") -> tuple[RequestHandler, dict[str, bytes], Callable[[], None]]:
    """A handler with a configuration, the response headers by who serves, and what ends the scores."""
    random = np.random.default_rng(7)
    view, metrics, pipeline, frame_comes = world(endpoints, random, configuration)
    flow_metrics = FlowMetrics(CollectorRegistry(), view)
    flow = flow_metrics.flow = FlowAdmission(
        view, id="m", clock=lambda: NOW + 0.1, random=random, on_outcome=flow_metrics.ended
    )
    flow.configure(pipeline.flow_control, pipeline.director.detector, pipeline.config.stale_metrics)
    handler = RequestHandler(
        view,
        pipeline,
        DecisionRing(1000),
        metrics,
        limits=Limits(),
        make_id=lambda: "made",
        clock=lambda: NOW + 0.1,
        flow=flow,
    )
    served = {
        authority: response_headers(served=authority).SerializeToString() for authority in view.layout.authorities
    }

    def fresh() -> None:
        frame_comes()
        flow.gauge.invalidate()

    return handler, served, fresh


def decided(messages: Sequence[bytes], endpoints: int) -> Callable[[], None]:
    """One conversation with the decision on it: parsing, docs/profiles/weighted-sum.yaml, the answers. Every tenth
    time the scores are made anew, as if a frame had come."""
    handler, served, frame_comes = _handler(endpoints)
    limits, director, parsers = Limits(), handler.pipeline.director, handler.pipeline.parsers
    first, ready, _, last = messages
    make_id, turn = "made".__str__, 0

    def run() -> None:
        nonlocal turn
        turn += 1
        if turn % FRAME_EVERY == 0:
            frame_comes()
        if turn % FOLD_EVERY == 0:
            handler.metrics.fold()
        conversation = Conversation(limits, make_id)
        conversation.receive(first, NOW)
        conversation.responses()
        (event,) = conversation.receive(ready, NOW)
        head, body = event.head, event.body  # type: ignore[union-attr]
        request = Request(
            id=head.request_id,
            headers=head.headers,
            path=head.path,
            content=parsers.parse(head.path, head.headers, body),
            body_size=len(body),
            subset=head.subset,
            received_at=NOW,
        )
        route: Route = director.decide(request, handler.view, NOW + 0.1).outcome  # type: ignore[assignment]
        conversation.route(route)
        conversation.responses()
        conversation.receive(served[route.destinations[0]], NOW)
        conversation.responses()
        conversation.receive(last, NOW)
        conversation.responses()
        conversation.end(NOW)

    return run


def whole(
    messages: Sequence[bytes],
    endpoints: int,
    configuration: str = "",
    begin: Callable[[RequestHandler], RequestStream] = RequestStream,
) -> Callable[[], None]:
    """The same with all that a picker keeps of it: the load in flight, the metrics, the decision itself."""
    handler, served, frame_comes = _handler(endpoints, configuration)
    first, ready, _, last = messages
    turn = 0

    def run() -> None:
        nonlocal turn
        turn += 1
        if turn % FRAME_EVERY == 0:
            frame_comes()
        stream = begin(handler)
        stream.receive(first)
        stream.receive(ready)
        (decision,) = handler.ring.newest(1)
        assert isinstance(decision.outcome, Route)
        stream.receive(served[decision.outcome.destinations[0]])
        stream.receive(last)
        stream.end()

    return run


def reference() -> None:
    """The fixed loop: a thousand additions and dict writes of plain Python."""
    total, seen = 0, {}
    for number in range(1000):
        total += number
        seen[number & 63] = total


def seconds(run: Callable[[], None], round: float = ROUND_SECONDS) -> float:
    """CPU seconds of one run: the mean of a round of so many seconds."""
    count, started = 0, time.process_time()
    while (passed := time.process_time() - started) < round:
        run()
        count += 1
    return passed / count


def flow_control() -> None:
    """What it adds to a request that doesn't wait."""
    for endpoints in (8, 100, 1000):
        runs = [whole(lean(1_000), endpoints, ROOMY.format(gate=gate)) for gate in ("", "flowControl")]
        runs.append(reference)
        rounds = np.array([[seconds(run, ROUND_SECONDS / 10) for run in runs] for _ in range(30 * ROUNDS)])
        without, gated, loop = np.median(rounds, axis=0)
        added = np.median(rounds[:, 1] - rounds[:, 0])
        print(
            f"picker, {endpoints:4} endpoints: {without * 1e6:6.1f} µs, with flow control {gated * 1e6:6.1f} µs:"
            f" {added * 1e6:+.1f} µs, {added / loop:.3f} reference loops"
        )


class Encoding(SpanExporter):
    """Does all that an exporter over OTLP does, but for sending."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode(spans)
        return SpanExportResult.SUCCESS


def traces(endpoints: int = 100) -> None:
    """What a span adds to a request, with its export by the other thread."""
    shares = {"without traces": "", "not sampled": "always_off", "sampled": "always_on"}
    runs = []
    for sampler in shares.values():
        os.environ[OTEL_TRACES_SAMPLER] = sampler
        tracing = Tracing("m", Encoding(), clock=lambda: NOW + 0.1)
        begin = partial(TracedRequestStream, tracing=tracing) if sampler else RequestStream
        runs.append(whole(lean(1_000), endpoints, begin=begin))
    rounds = [[seconds(run, ROUND_SECONDS / 5) for run in runs] for _ in range(10 * ROUNDS)]
    times = [f"{name} {min(each) * 1e6:.1f} µs" for name, each in zip(shares, zip(*rounds, strict=True), strict=True)]
    print(f"picker, {endpoints:4} endpoints: {', '.join(times)}")


def main() -> None:
    chain = ParserChain([OpenAIParser("openai-parser")])
    cases = {
        "4 messages, 1 kB, lean": converse(lean(1_000), None),
        "4 messages, 1 kB, lean, parsed": converse(lean(1_000), chain),
        "4 messages, 220 kB, lean": converse(lean(220_000), None),
        "4 messages, 220 kB, lean, parsed": converse(lean(220_000), chain),
        "1 kB, full duplex, 1 response chunk": converse(full_duplex(1_000, 1), None),
        "220 kB, full duplex, 1 response chunk": converse(full_duplex(220_000, 1), None),
        "200 response chunks, nobody reads": converse(full_duplex(1_000, 200), None),
        "200 response chunks, usage": converse(full_duplex(1_000, 200, USAGE), None, None, "base"),
        "200 response chunks, lean, observed": converse(observed(1_000, 200), None, None, "base"),
        "200 response chunks, usage and name": converse(full_duplex(1_000, 200, USAGE), None, "base-v2", "base"),
    }
    for endpoints in (8, 100, 1000):
        cases[f"4 messages, 1 kB, decided, {endpoints} endpoints"] = decided(lean(1_000), endpoints)
    cases["4 messages, 220 kB, decided, 100 endpoints"] = decided(lean(220_000), 100)
    for endpoints in (8, 100, 1000):
        cases[f"4 messages, 1 kB, picker, {endpoints} endpoints"] = whole(lean(1_000), endpoints)
    cases["4 messages, 220 kB, picker, 100 endpoints"] = whole(lean(220_000), 100)
    print(f"{'conversation':42}{'µs':>10}{'a second':>12}{'reference loops':>18}")
    for name, run in cases.items():
        best, loop = float("inf"), float("inf")
        for _ in range(ROUNDS):
            loop = min(loop, seconds(reference))
            best = min(best, seconds(run))
        print(f"{name:42}{best * 1e6:10.1f}{1 / best:12.0f}{best / loop:18.2f}")
    flow_control()
    traces()


if __name__ == "__main__":
    main()
