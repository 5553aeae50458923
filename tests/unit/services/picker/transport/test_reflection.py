"""What gRPC reflection answers."""

from collections import Counter
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2

from services.picker.transport.reflection import Reflection

pb: Any = reflection_pb2
SERVICE = "grpc.reflection.v1alpha.ServerReflection"


class Pool:
    """Protobuf's, where the files note when they are serialized."""

    def __init__(self) -> None:
        self.serialized: Counter[str] = Counter()
        self._pool: Any = descriptor_pool.Default()

    def FindFileContainingSymbol(self, symbol: str) -> Any:
        return File(self, self._pool.FindFileContainingSymbol(symbol))

    def FindFileByName(self, name: str) -> Any:
        return File(self, self._pool.FindFileByName(name))


class File:
    def __init__(self, pool: Pool, file: Any) -> None:
        self._pool, self._file = pool, file
        self.name, self.dependencies = file.name, file.dependencies

    @property
    def serialized_pb(self) -> bytes:
        self._pool.serialized[self.name] += 1
        return bytes(self._file.serialized_pb)


def test_a_file_is_serialized_once_however_often_somebody_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serializing what ext_proc imports takes 0.2 ms, and a question has forty bytes."""
    pool = Pool()
    monkeypatch.setattr(descriptor_pool, "Default", lambda: pool)
    reflection, name = Reflection([SERVICE]), pb.DESCRIPTOR.name
    questions = [{"file_containing_symbol": SERVICE}, {"file_by_filename": name, "host": "h"}] * 3
    for question in questions:
        asked = pb.ServerReflectionRequest(**question)
        answer = pb.ServerReflectionResponse.FromString(reflection.answer(asked.SerializeToString()))
        assert answer.original_request == asked
        assert answer.valid_host == question.get("host", "")
        assert list(answer.file_descriptor_response.file_descriptor_proto) == [pb.DESCRIPTOR.serialized_pb]
    assert pool.serialized == {name: 1}
