"""Requests through a picker, message by message: who is picked, what goes back, and what is counted."""

import json
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Struct

from services.picker.extproc.messages import BodyMode
from services.picker.request_stream import RequestStream
from services.picker.state.view import View
from shared.attributes import ACTIVE_MODELS, KV_CACHE_USAGE, MAX_ACTIVE_MODELS, WAITING_QUEUE_SIZE
from shared.model import ModelRewrite, Objective, RewriteRule, Target
from tests.unit.services.picker.extproc.proxy import (
    FULL_DUPLEX,
    LEAN,
    Answer,
    body,
    headers,
    response_body,
    response_trailers,
)
from tests.unit.services.picker.handler import PickerUnderTest, destinations
from tests.unit.services.picker.parsers.vllm_schema import message
from tests.unit.services.picker.world import pool, report

SCORERS = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: lora-affinity-scorer
"""
PASSTHROUGH = SCORERS + "- type: passthrough-parser\nrequestHandler: {parsers: [{pluginRef: passthrough-parser}]}\n"
VLLM_GRPC = SCORERS + "- type: vllmgrpc-parser\nrequestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}\n"
GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
EMBED = "/vllm.grpc.engine.VllmEngine/Embed"

Load = tuple[int, float, Sequence[str]]
"""Waiting requests, share of the KV cache that is used, adapters that are loaded. There is room for two."""
BY_LOAD: Sequence[Load] = ((3, 0.2, ()), (0, 0.1, ()), (10, 0.2, ()))
BY_ADAPTER: Sequence[Load] = ((0, 0.2, ("foo", "bar")), (0, 0.1, ("foo", "tuned")), (10, 0.2, ("foo", "bar")))
FULL: Sequence[Load] = ((6, 0.2, ("foo", "bar", "tuned")), (0, 0.85, ("foo",)), (10, 0.9, ("foo",)))
THREE = ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]


def completion(model: str, prompt: str = "test") -> bytes:
    """With numbers and an order of keys that a re-serialisation wouldn't keep."""
    return b'{"temperature": 0.10, "model":%s,"seed":12345678901234567890, "prompt":%s}' % (
        json.dumps(model).encode(),
        json.dumps(prompt).encode(),
    )


def frame(kind: str, **fields: Any) -> bytes:
    payload: bytes = message(kind, **fields).SerializeToString()
    return struct.pack(">BI", 0, len(payload)) + payload


class Case(Struct, frozen=True, kw_only=True):
    loads: Sequence[Load] = BY_LOAD
    sent: dict[str, str] = {}
    data: bytes = completion("m")
    cut: int = 0
    """Where the body is cut in two; 0: it isn't."""
    hint: Any = None
    document: str = SCORERS
    to: str
    gets: bytes = b""
    """The body at the server, where it isn't the client's."""
    counted: tuple[str, str, str] = ("m", "m", "0")
    """The labels model_name, target_model_name and priority."""


def rewritten(model: str, target: str) -> dict[str, Any]:
    return {
        "sent": {"x-gateway-model-name-rewrite": target, "x-gateway-inference-objective": "high"},
        "data": completion(model),
        "gets": completion(target),
        "counted": (model, target, "2"),
    }


def call(path: str, data: bytes, **more: Any) -> dict[str, Any]:
    sent = {":path": path, "content-type": "application/grpc", **more.pop("sent", {})}
    return {"document": VLLM_GRPC, "data": data, "sent": sent, "counted": ("", "", "0"), **more}


TEXT = frame("GenerateRequest", text="hello", stream=True)
IDS = frame("EmbedRequest", tokenized={"original_text": "hello", "input_ids": [1, 2, 3]})

CASES: dict[str, Case] = {
    "the shorter queue and the emptier cache": Case(to="2", **rewritten("m", "m-v2")),
    "the adapter that is loaded": Case(loads=BY_ADAPTER, to="2", **rewritten("m", "tuned")),
    "an adapter weighs more than some room in the cache": Case(
        loads=[(10, 0.2, ("foo", "bar")), (10, 0.4, ("foo", "tuned")), (10, 0.3, ("foo",))],
        to="2",
        **rewritten("m", "tuned"),
    ),
    "nothing is shed by default, however full the pool is": Case(loads=FULL, to="1", **rewritten("m", "tuned")),
    "a body in two pieces, cut in the model's name": Case(
        loads=[(4, 0.2, ("tuned",)), (4, 0.85, ("tuned",))], cut=37, to="1", **rewritten("m", "tuned")
    ),
    "the best of a subset": Case(loads=BY_ADAPTER, hint=THREE, to="2", **rewritten("m", "tuned")),
    "a subset of one, though it is the worst": Case(loads=BY_ADAPTER, hint=THREE[2:], to="3"),
    "a subset as a text": Case(hint="10.0.0.3:8000, 10.0.0.1:8000", to="1"),
    "a subset that names an address without its port": Case(hint=["10.0.0.3"], to="3"),
    "a subset without its key": Case(hint=7, to="2"),
    "a rewrite to the client's own model": Case(
        sent={"x-gateway-model-name-rewrite": "m"}, cut=9, to="2", counted=("m", "m", "0")
    ),
    "a rule goes before the header": Case(
        sent={"x-llm-d-model-name-rewrite": "other", "x-llm-d-inference-objective": "unknown"},
        data=completion("ruled"),
        gets=completion("by-rule"),
        to="2",
        counted=("ruled", "by-rule", "0"),
    ),
    "an objective that has no priority": Case(sent={"x-gateway-inference-objective": "plain"}, to="2"),
    "a body that nobody reads": Case(
        document=PASSTHROUGH,
        data=b"passthrough-parser",
        sent={"x-gateway-inference-objective": "high"},
        to="2",
        counted=("", "", "2"),
    ),
    "an API that nobody reads": Case(sent={":path": "/v1/rerank"}, data=b"\xff\x00", to="2", counted=("", "", "0")),
    "gRPC: a text": Case(
        to="2", **call(GENERATE, TEXT, sent={"x-gateway-inference-objective": "high"}, counted=("", "", "2"))
    ),
    "gRPC: token ids": Case(to="2", **call(EMBED, IDS)),
    "gRPC: a frame in two pieces": Case(
        loads=[(4, 0.2, ()), (4, 0.85, ())], cut=len(TEXT) // 2, to="1", **call(GENERATE, TEXT)
    ),
    "gRPC: a subset of one": Case(to="3", hint=THREE[2:], **call(GENERATE, TEXT)),
    "gRPC: a method that nobody reads": Case(to="2", **call("/grpc.health.v1.Health/Check", b"\0\0\0\0\0")),
}


def view(loads: Sequence[Load]) -> View:
    made = pool(*(f"a{number}" for number in range(1, len(loads) + 1)))
    report(
        made,
        {
            WAITING_QUEUE_SIZE: [queue for queue, _, _ in loads],
            KV_CACHE_USAGE: [usage for _, usage, _ in loads],
            ACTIVE_MODELS: [tuple(adapters) for _, _, adapters in loads],
            MAX_ACTIVE_MODELS: [2] * len(loads),
        },
    )
    made.upsert("pool.objective.high", Objective(name="high", priority=2))
    made.upsert("pool.objective.plain", Objective(name="plain"))
    rule = RewriteRule(models=("ruled",), targets=(Target(model="by-rule"),))
    made.upsert("pool.rewrite.r", ModelRewrite(name="r", rules=(rule,)))
    return made


def ask(picker: PickerUnderTest, case: Case) -> tuple[RequestStream, list[Answer]]:
    sent = {":method": "POST", ":path": "/v1/completions", "hi": "mom", "x-request-id": "theirs", **case.sent}
    pieces = [case.data[: case.cut], case.data[case.cut :]] if case.cut else [case.data]
    stream, early = picker.begin(
        headers(sent, modes=FULL_DUPLEX, hint=case.hint), *(body(piece) for piece in pieces[:-1])
    )
    assert early == [], "the answer waits for the end of the body"
    return stream, picker.say(stream, body(pieces[-1], end=True, hint=case.hint))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_request(case: Case) -> None:
    picker = PickerUnderTest(view(case.loads), case.document)
    stream, (head, echo) = ask(picker, case)
    to = f"10.0.0.{case.to}:8000"
    assert (head.phase, head.clear_route_cache) == ("request_headers", True)
    gets = case.gets or case.data
    changed = {"content-length": str(len(gets))} if case.gets else {}
    assert head.set_headers == {"x-gateway-destination-endpoint": to, **changed}, "only what changes is set"
    assert head.metadata == {"x-gateway-destination-endpoint": to}
    assert head.remove_headers == tuple(sorted(name for name in case.sent if name.startswith("x-")))
    assert (echo.phase, echo.streamed, echo.end) == ("request_body", gets, True)
    assert picker.load == {f"a{case.to}": 1}
    picker.say(stream, headers({":status": "200"}, phase="response_headers"))
    model, target, priority = case.counted
    for prefix in ("inference_objective_", "llm_d_epp_"):
        labels = {"model_name": model, "target_model_name": target, "priority": priority}
        assert picker.sample(f"{prefix}request_total", **labels) == 1
    assert picker.sample("inference_pool_ready_pods", name="") == len(case.loads)
    stream.end()
    assert (picker.load, picker.handler.open) == ({}, 0)


def test_a_request_without_a_body_is_scheduled_and_keeps_to_its_subset() -> None:
    picker = PickerUnderTest(view(BY_LOAD), SCORERS)
    sent = {":method": "GET", ":path": "/v1/models", "content-type": "text/event-stream"}
    for hint, to in ((None, THREE[1]), (THREE[2:], THREE[2])):
        assert destinations(picker.begin(headers(sent, end=True, modes=FULL_DUPLEX, hint=hint))[1]) == to


# -- responses

WHOLE = b'{"object":"chat.completion","model":"m-v2","usage":{"prompt_tokens":7,"completion_tokens":10}}'
EVENTS = (
    b'data: {"model":"m-v2","choices":[]}\n\n',
    b'data: {"model":"m-v2","usage":{"prompt_tokens":7,"completion_tokens":10}}\n\ndata: [DONE]\n\n',
)
MODELS = {"model_name": "m", "target_model_name": "m-v2"}


@pytest.mark.parametrize("ending", ["last piece", "empty piece", "trailers"])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream; charset=utf-8"])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("modes", [FULL_DUPLEX, (BodyMode.BUFFERED, BodyMode.STREAMED), LEAN])
def test_response(modes: tuple[BodyMode, BodyMode], streams: bool, kind: str, ending: str) -> None:
    """Whatever was asked for and whatever comes: tokens are counted, the client's model is back, and the request is
    over once, with the last piece or the trailers and not with the stream."""
    picker = PickerUnderTest(view(BY_LOAD), SCORERS)
    stream = RequestStream(picker.handler)
    sent = {":method": "POST", ":path": "/v1/completions", "x-gateway-model-name-rewrite": "m-v2"}
    asked = completion("m").replace(b"{", b'{"stream":true,' if streams else b"{", 1)
    picker.say(stream, headers(sent, modes=modes), body(asked, end=True))
    (head,) = picker.say(stream, headers({":status": "200", "content-type": kind}, phase="response_headers"))
    assert head.remove_headers == ("content-length",)
    assert head.asked == (BodyMode.STREAMED if modes is LEAN else None)
    pieces = [*EVENTS] if kind.startswith("text") else [WHOLE[:30], WHOLE[30:]]
    bodies = [response_body(piece, end=ending == "last piece" and piece is pieces[-1]) for piece in pieces]
    if ending == "empty piece":
        bodies.append(response_body(b"", end=True))
    if ending == "trailers":
        bodies.append(response_trailers())
    answers: list[Answer] = []
    got = b""
    for piece_message in bodies:
        assert picker.load == {"a2": 1}
        for answer in picker.say(stream, piece_message):
            answers.append(answer)
            kept = b"" if modes is FULL_DUPLEX else piece_message.response_body.body
            got += answer.streamed or (kept if answer.replaced is None else answer.replaced)
    assert picker.load == {}
    assert got == b"".join(pieces).replace(b'"m-v2"', b'"m"')
    assert [answer.end for answer in answers][-1] is (ending != "trailers" and modes is FULL_DUPLEX)
    assert (answers[-1].phase == "response_trailers") is (ending == "trailers")
    stream.end()
    assert (picker.load, picker.handler.open) == ({}, 0)
    for name, count, total in (
        ("inference_objective_input_tokens", 1, 7),
        ("inference_objective_output_tokens", 1, 10),
        ("inference_objective_response_sizes", 1, len(b"".join(pieces))),
        ("inference_objective_request_duration_seconds", 1, 0),
        ("inference_objective_request_ttft_seconds", 1 if streams else None, 0 if streams else None),
    ):
        assert picker.sample(f"{name}_count", **MODELS) == count
        assert picker.sample(f"{name}_sum", **MODELS) == total
    assert picker.sample("inference_objective_running_requests", model_name="m") == 0


def test_a_clients_trace_is_continued_and_its_own_headers_are_left_alone() -> None:
    """Nothing of these is set or removed: the proxy sends them on as they came, every value of each."""
    theirs = {
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "a=b",
        "baggage": "c=d",
        "authorization": "Bearer x",
        "cookie": "a=b",
        "content-length": "9999",
    }
    picker = PickerUnderTest(view(BY_LOAD), SCORERS)
    sent = [(":method", "POST"), (":path", "/v1/completions"), *theirs.items(), ("cookie", "c=d")]
    _, (head, _) = picker.begin(headers(sent, modes=FULL_DUPLEX), body(completion("m"), end=True))
    assert head.set_headers.keys() == {"x-gateway-destination-endpoint", "x-request-id"}
    assert head.remove_headers == ()
