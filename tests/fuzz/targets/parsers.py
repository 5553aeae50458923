"""What must hold of every request, whatever its path and body: it is read, or refused in short words.

An input is a request's path, perhaps with a blank and its `grpc-encoding`, a line feed, and the body.
"""

import json

from msgspec import structs

from services.picker.parsers.anthropic import AnthropicParser
from services.picker.parsers.json_edit import replace_model
from services.picker.parsers.openai import OpenAIParser
from services.picker.parsers.parser import ParserChain
from services.picker.parsers.passthrough import PassthroughParser
from services.picker.parsers.sglang_http import SglangHttpParser
from services.picker.parsers.vertexai import VertexAiParser
from services.picker.parsers.vllm_grpc import VllmGrpcParser
from services.picker.parsers.vllm_http import VllmHttpParser
from services.picker.request import Content, Headers, Unparsable

MAX_REFUSAL = 600
"""Characters: the beginning of the path and of a wrong value, and what is said of them."""
OTHER_MODEL = 'another "model"'

CHAIN = ParserChain(
    [
        OpenAIParser("openai"),
        AnthropicParser("anthropic"),
        VllmHttpParser("vllmhttp"),
        VllmGrpcParser("vllmgrpc"),
        SglangHttpParser("sglang"),
        VertexAiParser("vertexai"),
        PassthroughParser("passthrough"),
    ]
)


def check(data: bytes) -> None:
    """Raises AssertionError, or what a parser let out, for an input that shows a fault."""
    line, _, body = data.partition(b"\n")
    path, _, encoding = line.decode("latin-1").partition(" ")
    headers = Headers([(":method", "POST"), ("grpc-encoding", encoding)])
    content = _read(path, headers, body)
    if content is None:
        return
    assert content == _read(path, headers, body)
    assert content.parallel >= 1
    assert content.output_limit is None or content.output_limit >= 0
    if content.prompt_tokens is not None and content.prompt:
        assert len(content.prompt) == 4 * content.prompt_tokens
    if content.takes_model:
        changed = _read(path, headers, b"".join(replace_model(body, OTHER_MODEL)))
        assert changed == structs.replace(content, model=OTHER_MODEL)
        assert _model(body) in (None, content.model)


def _read(path: str, headers: Headers, body: bytes) -> Content | None:
    try:
        return CHAIN.parse(path, headers, body)
    except Unparsable as error:
        refusal = str(error)
    assert 0 < len(refusal) < MAX_REFUSAL
    return None


def _model(body: bytes) -> str | None:
    """The body's model as Python's own decoder reads it; None where it reads none."""
    try:
        return json.loads(body).get("model") or ""
    except (ValueError, RecursionError):
        return None  # what isn't read needn't be right: numbers without end, texts that aren't UTF-8
