"""The protobuf messages of `envoy.service.ext_proc.v3`, and how a proxy shows bodies. `xds-protos` has no types."""

from enum import IntEnum
from typing import Any, Literal

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


ProcessingRequest: Any = _pb.ProcessingRequest
"""One phase of one HTTP request or response, as the proxy sees it."""
ProcessingResponse: Any = _pb.ProcessingResponse
"""The answer to one phase."""


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
