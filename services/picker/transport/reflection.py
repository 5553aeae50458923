"""gRPC server reflection, so that tools such as grpcurl can call what a server has.

https://github.com/grpc/grpc/blob/master/doc/server-reflection.md. The two versions have the same messages.
"""

from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2

from services.picker.transport.calls import Metadata, Methods, StatusCode, Stream, refuses_request
from services.picker.transport.few_calls import FewCalls

_pb: Any = reflection_pb2
_PATHS = (
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


class Reflection:
    """Answers for these services, whose descriptors are in protobuf's default pool."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = services
        self._pool: Any = descriptor_pool.Default()
        self._calls = FewCalls()
        self._found: dict[str, bytes] = {}
        """What answers have of a file: making it takes a hundred times as long as sending it."""

    @property
    def methods(self) -> Methods:
        return self._calls.of(dict.fromkeys(_PATHS, self._begin))

    def answer(self, data: bytes) -> bytes:
        """The answer to a serialized `ServerReflectionRequest`. Raises ValueError for bytes that are none."""
        try:
            request = _pb.ServerReflectionRequest.FromString(data)
        except Exception as error:
            raise ValueError(str(error)) from error
        answer = _pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            for name in self._services:
                answer.list_services_response.service.add(name=name)
            return _serialized(answer)
        try:
            file = self._file(kind, request)
        except KeyError:
            answer.error_response.error_code = StatusCode.NOT_FOUND
            answer.error_response.error_message = "the server has no such thing"
        else:
            return _serialized(answer) + self._with_dependencies(file)  # joined, two messages are one with all fields
        return _serialized(answer)

    def _with_dependencies(self, file: Any) -> bytes:
        """The file and what it imports, as a part of an answer, which is made once."""
        if (found := self._found.get(file.name)) is None:
            files = {"file_descriptor_proto": _with_dependencies(file)}
            found = _serialized(_pb.ServerReflectionResponse(file_descriptor_response=files))
            self._found[file.name] = found
        return found

    def _file(self, kind: str | None, request: Any) -> Any:
        """The file that is asked for. Raises KeyError."""
        if kind == "file_by_filename":
            return self._pool.FindFileByName(request.file_by_filename)
        if kind == "file_containing_symbol":
            return self._pool.FindFileContainingSymbol(request.file_containing_symbol)
        raise KeyError(kind)

    def _begin(self, stream: Stream, metadata: Metadata) -> "_Call":
        return _Call(self, stream)

    def __repr__(self) -> str:
        return f"<Reflection of {', '.join(self._services)}>"


class _Call:
    held = 0

    def __init__(self, reflection: Reflection, stream: Stream) -> None:
        self._reflection, self._stream = reflection, stream

    def receive(self, message: bytes) -> None:
        if refuses_request(self._stream, message):
            return
        if self._stream.congested:
            self._stream.finish(StatusCode.RESOURCE_EXHAUSTED, "read the answers before asking for more")
            return
        try:
            self._stream.send(self._reflection.answer(message))
        except ValueError as error:
            self._stream.finish(StatusCode.INVALID_ARGUMENT, f"no ServerReflectionRequest: {error}")

    def half_close(self) -> None:
        self._stream.finish()

    def drained(self) -> None:
        """Nothing waits."""

    def end(self) -> None:
        """Nothing is held."""


def _with_dependencies(file: Any) -> list[bytes]:
    """The file and what it imports, each once, serialized."""
    found: dict[str, bytes] = {}
    left = [file]
    while left:
        descriptor = left.pop()
        if descriptor.name not in found:
            found[descriptor.name] = descriptor.serialized_pb
            left += descriptor.dependencies
    return list(found.values())


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
