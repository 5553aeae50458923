"""The catalogue of refusals: what a client gets in each situation in which its request isn't routed.

One table, from the proxy's first message to the answer, in both ways that proxies show bodies: status, `error.type`, a
piece of the message that says what is wrong, and the headers besides the content type.
"""

import json
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from structlog.testing import capture_logs

from services.picker.extproc.messages import BodyMode
from services.picker.request import Refusal
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.model import Model, Objective
from tests.unit.services.picker.extproc.proxy import FULL_DUPLEX, LEAN, Answer, Headers, body, headers
from tests.unit.services.picker.handler import PickerUnderTest, refused
from tests.unit.services.picker.world import pool, report

BAD = "invalid_request_error"
RETRY = {"retry-after": "1"}
EMPTY = {**RETRY, "x-llm-d-request-dropped-reason": "rejected-no-endpoints"}
SATURATED = {**RETRY, "x-llm-d-request-dropped-reason": "rejected-saturated"}
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = json.dumps({"model": "m", "messages": MESSAGES}).encode()
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
NOBODY = HEAD + "plugins:\n- type: label-selector-filter\n  parameters: {matchLabels: {role: nobody}}\n"
OPENAI_ALONE = HEAD + "plugins:\n- type: openai-parser\nrequestHandler: {parsers: [{pluginRef: openai-parser}]}\n"
VLLM_GRPC = HEAD + "plugins:\n- type: vllmgrpc-parser\nrequestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}\n"


class Case(Struct, frozen=True, kw_only=True):
    path: str = "/v1/chat/completions"
    sent: Any = CHAT
    """The body; what isn't bytes is sent as JSON. None: a request without a body."""
    more: dict[str, str] = {}
    """Headers besides method and path."""
    hint: Any = None
    endpoints: Sequence[str] = ("a1", "a2")
    busy: bool = False
    document: str = ""
    models: bool = False
    """Whether the pool has an InferenceModel."""
    status: int = 400
    kind: str = BAD
    says: str
    gets: dict[str, str] = {}
    limit: int = 10_000
    decided: bool = True
    """Whether it is refused by a decision, which is kept, and not before."""


CASES: dict[str, Case] = {
    "no JSON": Case(sent=b"no healthy upstream", says="JSON"),
    "a chat without a body": Case(
        sent=None, more={":method": "POST"}, says="the body is empty; a JSON object is needed"
    ),
    "an empty body": Case(sent=b"", says="the body is empty; a JSON object is needed"),
    "invalid UTF-8": Case(sent=b'{"model":"\xff"}', says=""),
    "nested without end": Case(sent=b'{"model":"m","messages":' + b"[" * 5_000, says=""),
    "a completion without a prompt": Case(path="/v1/completions", sent={"model": "m"}, says="prompt: missing"),
    "a chat without messages": Case(sent={"model": "m"}, says="messages: missing"),
    "a chat whose messages are a text": Case(sent={"model": "m", "messages": "hi"}, says="messages"),
    "a chat with a query in its path": Case(path="/v1/chat/completions?x=1", sent={"model": "m"}, says="messages"),
    "tokens of vLLM's API without one": Case(path="/inference/v1/generate", sent={"model": "m"}, says="token_ids"),
    "no model": Case(sent={"messages": MESSAGES}, says="model not found in request body"),
    "no model, and no endpoint either": Case(
        sent={"messages": MESSAGES}, endpoints=(), says="model not found in request body"
    ),
    "a model that is no text": Case(sent={"model": 7, "messages": MESSAGES}, says="model"),
    "an API that no parser reads": Case(
        path="/v1/rerank", document=OPENAI_ALONE, says="no parser registered matching path suffix for: /v1/rerank"
    ),
    "a body above the limit": Case(sent=b"x" * 101, limit=100, status=413, says="larger than the limit of 100 bytes"),
    "too many bytes of headers": Case(
        more={"x-large": "x" * 300_000}, status=431, says="1000 headers with 262144 bytes"
    ),
    "a model that the pool doesn't name": Case(
        models=True, status=404, kind="model_not_found", says="'m' is not served by this pool"
    ),
    "a sheddable request, in a full pool": Case(
        busy=True,
        more={"x-gateway-inference-objective": "batch"},
        status=429,
        kind="rate_limit_exceeded",
        says="system saturated, sheddable request dropped",
        gets=SATURATED,
    ),
    "a sheddable request, in an empty pool": Case(
        endpoints=(),
        more={"x-llm-d-inference-objective": "batch"},
        status=503,
        kind="service_unavailable",
        says="no endpoints",
        gets=EMPTY,
    ),
    "an empty pool": Case(endpoints=(), status=503, kind="service_unavailable", says="no endpoints", gets=EMPTY),
    "a request without a body, in an empty pool": Case(
        path="/v1/models", sent=None, endpoints=(), status=503, kind="service_unavailable", says="no", gets=EMPTY
    ),
    "a body that nobody reads, in an empty pool": Case(
        path="/v1/rerank", sent=b"x", endpoints=(), status=503, kind="service_unavailable", says="no", gets=EMPTY
    ),
    "a subset that names nobody": Case(
        hint=["10.9.9.9:8000"], status=503, kind="service_unavailable", says="subset hint", gets=EMPTY
    ),
    "a subset with another port": Case(
        hint=["10.0.0.1:9000"], status=503, kind="service_unavailable", says="subset hint", gets=EMPTY
    ),
    "a subset of too many entries": Case(hint=["10.0.0.1"] * 5_001, says="more than 5000 entries", decided=False),
    "a subset of too many entries in one text": Case(
        hint="10.0.0.1," * 5_001, says="more than 5000 entries", decided=False
    ),
    "an empty subset": Case(hint=[], status=503, kind="service_unavailable", says="subset hint", gets=EMPTY),
    "an empty subset, without a body": Case(
        path="/v1/models", sent=None, hint=[], status=503, kind="service_unavailable", says="subset", gets=EMPTY
    ),
    "filters that leave nobody": Case(
        document=NOBODY,
        status=429,
        kind="rate_limit_exceeded",
        says="no endpoints available for the given request",
        gets=SATURATED,
    ),
    "a prompt that nobody has cached, for who prefers no other": Case(
        more={"prefer": "respond-async, If-Available; wait=1"},
        status=412,
        kind="precondition_failed",
        says="no decode worker has the requested KV cache",
    ),
}


def view(case: Case) -> View:
    made = pool(*case.endpoints)
    if case.busy:
        report(made, {WAITING_QUEUE_SIZE: [9, 9], KV_CACHE_USAGE: [0.5, 0.5]})
    made.upsert("pool.objective.batch", Objective(name="batch", priority=-1))
    if case.models:
        made.upsert("pool.model.x", Model(name="x", model_name="another"))
    return made


def ask(case: Case, modes: tuple[BodyMode, BodyMode], picker: PickerUnderTest) -> Answer:
    method = "GET" if case.sent is None else "POST"
    sent: Headers = {":method": method, ":path": case.path, **case.more}
    messages: list[Any] = [headers(sent, modes=modes, hint=case.hint, end=case.sent is None)]
    if case.sent is not None:
        data = case.sent if isinstance(case.sent, bytes) else json.dumps(case.sent).encode()
        messages += [body(data[:20]), body(data[20:], end=True)] if modes is FULL_DUPLEX else [body(data, end=True)]
    stream, answers = picker.begin(*messages)
    assert stream.closed
    assert not any(answer.set_headers.get("x-gateway-destination-endpoint") for answer in answers)
    stream.end()
    return refused(answers)


@pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX], ids=["buffered", "full duplex"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_refusal(case: Case, modes: tuple[BodyMode, BodyMode]) -> None:
    picker = PickerUnderTest(view(case), case.document, limit=case.limit)
    answer = ask(case, modes, picker)
    error = json.loads(answer.body)["error"]
    assert error == {"message": error["message"], "type": case.kind, "param": None, "code": case.status}
    assert answer.status == case.status
    assert case.says in error["message"]
    assert error["message"]
    assert len(error["message"]) < 500
    assert answer.set_headers == {"content-type": "application/json", **case.gets}
    assert answer.grpc_status is None
    assert (picker.load, picker.handler.open, picker.metrics.statuses) == ({}, 0, {case.status: 1})
    decided = [decision.explain()["refused"]["message"] for decision in picker.ring.newest(9)]
    assert len(decided) == (case.decided and case.status not in (413, 431))
    assert all(kept == error["message"] or len(kept) < len(error["message"]) for kept in decided)
    if case.status == 413:
        labels = {"error_code": "BadRequest", "model_name": "", "target_model_name": ""}
        assert picker.sample("llm_d_epp_request_error_total", **labels) == 1


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"messages": "a secret"}, "messages: expected array | null, got str"),
        (
            {"messages": [{"content": {"text": "a secret"}}]},
            "messages[0].content: expected str | array | null, got object",
        ),
        ({"model": ["a secret"], "messages": [{}]}, "model: not a string; a model name is needed"),
    ],
)
def test_what_a_refusal_quotes_of_the_body_the_client_reads_and_nobody_else(sent: dict[str, Any], kept: str) -> None:
    picker = PickerUnderTest(pool("a1"))
    picker.handler.log_decisions = True
    with capture_logs() as lines:
        answer = ask(Case(status=400, says="", sent={"model": "m", **sent}), LEAN, picker)
    assert "a secret" in json.loads(answer.body)["error"]["message"]
    (decision,) = picker.ring.newest(1)
    assert isinstance(decision.outcome, Refusal)
    assert decision.outcome.message == kept
    assert [line["refused"]["message"] for line in lines] == [kept]


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    412: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "overloaded_error",
}
"""What the Messages API calls an error with this status."""
CHATS = {name: case for name, case in CASES.items() if case.path == "/v1/chat/completions"}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/?beta=true"])
@pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX], ids=["buffered", "full duplex"])
@pytest.mark.parametrize("case", CHATS.values(), ids=CHATS.keys())
def test_refusal_by_the_messages_api(case: Case, modes: tuple[BodyMode, BodyMode], path: str) -> None:
    """The same is wrong with a message as with a chat, and is said in Anthropic's form, whoever refuses it when."""
    case = msgspec.structs.replace(case, path=path)
    picker = PickerUnderTest(view(case), case.document, limit=case.limit)
    answer = ask(case, modes, picker)
    document = json.loads(answer.body)
    assert (answer.status, document["type"], document["error"]["type"]) == (
        case.status,
        "error",
        ANTHROPIC_TYPES[case.status],
    )
    assert case.says in document["error"]["message"]
    assert set(document) | set(document["error"]) == {"type", "error", "message"}
    assert answer.set_headers == {"content-type": "application/json", **case.gets}
    assert (picker.load, picker.handler.open) == ({}, 0)


def frame(payload: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(payload)) + payload


GRPC: dict[str, tuple[bytes, Sequence[str], int, int, str]] = {
    "no frame": (b"plain text not grpc payload style", ("a1",), 400, 3, "frame"),
    "compressed by nobody knows what": (frame(b"x", flag=1), ("a1",), 400, 3, "grpc-encoding"),
    "a request without input": (frame(b""), ("a1",), 400, 3, "neither text nor tokenized"),
    "an empty pool": (frame(b"\x1a\x02hi"), (), 503, 14, "no endpoints"),
}


@pytest.mark.parametrize("case", GRPC.values(), ids=GRPC.keys())
def test_refusal_of_a_grpc_call(case: tuple[bytes, Sequence[str], int, int, str]) -> None:
    """A proxy makes `grpc-message` of the body, so it is plain text."""
    data, endpoints, status, grpc_status, says = case
    picker = PickerUnderTest(pool(*endpoints), VLLM_GRPC)
    sent = {
        ":method": "POST",
        ":path": "/vllm.grpc.engine.VllmEngine/Generate",
        "content-type": "application/grpc",
    }
    stream, answers = picker.begin(headers(sent, modes=FULL_DUPLEX), body(data, end=True))
    answer = refused(answers)
    assert (answer.status, answer.grpc_status) == (status, grpc_status)
    assert says in answer.body.decode()
    assert not answer.body.startswith(b"{")
    assert answer.set_headers == (EMPTY if status == 503 else {})
    stream.end()
    assert picker.handler.open == 0
