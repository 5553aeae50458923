"""A proxy for tests: builds the messages that one sends, and reads the answers as one would."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2
from msgspec import Struct

from services.picker.extproc.conversation import Conversation
from services.picker.extproc.events import Completed, Event, Limits, RequestReady
from services.picker.extproc.headers import UndecodedHeaders, read_headers
from services.picker.extproc.messages import BodyMode, ProcessingRequest
from services.picker.request import Refusal, Route
from services.picker.responses.reader import ResponseReader

pb: Any = external_processor_pb2
base_pb: Any = base_pb2

FULL_DUPLEX = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)
LEAN = (BodyMode.BUFFERED, BodyMode.NONE)
ROUTE = Route(destinations=("10.0.0.1:8000",))

Headers = Mapping[str, str] | Iterable[tuple[str, str]]


def headers(
    values: Headers = (),
    *,
    end: bool = False,
    modes: tuple[BodyMode, BodyMode] | None = None,
    hint: Any = None,
    phase: str = "request_headers",
) -> Any:
    """Request headers (or, by `phase`, response headers). `modes` announces body modes, `hint` a subset."""
    message = pb.ProcessingRequest()
    shown = getattr(message, phase)
    shown.end_of_stream = end
    for name, value in values.items() if isinstance(values, Mapping) else values:
        shown.headers.headers.add(key=name, raw_value=value.encode())
    shown.SetInParent()
    if modes is not None:
        message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = modes
    return with_hint(message, hint)


def body(data: bytes = b"", *, end: bool = False, phase: str = "request_body", hint: Any = None) -> Any:
    message = pb.ProcessingRequest()
    shown = getattr(message, phase)
    shown.body = data
    shown.end_of_stream = end
    shown.SetInParent()
    return with_hint(message, hint)


def trailers(phase: str = "request_trailers") -> Any:
    message = pb.ProcessingRequest()
    getattr(message, phase).SetInParent()
    return message


def response_headers(status: int | str = 200, *, end: bool = False, served: str = "") -> Any:
    message = headers({":status": str(status)}, end=end, phase="response_headers")
    if served:
        message.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": served})
    return message


def response_body(data: bytes = b"", *, end: bool = False) -> Any:
    return body(data, end=end, phase="response_body")


def response_trailers() -> Any:
    return trailers("response_trailers")


def with_hint(message: Any, hint: Any) -> Any:
    if hint is not None:
        metadata = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        metadata.update({"x-gateway-destination-endpoint-subset": hint})
    return message


def decoded(shown: Any) -> Any:
    """What a phase shows, decoded to the last header; without what is deprecated or unknown in headers."""
    if isinstance(shown, UndecodedHeaders):
        read_headers(shown)
        return [base_pb.HeaderValue.FromString(entry) for entry in shown.entries], shown.end_of_stream
    return ([*shown.headers.headers], shown.end_of_stream) if isinstance(shown, pb.HttpHeaders) else shown


class Answer(Struct, frozen=True):
    """What a proxy reads from a `ProcessingResponse`."""

    phase: str
    set_headers: dict[str, str] = {}
    remove_headers: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    clear_route_cache: bool = False
    streamed: bytes | None = None
    end: bool = False
    replaced: bytes | None = None
    status: int = 0
    body: bytes = b""
    grpc_status: int | None = None
    patience: float = 0.0
    """Seconds that the proxy is asked to wait."""
    asked: BodyMode | None = None
    """The body mode that a `mode_override` asks for, for the response."""

    def __str__(self) -> str:
        words = [self.phase]
        if destination := self.set_headers.get("x-gateway-destination-endpoint"):
            words.append(f"to {destination}")
        if self.streamed is not None:
            words.append(f"echo {len(self.streamed)}")
        if self.replaced is not None:
            words.append(f"replaced {len(self.replaced)}")
        if self.end:
            words.append("end")
        if self.status:
            words.append(str(self.status))
        return " ".join(words)


def read(answer: bytes) -> Answer:
    message: Any = pb.ProcessingResponse.FromString(answer)
    phase = message.WhichOneof("response")
    if phase is None:
        return Answer("", patience=message.override_message_timeout.ToTimedelta().total_seconds())
    metadata = {
        key: value.string_value
        for key, value in message.dynamic_metadata.fields["envoy.lb"].struct_value.fields.items()
    }
    part = getattr(message, phase)
    if phase == "immediate_response":
        return Answer(
            phase,
            set_headers=_set(part.headers),
            status=part.status.code,
            body=part.body,
            grpc_status=part.grpc_status.status if part.HasField("grpc_status") else None,
        )
    if phase.endswith("trailers"):
        return Answer(phase, metadata=metadata)
    response = part.response
    mutation = response.body_mutation
    kind = mutation.WhichOneof("mutation")
    return Answer(
        phase,
        set_headers=_set(response.header_mutation),
        remove_headers=tuple(response.header_mutation.remove_headers),
        metadata=metadata,
        clear_route_cache=response.clear_route_cache,
        streamed=mutation.streamed_response.body if kind == "streamed_response" else None,
        end=mutation.streamed_response.end_of_stream,
        replaced=mutation.body if kind == "body" else None,
        asked=BodyMode(message.mode_override.response_body_mode) if message.HasField("mode_override") else None,
    )


def _set(mutation: Any) -> dict[str, str]:
    for option in mutation.set_headers:
        assert option.append_action == 2, "a header is overwritten, never appended"
        assert not option.header.value, "values travel as bytes"
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}


Decide = Callable[[RequestReady], Route | Refusal | None]


class Proxy:
    """Speaks with a conversation, and decides on its requests at once (`decide` gives None to let one wait)."""

    def __init__(
        self,
        decide: Decide = lambda _: ROUTE,
        limits: Limits | None = None,
        reader: ResponseReader | None = None,
        observe: bool = False,
    ) -> None:
        self.conversation = Conversation(limits or Limits(), lambda: "made-id")
        self.decide = decide
        self.reader = reader
        self.observe = observe
        self.relayed = 0
        """Messages that the conversation answered without having them decoded."""
        self.events: list[Event] = []
        self.now = 0.0

    def say(self, message: ProcessingRequest) -> list[Answer]:
        """What the picker answers to this message, as it travels: serialised and read again."""
        self.now += 1.0
        wire = message.SerializeToString()
        relayed = self.conversation.response.relay(wire)
        if relayed is not None:
            self.relayed += 1
            return list(map(read, relayed))
        for event in self.conversation.receive(wire, self.now):
            self.events.append(event)
            if isinstance(event, RequestReady) and (decision := self.decide(event)) is not None:
                self.answer(decision)
        return self.hear()

    def answer(self, decision: Route | Refusal) -> None:
        if isinstance(decision, Route):
            self.conversation.route(decision, self.reader, lambda: self.observe)
        else:
            self.conversation.refuse(decision)

    def hear(self) -> list[Answer]:
        return list(map(read, self.conversation.responses()))

    def hang_up(self) -> Completed | None:
        """End the stream; what the end told, if anything."""
        events = self.conversation.end(self.now + 1.0)
        self.events.extend(events)
        assert len(events) <= 1
        for event in events:
            assert isinstance(event, Completed)
            return event
        return None

    @property
    def ready(self) -> RequestReady:
        """The one request that the conversation has told of."""
        found = [event for event in self.events if isinstance(event, RequestReady)]
        assert len(found) == 1, f"{len(found)} requests"
        return found[0]
