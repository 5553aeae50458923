"""Messages of vLLM's gRPC service for tests, as far as a picker reads them, made by protobuf's own runtime."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "vllm.grpc.engine"
_TYPES = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "uint32": descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
    "float": descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
}
_REPEATED = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
_SCHEMA = {
    "SamplingParams": {"temperature": (1, "float"), "max_tokens": (8, "uint32"), "n": (15, "uint32")},
    "TokenizedInput": {"original_text": (1, "string"), "input_ids": (2, "uint32*")},
    "PlaceholderRange": {"offset": (1, "uint32"), "length": (2, "uint32")},
    "MultimodalInputs": {
        "pixel_values": (2, "bytes"),
        "mm_placeholders": (5, "PlaceholderRange*"),
        "mm_hashes": (6, "string*"),
    },
    "GenerateRequest": {
        "request_id": (1, "string"),
        "tokenized": (2, "TokenizedInput"),
        "text": (3, "string"),
        "sampling_params": (4, "SamplingParams"),
        "stream": (5, "bool"),
        "mm_inputs": (7, "MultimodalInputs"),
    },
    "EmbedRequest": {"request_id": (1, "string"), "tokenized": (2, "TokenizedInput")},
    "GenerateStreamChunk": {
        "token_ids": (1, "uint32*"),
        "prompt_tokens": (2, "uint32"),
        "completion_tokens": (3, "uint32"),
        "cached_tokens": (4, "uint32"),
    },
    "GenerateComplete": {
        "output_ids": (1, "uint32*"),
        "finish_reason": (2, "string"),
        "prompt_tokens": (3, "uint32"),
        "completion_tokens": (4, "uint32"),
        "cached_tokens": (5, "uint32"),
    },
    "GenerateResponse": {"chunk": (1, "GenerateStreamChunk"), "complete": (2, "GenerateComplete")},
    "EmbedResponse": {"embedding": (1, "float*"), "prompt_tokens": (2, "uint32"), "embedding_dim": (3, "uint32")},
}
_ONE_OF = {"GenerateRequest": ("input", ("tokenized", "text")), "GenerateResponse": ("response", ("chunk", "complete"))}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="vllm_for_tests.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            added = message.field.add(name=field, number=number)
            bare = kind.removesuffix("*")
            if bare != kind:
                added.label = _REPEATED
            if bare in _TYPES:
                added.type = _TYPES[bare]
            else:
                added.type_name = f".{_PACKAGE}.{bare}"
        if name in _ONE_OF:
            group, members = _ONE_OF[name]
            message.oneof_decl.add(name=group)
            for described in message.field:
                if described.name in members:
                    described.oneof_index = 0
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def message(name: str, **fields: Any) -> Any:
    """A message of the service's package, with some fields set."""
    kind = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
    return kind(**fields)
