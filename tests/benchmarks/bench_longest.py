"""How long one message can hold the loop of a picker or collector: what reads foreign bytes, at its worst.

    .venv/bin/python -m tests.benchmarks.bench_longest [part of a name]

Each row is a shape that costs as much as anything so long can. It is read at several sizes: the longest that is decoded
whatever it is, the most that is decoded at all, the most that is taken, and so many bytes as a body may have at all,
with the defaults of all settings. Figures are CPU milliseconds, the best of several runs; the exit status is 1 when one
is above 20 ms, which is what docs/performance.md promises for an idle core.
"""

import logging
import sys
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import structlog
from msgspec import Struct

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.models import ModelsExtractorParameters, read_models
from services.collector.extractors.prometheus_metric import PrometheusMetricExtractor, PrometheusMetricParameters
from services.collector.interfaces import Binding
from services.collector.page.query import Function
from services.collector.sources.metrics import MetricsSource
from services.picker.admin.decisions import DecisionRing
from services.picker.extproc.events import Limits
from services.picker.extproc.messages import BodyMode
from services.picker.parsers import json_counts
from services.picker.parsers.anthropic import AnthropicParser
from services.picker.parsers.json_edit import replace_model
from services.picker.parsers.json_values import JsonParameters
from services.picker.parsers.openai import OpenAIParser
from services.picker.parsers.parser import ParserChain
from services.picker.parsers.protobuf import varint
from services.picker.parsers.sglang_http import SglangHttpParser
from services.picker.parsers.vllm_grpc import VllmGrpcParameters, VllmGrpcParser
from services.picker.parsers.vllm_http import VllmHttpParser
from services.picker.reports.explain import in_full
from services.picker.request import Headers, Request, Unparsable
from services.picker.request_handler import RequestHandler
from services.picker.request_stream import RequestStream
from services.picker.responses.reader import LIMIT, ResponseReader
from services.picker.responses.usage import Usage
from services.picker.scheduling.reporters.request_attribute import RequestAttributeReporter, compiled
from services.picker.settings.http2_options import Http2Options
from services.picker.settings.picker import PickerSettings
from services.picker.state.topology import TopologyExtractor
from services.picker.transport.grpc_server import message_limit
from shared.attributes import AttributeMap
from shared.config import load
from shared.config.schema import BOUNDS
from shared.datalayer.endpoints import EndpointDispatcher, EndpointExtractors, EndpointNotificationSource
from shared.datalayer.events import EventCounts
from shared.datalayer.wiring import SourceExtractors
from shared.model import Endpoint
from shared.plugin import Registry, Tier
from shared.plugin_failures import PluginFailures
from shared.service.admin import encoded
from shared.service.pages import json_items
from tests.benchmarks.bench_conversation import FULL_DUPLEX, LEAN
from tests.benchmarks.bench_decide import NOW, world
from tests.benchmarks.loop_turns import EXPRESSIONS, configuration, configured, reporters, streamed
from tests.unit.services.picker.extproc.proxy import body, headers
from tests.unit.services.picker.scheduling.reporters.test_request_attribute import exchange

PROMISED = 0.020
"""Seconds."""
ENDPOINTS = 5_000
ROUNDS = 5
LARGEST = PickerSettings.__struct_defaults__[PickerSettings.__struct_fields__.index("max_request_body")]
CHAIN = ParserChain(
    [OpenAIParser("o"), AnthropicParser("a"), VllmHttpParser("h"), VllmGrpcParser("g"), SglangHttpParser("s")]
)
SERVER = Endpoint(id="default/a", name="a", address="127.0.0.1", port=1)
VLLM = (b"vllm:num_requests_waiting", b"vllm:num_requests_running", b"vllm:kv_cache_usage_perc")
HEADERS = Headers([(":method", "POST"), ("content-type", "application/json")])

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES, CONVERSATIONS, IMAGES = "/v1/responses", "/v1/conversations", "/v1/images/generations"
MESSAGES, COUNT, GENERATE = "/v1/messages", "/v1/messages/count_tokens", "/inference/v1/generate"
GRPC, EMBED = "/vllm.grpc.engine.VllmEngine/Generate", "/vllm.grpc.engine.VllmEngine/Embed"

PICTURE = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}},'
_CONTENT = b'"messages":[{"role":"user","content":%s}]'
_TEXT = _CONTENT.replace(b"%s", b'"%s"')
_PARTS = _CONTENT.replace(b"%s", b"[%s{}]")
_TURNS = b'"messages":[%s{}]'
_PLACE_OF = b'{"offset":0,"length":1},'
_LAST = _PLACE_OF[:-1] + b"]}}"
_LONG_HEADER = b64encode(b"\xff\xd8" + b"\xff\xe1\0\2" * 2**14)
_LONG_ID = b"\xff" * 9 + b"\x01"

JSON: dict[str, tuple[str, bytes, bytes]] = {
    # what: path, fields with the place of the repeated text, the text
    "a text": (CHAT, _TEXT, b"x"),
    "a text of escapes": (CHAT, _TEXT, b"\\n"),
    "a text of Unicode escapes": (CHAT, _TEXT, b"\\u4e16"),
    "a text in Chinese": (CHAT, _TEXT, "世".encode()),
    "a text and one emoji": (CHAT, _TEXT.replace(b"%s", b"%s\xf0\x9f\x98\x80"), b"x"),
    "a text full of JSON": (CHAT, _TEXT, b'{\\"a\\": [1, 2]}, '),
    "a text of quotes": (CHAT, _TEXT, b'\\"'),
    "turns": (CHAT, _TURNS, b'{"role":"u","content":"h"},'),
    "turns of tools": (CHAT, _TURNS, b'{"tool_calls":1,"name":2,"arguments":3,"output":4,"summary":5},'),
    "empty turns": (CHAT, _TURNS, b"{},"),
    "turns of parts": (CHAT, _TURNS, b'{"content":[{}]},'),
    "parts": (CHAT, _PARTS, b'{"text":"h"},'),
    "empty parts": (CHAT, _PARTS, b"{},"),
    "texts as parts": (CHAT, _PARTS, b'"",'),
    "small files": (CHAT, _PARTS, b'{"file_data":1},'),
    "pictures": (CHAT, _PARTS, PICTURE % (b"A" * 20_000)),
    "pictures with long headers": (CHAT, _PARTS, PICTURE % (b"data:image/jpeg;base64," + _LONG_HEADER)),
    "small pictures": (CHAT, _PARTS, PICTURE % b"A"),
    "one picture": (CHAT, _PARTS.replace(b"%s", PICTURE), b"A"),
    "tools": (CHAT, b'"tools":[%s{}],' + _CONTENT % b'"h"', b'{"a":[{}]},'),
    "blanks": (CHAT, _CONTENT % b'%s"h"', b" "),
    "lists that nobody reads": (CHAT, b'"other":[%s[]],' + _CONTENT % b'"h"', b"[],"),
    "deep lists": (CHAT, b'"other":[%s[]],' + _CONTENT % b'"h"', b"[" * 500 + b"]" * 500 + b","),
    "too deep": (CHAT, b'"other":%s1,' + _CONTENT % b'"h"', b"["),
    "one key again and again": (CHAT, b"%s" + _CONTENT % b'"h"', b'"messages":[],'),
    "keys that nobody knows": (CHAT, b"%s" + _CONTENT % b'"h"', b'"":0,'),
    "a model's name": (CHAT, b'"model":"%s",' + _CONTENT % b'"h"', b"\\n"),
    "a salt": (CHAT, b'"cache_salt":"%s",' + _CONTENT % b'"h"', b"\\n"),
    "a number of tokens": (CHAT, b'"max_tokens":%s1,' + _CONTENT % b'"h"', b"9"),
    "a fraction": (CHAT, b'"n":0.%s1,' + _CONTENT % b'"h"', b"9"),
    "a wrong turn": (CHAT, b'"messages":[%s1]', b"{},"),
    "a wrong turn after many keys": (CHAT, b'%s"messages":[1]', b'"":0,'),
    "no end": (CHAT, b'"messages":[%s', b"{},"),
    "to render": (CHAT + "/render", _TURNS, b'{"role":"u","content":"h"},'),
    "texts": (COMPLETIONS, b'"prompt":[%s"h"]', b'"",'),
    "ids": (COMPLETIONS, b'"prompt":[%s1]', b"7,"),
    "long ids": (COMPLETIONS, b'"prompt":[%s1]', b"4294967295,"),
    "huge numbers": (COMPLETIONS, b'"prompt":[%s1]', b"99999999999999999999,"),
    "numbers of many digits": (COMPLETIONS, b'"prompt":[%s1]', b"9" * 4290 + b","),
    "numbers as long as are read": (COMPLETIONS, b'"prompt":[%s1]', b"9" * 64 + b","),
    "fractions": (COMPLETIONS, b'"prompt":[%s1]', b"1.5e300,"),
    "lists of ids": (COMPLETIONS, b'"prompt":[%s[1]]', b"[7],"),
    "ids and a text": (COMPLETIONS, b'"prompt":[%s""]', b"7,"),
    "ids and an object": (COMPLETIONS, b'"prompt":[%s{}]', b"7,"),
    "texts to embed": (EMBEDDINGS, b'"input":[%s"h"]', b'"",'),
    "pictures to embed": (EMBEDDINGS, b'"input":[%s{}]', b'{"file_data":1},'),
    "texts as items": (RESPONSES, b'"input":[%s"h"]', b'"",'),
    "items": (RESPONSES, b'"input":[%s{}]', b'{"output":1},'),
    "instructions": (RESPONSES, b'"input":"h","instructions":"%s"', b"\\n"),
    "items to keep": (CONVERSATIONS, b'"items":[%s1]', b"0,"),
    "what to draw": (IMAGES, b'"prompt":"%s"', b"\\u4e16"),
    "Anthropic's turns": (MESSAGES, _TURNS, b'{"role":"u","content":"h"},'),
    "blocks": (MESSAGES, _PARTS, b"{},"),
    "results of tools": (MESSAGES, _PARTS, b'{"content":[{}]},'),
    "turns of results": (MESSAGES, _TURNS, b'{"content":[{"content":[{}]}]},'),
    "system texts": (MESSAGES, b'"system":[%s{}],' + _CONTENT % b'"h"', b'{"text":""},'),
    "to be counted": (COUNT, _TURNS, b"{},"),
    "ids to go on from": (GENERATE, b'"token_ids":[%s1]', b"7,"),
    "places of pictures": (GENERATE, b'"token_ids":[1],"features":{"mm_placeholders":{"a":[%s' + _LAST, _PLACE_OF),
    "hashes of pictures": (GENERATE, b'"token_ids":[1],"features":{"mm_hashes":{"a":[%s"h"]}}', b'"",'),
    "places of many digits": (
        GENERATE,
        b'"token_ids":[1],"features":{"mm_placeholders":{"a":[%s' + _LAST,
        _PLACE_OF.replace(b"0", b"9" * 4290),
    ),
    "adapters beside the model": (CHAT, b'"lora_path":[%s""],' + _CONTENT % b'"h"', b'"",'),
    "adapters": ("/generate", b'"text":"h","lora_path":[%s""]', b'"",'),
    "kinds of pictures": (GENERATE, b'"token_ids":[1],"features":{"mm_hashes":{%s"h":[]}}', b'"":[],'),
}  # fmt: skip


def json_bodies(fields: bytes, text: bytes) -> Iterator[bytes]:
    """The shape at its sizes; to the most that is taken comes base64, until the body has as many bytes as it may."""
    most = JsonParameters()
    commas, openings, quotes = text.count(b","), text.count(b"{") + text.count(b"["), text.count(b'"')
    decoded = (
        len(text) * json_counts.BYTE
        + commas * json_counts.COMMA
        + openings * json_counts.OPENING
        + quotes * json_counts.QUOTE
    )
    around = len(fields) + 100
    before, _, after = fields.partition(b"%s")
    taken = min(
        (most.max_text_bytes - around) // len(text),
        (most.max_values - 100) // commas if commas else LARGEST,
        (most.max_objects - 100) // openings if openings else LARGEST,
    )
    padding = b'"pad":"%s",' % (b"A" * (LARGEST - around - taken * len(text)))
    for count, more in (
        ((json_counts.SHORT - around) // len(text), b""),
        (int(min(0.99 * json_counts.BUDGET // decoded, (json_counts.MAX_DECODED - around) // len(text))), b""),
        (taken, padding),
        ((LARGEST - around) // len(text), b""),
    ):
        yield b"".join((b'{"n":1,', more, before, text * max(count, 1), after, b"}"))


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def frame(message: bytes, encoding: str = "") -> bytes:
    sent = zlib.compress(message) if encoding else message
    return bytes((bool(encoding),)) + len(sent).to_bytes(4, "big") + sent


_MOST = VllmGrpcParameters()
_FEW = _MOST.max_fields - 20
_ROOM = LARGEST - 1000
_IDS = field(2, field(2, b"\x07"))
_PLACE = field(5, b"\x08\x01\x10\x01") + field(6, b"h")

PROTOBUF: dict[str, tuple[str, bytes]] = {
    "flags": (GRPC, b"\x28\x01" * _FEW + _IDS),
    "long flags": (GRPC, (b"\x28" + b"\xff" * 9 + b"\x01") * _FEW + _IDS),
    "long tags": (GRPC, (varint(2**32 - 8) + b"\x01") * _FEW + _IDS),
    "empty texts": (GRPC, field(3, b"") * _FEW),
    "a text over gRPC": (GRPC, field(3, "世".encode() * (_ROOM // 3))),
    "a text that is decoded": (GRPC, field(3, "世".encode() * (json_counts.MAX_DECODED // 3))),
    "tokenized in parts": (GRPC, _IDS * (_FEW // 2)),
    "one id a field": (GRPC, field(2, b"\x10\x07" * _FEW)),
    "long ids a field": (EMBED, field(2, (b"\x10" + b"\xff" * 9 + b"\x01") * _FEW)),
    "packed ids": (GRPC, field(2, field(2, b"\xff\xff\x07" * 150_000))),
    "packed long ids": (GRPC, field(2, field(2, _LONG_ID * 150_000))),
    "as many ids as may be": (GRPC, field(2, field(2, b"\x07" * _MOST.max_token_ids))),
    "as many bytes of ids": (EMBED, field(2, field(2, _LONG_ID * (min(_ROOM // 10, _MOST.max_token_ids))))),
    "too many ids": (GRPC, field(2, field(2, b"\x07" * _ROOM))),
    "an endless id": (GRPC, field(2, field(2, b"\xff" * _ROOM))),
    "pictures over gRPC": (GRPC, _IDS + field(7, _PLACE * (_FEW // 4))),
    "limits": (GRPC, field(4, b"\x40\x01" * _FEW) + _IDS),
}  # fmt: skip


def empty_blocks(size: int) -> bytes:
    """Deflated blocks of `size` bytes that inflate to nothing, each with codes of its own to be set up."""
    bits: list[int] = []

    def put(value: int, count: int) -> None:
        bits.extend(value >> place & 1 for place in range(count))

    put(0, 1)
    put(2, 2)
    put(0, 10)
    put(14, 4)
    for symbol in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1):
        put(symbol in (18, 1), 3)
    for length in (138, 118):
        put(1, 1)
        put(length - 11, 7)
    put(0, 3)
    blocks = np.packbits(np.array(bits * 8, np.uint8), bitorder="little").tobytes()
    return b"\x78\x9c" + blocks * (size // len(blocks))


def _flagged(sent: bytes) -> bytes:
    return b"\x01" + len(sent).to_bytes(4, "big") + sent


COMPRESSED: dict[str, bytes] = {
    "few bytes that become many": frame(field(3, b"x" * (_MOST.max_message_bytes - 10)), "deflate"),
    "bytes that become too many": frame(field(3, b"x" * LARGEST * 2), "deflate"),
    "bytes that become none": _flagged(empty_blocks(_MOST.max_compressed_bytes - 100)),
    "too many that become none": _flagged(empty_blocks(LARGEST - 1000)),
}

LONG_EVENT = b'data:{"model":"served","x":[%s1]}\n' % (b"[]," * 700)
LEVELS = b'data:{%s,"response":{%s},"message":{%s}%s}\n' % (*[b'"model":"served","usage":{}'] * 3, b" " * 1900)
EVENT = b'data: {"model":"served","choices":[]}\n\n'

SINGLE = b'data:{"model":"served","a":[%s0]}\n' % (b"{}," * (LIMIT // 3 - 20))
PIECES: dict[str, tuple[str, bytes, int]] = {
    # what a model server may send: content type, what is repeated, bytes of it that come at once
    "events": ("text/event-stream", EVENT, LIMIT),
    "as many events as are read": ("text/event-stream", EVENT, 1000 * len(EVENT)),
    "a single event": ("text/event-stream", SINGLE, len(SINGLE)),
    "events that are long together": ("text/event-stream", LONG_EVENT, LIMIT - 10),
    "events of nothing": ("text/event-stream", b"data:\n", 1990 * 6),
    "events with usage": ("text/event-stream", b'data:{"usage":{"a":1},"model":"served"}\n', 1990 * 40),
    "events with usage on three levels": (
        "text/event-stream",
        LEVELS,
        1990 * len(LEVELS),
    ),
    "events with counts of large numbers": (
        "text/event-stream",
        b'data:{"usage":{"prompt_tokens":1e308,"input_tokens":1e308,"output_tokens":1e308}}\n',
        LIMIT,
    ),
    "ends of lines": ("text/event-stream", b"\n", LIMIT),
    "an event without end": ("text/event-stream", b"data:{", LIMIT),
    "usage": ("text/event-stream", b'"usage"  ', LIMIT),
    "answers": ("application/json", b'{"model":"served","response":{"message":[]},', LIMIT),
    "frames of gRPC": ("application/grpc", b"\0\0\0\0\0", LIMIT),
    "messages of gRPC": ("application/grpc", frame(field(2, b"\x08\x01" * 50)), LIMIT),
    "carried events of nothing": ("application/grpc", frame(field(2, b"data:" * (LIMIT // 5 - 10))), LIMIT),
    "carried events of many messages": ("application/grpc", frame(field(2, b"data:" * 2000)), LIMIT),
    "carried events with usage": ("application/grpc", frame(field(2, b'data:{"usage":{"a":1}}\n' * 2000)), LIMIT),
    "carried usage of lists": (
        "application/grpc",
        frame(field(2, b'data:{"usage":{"a":[%s[]]}}\n' % (b"[]," * (2**16 // 3 - 10)))),
        LIMIT,
    ),
    "compressed messages": ("application/grpc", frame(b"\x0a\0" * 400_000, "deflate"), 2**18),
    "messages of nothing": ("application/grpc", _flagged(empty_blocks(60_000)), 2**18),
}  # fmt: skip

_INNER = b'{%s"usage":{%s"a":1},"model":"served"}' % (b'"usage":1,' * (2**18 // 10 - 3100), b'"":1,' * 6000)
_TWO = b'{%s"response":%%s,"message":%%s,"model":"served"}' % (b'"a":1,' * ((LIMIT - 2**19) // 6 - 100))
WHOLE: dict[str, bytes] = {
    # answers that are held until they are whole
    "an answer of lists": b'{"choices":[%s[]]}' % (b"[]," * (LIMIT // 3 - 10)),
    "an answer in an answer": b'{"response":{"choices":[%s[]]}}' % (b"[]," * (LIMIT // 3 - 20)),
    "two answers in an answer": _TWO % (_INNER, _INNER),
    "an answer of fractions": b'{"data":[%s1]}' % (b"-0.0123," * (LIMIT // 8 - 10)),
    "usage of lists": b'{"usage":{"a":[%s[]]}}' % (b"[]," * (LIMIT // 3 - 10)),
    "usage of large numbers": b'{"usage":{"a":[%s1]}}' % (b"1e308," * (2**16 // 6 - 10)),
    "usage that is read": b'{"usage":{"a":[%s[]]}}' % (b"[]," * (2**16 // 3 - 10)),
    "a name in an answer": b'{"model":"%s"}' % (b"\\n" * (LIMIT // 2 - 10)),
    "models": b'{%s"x":1}' % (b'"model":"served",' * (LIMIT // 17 - 10)),
}

PASSING: dict[str, bytes] = {
    # pieces of answers that pass while a name in them is looked for
    "keys in passing": b'{%s"a":1' % (b'"":0,' * (2**18 // 5)),
    "marks in passing": b"{%s" % (b":" * 2**18),
    "objects in passing": b'{"a":[%s' % (b"{}," * (2**18 // 3)),
    "texts in passing": b'{"a":[%s' % (b'"",' * (2**19 // 3 - 10)),
    "a text in passing": b'{"a":"%s' % (b"\\n" * (2**18 - 10)),
    "names in passing": b'{%s"a":1' % (b'"model":"served",' * (2**18 // 17)),
}


class Case(Struct, frozen=True):
    """Something that is read: `steps` reads it, and yields where others would have their turn."""

    name: str
    size: int
    steps: Callable[[], Iterator[Any]]


def _parsed(path: str, sent: bytes, encoding: str = "") -> Callable[[], Iterator[Any]]:
    shown = Headers([(":method", "POST"), ("content-type", "application/json"), ("grpc-encoding", encoding)])

    def run() -> Iterator[Any]:
        try:
            CHAIN.parse(path, shown, sent)
        except Unparsable:
            pass
        yield None

    return run


def _answered(
    kind: str,
    pieces: tuple[bytes, ...],
    *,
    changes: bool,
    holds: bool = True,
    encoding: str = "",
    api: str = "generate",
) -> Callable[[], Iterator[Any]]:
    def run() -> Iterator[Any]:
        reader = ResponseReader("served" if changes else "", "asked", api=api)
        reader.begin(Headers([("content-type", kind), ("grpc-encoding", encoding)]))
        reader.holds = holds
        for number, piece in enumerate(pieces):
            reader.feed(piece, holds and number == len(pieces) - 1)
            yield None
        _ = reader.usage
        yield None

    return run


def _handler() -> RequestHandler:
    view, metrics, pipeline, _ = world(8, np.random.default_rng(7))
    return RequestHandler(
        view,
        pipeline,
        DecisionRing(10),
        metrics,
        limits=Limits(request_body=LARGEST),
        make_id=lambda: "made",
        clock=lambda: NOW + 0.1,
    )


def _messages(mode: tuple[BodyMode, BodyMode], rewrite: bool, size: int = LARGEST) -> list[bytes]:
    """What a proxy says of a request with a body of about so many bytes."""
    fields = _CONTENT % (b'"h"},{"content":[%s{}]' % (PICTURE % (b"A" * (size - 200))))
    sent = b'{"model":"base",%s}' % fields
    shown = {":method": "POST", ":path": CHAT, **({"x-gateway-model-name-rewrite": "tuned"} if rewrite else {})}
    cut = size if mode == LEAN else 2**16
    pieces = [sent[at : at + cut] for at in range(0, len(sent), cut)]
    messages = [headers(shown, modes=mode).SerializeToString()]
    return messages + [body(piece, end=at == len(pieces) - 1).SerializeToString() for at, piece in enumerate(pieces)]


def _exchanged(mode: tuple[BodyMode, BodyMode], rewrite: bool) -> Callable[[], Iterator[Any]]:
    """The largest body through a whole picker: from the message to the answers."""
    handler, messages = _handler(), _messages(mode, rewrite)

    def run() -> Iterator[Any]:
        stream = RequestStream(handler)
        for message in messages:
            yield from stream.receive(message)
            yield None
        stream.end()
        yield None

    return run


def _streamed(size: int, rewrite: bool = False) -> Callable[[], Iterator[Any]]:
    """A body that comes as one message over gRPC."""
    options = Http2Options(max_message_size=message_limit(LARGEST))
    return streamed(partial(RequestStream, _handler()), _messages(LEAN, rewrite, size), options)


def pages() -> Iterator[Case]:
    """What is told of a large pool."""
    view, _, pipeline, _ = world(ENDPOINTS, np.random.default_rng(7))
    decision = pipeline.director.decide(Request(id="r", headers=Headers()), view, NOW + 0.1)
    yield Case("an explained decision, endpoints", ENDPOINTS, lambda: in_full(decision))
    yield Case("the state of endpoints", ENDPOINTS, lambda: json_items(view.state(NOW), encoded))
    feed: EndpointExtractors = SourceExtractors(EndpointNotificationSource("e"), (TopologyExtractor("topology"),))

    def name() -> Iterator[str]:
        counts = EventCounts(PluginFailures(time.monotonic))
        return EndpointDispatcher([feed], view.made, counts).reset(view.endpoints)

    yield Case("endpoints for an extractor", ENDPOINTS, name)


def _scraped(binding: Callable[[], Binding], page: Callable[[int], bytes]) -> Callable[[], Iterator[Any]]:
    """Pages of one server, one after the other, as a collector reads them."""
    pages = [page(number) for number in range(4)]

    def run() -> Iterator[Any]:
        bound, attributes = binding(), AttributeMap()
        reader = MetricsSource("m").reader([bound])
        for number, sent in enumerate(pages):
            reading = reader.read(sent, number * 0.05)
            with suppress(StopIteration):
                while True:
                    reading.send(None)
                    yield None
            yield None
            bound.store(attributes, number * 0.05)
            yield None

    return run


_BLOCKS = b"nv_trt_llm_kv_cache_block_metrics{%s} %d\n"
"""Of Triton: three attributes are in one metric, and differ in a label."""


def _core() -> Binding:
    return CoreMetricsExtractor("core").bind(SERVER)


def _quantile() -> Binding:
    parameters = PrometheusMetricParameters(metric_name="h", function=Function.QUANTILE, quantile=0.9)
    return PrometheusMetricExtractor("q", parameters).bind(SERVER)


def _families(number: int, text: bytes) -> bytes:
    return b"".join(b"# TYPE %s gauge\n%s %d\n%s" % (name, name, number, text) for name in VLLM)


def _listed(page: bytes) -> Callable[[], Iterator[Any]]:
    def run() -> Iterator[Any]:
        yield read_models(page, ModelsExtractorParameters())

    return run


def scrapes() -> Iterator[Case]:
    """What a model server answers to a collector."""
    pages: dict[str, tuple[Callable[[], Binding], Callable[[int], bytes]]] = {
        "comments between samples": (_core, lambda number: _families(number, b"#\n" * 32_000)),
        "a header of megabytes": (_core, lambda number: _families(number, b"# HELP %s!\n" % (b"a" * 700_000))),
        "headers of one family": (_core, lambda number: _families(number, b"# HELP a\n" * 7_000)),
        "labels that nobody asks for": (_core, lambda number: _families(number, b"x{%s} 1\n" % (b'a="",' * 12_000))),
        "labels that several selectors read": (_core, lambda number: _BLOCKS % (b'a="",' * 25_000, number) * 8),
        "lines of labels that several selectors read": (
            _core,
            lambda number: _BLOCKS % (b'a="",' * 1_000, number) * 200,
        ),
        "labels of one series": (
            _core,
            lambda number: b"vllm:cache_config_info{%s} %d\n" % (b'a="",' * 25_000, number),
        ),
        "escapes in a label": (
            _core,
            lambda number: b'vllm:cache_config_info{block_size="%s%d"} 1\n' % (b"\\n" * 62_000, number),
        ),
    }
    for size in (100, 400):
        names = [b"".join(b'a%x="",' % label for label in range(size)) + b'le="%d"' % number for number in range(1_020)]
        lines = [b"h_bucket{%s} %%d\n" % name for name in names]
        pages[f"buckets with {size} labels"] = (
            _quantile,
            lambda number, lines=lines: b"".join(line % (number * 5 + 1) for line in lines),  # type: ignore[misc]
        )
    for name, (binding, page) in pages.items():
        yield Case(name, len(page(0)), _scraped(binding, page))
    most = ModelsExtractorParameters().max_bytes - 100
    for name, text in {
        "models of nothing": b"0,",
        "models, a list each": b"[],",
        "models without a name": b"{},",
    }.items():
        for count in (64_000, most // len(text)):
            listed = b'{"data":[%s0]}' % (text * count)
            yield Case(name, len(listed), _listed(listed))


def _compiled(expression: str) -> Callable[[], Iterator[Any]]:
    """In a thread of its own, but others stand still meanwhile."""

    def run() -> Iterator[Any]:
        compiled.cache_clear()
        yield compiled(expression)

    return run


def _reported(document: str) -> Callable[[], Iterator[Any]]:
    """The end of one response, with all that the document reports of it."""
    loaded = load(document, Registry.installed())
    instances = loaded.instances(Tier.PICKER).values()
    found = [plugin for plugin in instances if isinstance(plugin, RequestAttributeReporter)]
    ended = exchange(Usage(prompt=7, completion=5))

    def run() -> Iterator[Any]:
        yield [plugin.response_body(ended, first=False, last=True) for plugin in found]

    return run


def configurations() -> Iterator[Case]:
    """The largest documents, until a picker decides by them."""
    documents = {"plugins": configuration(BOUNDS.entries)}
    for name, expression in EXPRESSIONS.items():
        documents[f"expressions, {name}"] = document = reporters(expression)
        yield Case(f"an expression, {name}", len(expression), _compiled(expression))
        yield Case(f"expressions of a response, {name}", len(document), _reported(document))
    for name, document in documents.items():
        yield Case(f"a configuration of {name}", len(document), configured(document))


def cases() -> Iterator[Case]:
    """Every shape, at each of its sizes."""
    yield from scrapes()
    for name, (path, fields, text) in JSON.items():
        for sent in json_bodies(fields, text):
            yield Case(name, len(sent), _parsed(path, sent))
    for name, (path, message) in PROTOBUF.items():
        yield Case(name, len(message), _parsed(path, frame(message)))
    for name, sent in COMPRESSED.items():
        yield Case(name, len(sent), _parsed(GRPC, sent, "deflate"))
    for name, (kind, text, size) in PIECES.items():
        piece = text * (size // len(text))
        encoding = "deflate" if name in ("compressed messages", "messages of nothing") else ""
        api = "chat" if name.startswith("carried") else "generate"
        for changes in (False, True):
            yield Case(name, len(piece), _answered(kind, (piece,), changes=changes, encoding=encoding, api=api))
    for name, sent in WHOLE.items():
        for changes in (False, True):
            yield Case(name, len(sent), _answered("application/json", (sent[:-1], sent[-1:]), changes=changes))
    for name, sent in PASSING.items():
        yield Case(name, len(sent), _answered("application/json", (sent,), changes=True, holds=False))
    *_, renamed, _ = json_bodies(b'"model":"m","messages":[{"content":"%s"}]', b"\\n")
    yield Case("a model put in", len(renamed), lambda: iter([b"".join(replace_model(renamed, "other"))]))
    for rewrite in (False, True):
        name = "renamed" if rewrite else "as it is"
        yield Case(f"BUFFERED, whole picker, {name}", LARGEST, _exchanged(LEAN, rewrite))
        yield Case(f"FULL_DUPLEX, whole picker, {name}", LARGEST, _exchanged(FULL_DUPLEX, rewrite))
        yield Case(f"BUFFERED over gRPC, {name}", LARGEST, _streamed(LARGEST, rewrite))
    yield from configurations()
    yield from pages()
    most = message_limit(LARGEST)
    yield Case("BUFFERED over gRPC, too large", most - 100, _streamed(most - 100))
    yield Case("BUFFERED over gRPC, far too large", 4 * LARGEST, _streamed(4 * LARGEST))


def longest(case: Case, rounds: int = ROUNDS) -> float:
    """CPU seconds of the longest step, in the best of several runs."""
    best = float("inf")
    for _ in range(rounds):
        worst, started = 0.0, time.thread_time()
        for _ in case.steps():
            now = time.thread_time()
            worst, started = max(worst, now - started), time.thread_time()
        best = min(best, worst)
    return best


def main() -> int:
    wanted = " ".join(sys.argv[1:])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    above = 0
    print(f"{'what':42}{'bytes':>12}{'ms':>10}")
    for case in cases():
        if wanted not in case.name:
            continue
        seconds = longest(case)
        above += seconds > PROMISED
        print(
            f"{case.name:42}{case.size:12}{seconds * 1000:10.2f}{'  above' if seconds > PROMISED else ''}", flush=True
        )
    return 1 if above else 0


if __name__ == "__main__":
    raise SystemExit(main())
