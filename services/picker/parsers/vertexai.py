"""`vertexai-parser`: Vertex AI's gRPC service for predictions, whose messages carry JSON of the OpenAI API.

The message stays as it came, so a model isn't rewritten in it. https://github.com/googleapis/googleapis has the
service's schema, `google/cloud/aiplatform/v1beta1/prediction_service.proto`.
"""

from typing import ClassVar

from msgspec.structs import replace

from services.picker.parsers.grpc_frame import COMPRESSED, INFLATED, first_message, is_grpc
from services.picker.parsers.json_values import JsonParameters
from services.picker.parsers.openai import OpenAIParser
from services.picker.parsers.parser import Parser
from services.picker.parsers.protobuf import Reader
from services.picker.request import Content, Headers, Unparsable

_METHODS = {"ChatCompletions": "/chat/completions", "StreamRawPredict": "/responses", "RawPredict": "/responses"}
CARRIED = {
    f"/google.cloud.aiplatform.{version}.PredictionService/{method}": api
    for version in ("v1", "v1beta1")
    for method, api in _METHODS.items()
}
"""The OpenAI API of the JSON that a method's request carries."""
_MAX_FIELDS = 5_000
"""Fields of a message and of its HTTP body."""
_HTTP_BODY, _DATA = 2, 2
"""Fields: `http_body` of the three requests, `data` of `google.api.HttpBody`."""


class VertexAiParser(Parser):
    """Reads the JSON in the messages, and lets all other gRPC calls pass."""

    TYPE = "vertexai-parser"
    Parameters = JsonParameters
    SUFFIXES: ClassVar[tuple[str, ...]] = tuple(CARRIED)
    parameters: JsonParameters

    def __init__(self, name: str, parameters: JsonParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._openai = OpenAIParser(name, self.parameters)

    def takes(self, headers: Headers) -> bool:
        """Also calls of other methods and services, such as health checks: whatever is gRPC."""
        return is_grpc(headers)

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        api = next((api for method, api in CARRIED.items() if path.endswith(method)), "")
        if not api:
            return Content()
        message = first_message(body, headers.get("grpc-encoding"), INFLATED, COMPRESSED)
        if message is None:
            return Content()
        name = f"{path.rpartition('/')[2]}Request"
        try:
            carried = _data(message)
        except ValueError as error:
            raise Unparsable(f"the {name} can't be read: {error}") from error
        if carried is None:
            raise Unparsable(f"the {name} has no http_body; it carries the request")
        return replace(self._openai.parse(api, headers, carried), takes_model=False, model_fixed=True)


def _data(message: memoryview) -> bytes | None:
    """The data of the message's HTTP body; None if it has none. Raises ValueError for what is no message."""
    reader = Reader(_MAX_FIELDS)
    bodies = [value for number, value in reader.fields(message) if number == _HTTP_BODY]
    found: bytes | None = None
    for body in bodies:
        if isinstance(body, memoryview):
            found = found or b""
            for number, value in reader.fields(body):
                if number == _DATA and isinstance(value, memoryview):
                    found = bytes(value)
    return found
