"""The protobuf messages of `envoy.service.ext_proc.v3`, typed as far as the conversation knows them.

`xds-protos` has no type stubs: untyped access is here, in `incoming`, which reads, and in `outgoing`, which answers.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from envoy.service.ext_proc.v3 import external_processor_pb2
from msgspec import Struct

_pb: Any = external_processor_pb2

Phase = Literal[
    "request_headers",
    "request_body",
    "request_trailers",
    "response_headers",
    "response_body",
    "response_trailers",
]


class HttpHeaders(Protocol):
    """`HttpHeaders`: the headers, and whether nothing follows them."""

    headers: Any
    end_of_stream: bool


class HttpBody(Protocol):
    """`HttpBody`: the whole body, or a piece of it, as the body mode says."""

    body: bytes
    end_of_stream: bool
    end_of_stream_without_message: bool
    grpc_message_compressed: bool

    def ByteSize(self) -> int: ...


if TYPE_CHECKING:

    class ProcessingRequest:
        """One phase of one HTTP request or response, as the proxy sees it."""

        request_headers: HttpHeaders
        response_headers: HttpHeaders
        request_body: HttpBody
        response_body: HttpBody
        metadata_context: Any
        attributes: Mapping[str, Any]
        protocol_config: Any

        @staticmethod
        def FromString(data: bytes) -> "ProcessingRequest": ...
        def SerializeToString(self) -> bytes: ...
        def WhichOneof(self, oneof: Literal["request"]) -> Phase | None: ...
        def HasField(self, name: str) -> bool: ...

    class ProcessingResponse:
        """The answer to one phase."""

        @staticmethod
        def FromString(data: bytes) -> "ProcessingResponse": ...
        def SerializeToString(self) -> bytes: ...

else:
    ProcessingRequest = _pb.ProcessingRequest
    ProcessingResponse = _pb.ProcessingResponse


class BodyMode(IntEnum):
    """`ProcessingMode.BodySendMode`: how a proxy shows bodies, and what it expects back."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class BodyModes(Struct, frozen=True):
    """The modes of one conversation. The defaults are what gateways configure."""

    request: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response: BodyMode = BodyMode.FULL_DUPLEX_STREAMED


GATEWAY_MODES = BodyModes()
