"""What must hold of gRPC streams, whatever a proxy says: a message is one or isn't, the picker answers as the protocol
has it, and when the stream has ended nothing of it is left.

An input is a sequence of messages, with lines of two dashes between them: each the bytes of a `ProcessingRequest`, or a
JSON object that stands for one, such as `{"request_headers": {":path": "/x"}, "end": true, "modes": [2, 0]}`.
"""

from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2
from google.protobuf.message import DecodeError
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from services.picker.extproc import incoming
from services.picker.extproc.headers import read_status
from services.picker.request_stream import RequestStream
from shared.attributes import WAITING_QUEUE_SIZE
from shared.model import Model, ModelRewrite, RewriteRule, Target
from tests.fuzz import sequences
from tests.unit.services.picker.extproc.proxy import body, decoded, headers, read, trailers
from tests.unit.services.picker.handler import PickerUnderTest
from tests.unit.services.picker.world import pool, report

_pb: Any = external_processor_pb2
DOCUMENT = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 2}
"""
LIMIT = 2000
"""Bytes of a request's body."""
HEADERS = ("request_headers", "response_headers")
BODIES = ("request_body", "response_body")
TRAILERS = ("request_trailers", "response_trailers")
ANSWERS = (*HEADERS, *BODIES, *TRAILERS, "immediate_response")


def check(data: bytes) -> None:
    """Raises AssertionError, or what the picker let out, for an input that shows a fault."""
    messages = [_message(part) for part in sequences.parts(data)]
    for message in messages:
        _check_message(message)
    with capture_logs() as logs:
        _converse(messages)
    assert not [line for line in logs if line["log_level"] == "error"], logs


def _converse(messages: list[bytes]) -> None:
    view = pool("a1", "a2", "a3")
    report(view, {WAITING_QUEUE_SIZE: [0, 1, 2]})
    view.upsert("r", ModelRewrite(name="r", rules=(RewriteRule(models=("m",), targets=(Target(model="tuned"),)),)))
    view.upsert("o", Model(name="o", model_name="old", targets=(Target(model="older", weight=1),)))
    picker = PickerUnderTest(view, DOCUMENT, limit=LIMIT)
    stream = RequestStream(picker.handler)
    shown: list[str | None] = []
    try:
        for message in messages:
            phase = incoming.read(message).phase
            shown.append(phase)
            answers = [read(answer) for answer in stream.receive(message) if answer]
            for answer in answers:
                assert answer.phase in ANSWERS
                assert answer.phase == "immediate_response" or answer.phase in shown, (answer, shown)
            assert sum(picker.load.values()) <= 1
            assert view.in_flight.requests.sum() == sum(picker.load.values())
            assert (view.in_flight.tokens >= 0).all()
            if stream.closed:
                break
            picker.now += 0.1
    except DecodeError:
        pass  # which ends the stream
    for _ in range(2):
        stream.end()
    assert (picker.load, picker.tokens, picker.handler.open, picker.handler.observing) == ({}, 0, 0, 0)
    assert picker.handler.budget.used == 0
    assert not view.in_flight.requests.any()
    assert not view.in_flight.tokens.any()
    assert len(picker.ring) <= 1
    for decision in picker.ring.newest(1):
        assert decision.progress.state != "under way"
    generate_latest(picker.registry)


def _check_message(data: bytes) -> None:
    """The shorter way of reading a message reads what protobuf does."""
    try:
        whole = _pb.ProcessingRequest.FromString(data)
    except DecodeError:
        try:
            decoded(incoming.read(data).shown)
        except DecodeError:
            return
        raise AssertionError("it is no message") from None
    message = incoming.read(data)
    phase = whole.WhichOneof("request")
    assert message.phase == phase
    if phase is not None:
        assert phase in TRAILERS or decoded(message.shown) == decoded(getattr(whole, phase))
        again = incoming.read(whole.SerializeToString(deterministic=True))
        assert message.context == again.context, (message.context, again.context)
        if phase in HEADERS:
            read_status(message.shown)


def _message(part: bytes) -> bytes:
    """The bytes that a part of an input stands for."""
    try:
        return _built(sequences.value(part)).SerializeToString()  # type: ignore[no-any-return]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return part


def _built(fields: dict[str, Any]) -> Any:
    hint = fields.get("hint")
    end = bool(fields.get("end"))
    for phase in HEADERS:
        if phase in fields:
            modes = fields.get("modes")
            values = fields[phase].items() if isinstance(fields[phase], dict) else fields[phase]
            message = headers(values, end=end, modes=None if modes is None else tuple(modes), hint=hint, phase=phase)
            if served := fields.get("served"):
                message.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": served})
            return message
    for phase in BODIES:
        if phase in fields:
            return body(str(fields[phase]).encode("utf-8", "replace"), end=end, phase=phase, hint=hint)
    (phase,) = (trailer for trailer in TRAILERS if trailer in fields)
    return trailers(phase)
