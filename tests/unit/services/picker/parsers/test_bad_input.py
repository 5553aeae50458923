"""Whatever comes: every parser reads it or refuses it in words. What it takes: tests/faults/picker."""

import pytest
from msgspec import json, structs

from services.picker.parsers.anthropic import AnthropicParser
from services.picker.parsers.json_edit import replace_model
from services.picker.parsers.json_values import JsonParameters
from services.picker.parsers.openai import OpenAIParser
from services.picker.parsers.parser import ParserChain
from services.picker.parsers.passthrough import PassthroughParser
from services.picker.parsers.sglang_http import SglangHttpParser
from services.picker.parsers.vertexai import VertexAiParser
from services.picker.parsers.vllm_grpc import VllmGrpcParser
from services.picker.parsers.vllm_http import VllmHttpParser
from services.picker.request import Content, Headers, Unparsable

CHAIN = ParserChain(
    [
        OpenAIParser("openai"),
        AnthropicParser("anthropic"),
        VllmHttpParser("vllm"),
        VllmGrpcParser("grpc"),
        SglangHttpParser("sglang"),
        VertexAiParser("vertexai"),
        PassthroughParser("other"),
    ]
)
JSON_FIELDS = {
    "/v1/chat/completions": '"messages":[{"role":"user","content":%s}]',
    "/v1/chat/completions/render": '"messages":[{"role":"user","content":%s}]',
    "/v1/completions": '"prompt":%s',
    "/v1/completions/render": '"prompt":%s',
    "/v1/embeddings": '"input":%s',
    "/v1/responses": '"input":%s',
    "/v1/conversations": '"items":[{"content":%s}]',
    "/v1/images/generations": '"prompt":%s',
    "/v1/messages": '"messages":[{"role":"user","content":%s}]',
    "/v1/messages/count_tokens": '"messages":[{"role":"user","content":%s}]',
    "/inference/v1/generate": '"token_ids":[1],"features":%s',
    "/generate": '"text":"x","image_data":%s',
}
GRPC = [
    "/vllm.grpc.engine.VllmEngine/Generate",
    "/vllm.grpc.engine.VllmEngine/Embed",
    "/google.cloud.aiplatform.v1beta1.PredictionService/ChatCompletions",
]
OTHER = ["/v1/rerank"]
HEADERS = Headers([(":method", "POST"), ("content-type", "application/json")])

VALUES = {
    "invalid UTF-8": b'"\xff\xfe"',
    "an overlong form": b'"\xc0\xaf"',
    "a lone surrogate": b'"\\ud800"',
    "a NUL": b'"\\u0000"',
    "a raw NUL": b'"\0"',
    "deep lists": b"[" * 20_000 + b"]" * 20_000,
    "deep objects": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "deep and never closed": b"[" * 200_000,
    "beyond 2^53": b"9007199254740993",
    "a huge integer": b"9" * 100_000,
    "a huge exponent": b"1e999999999",
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "a long text": b'"' + b"x" * 10_000_000 + b'"',
    "a long text of escapes": b'"' + b"\\u00e9" * 200_000 + b'"',
    "an empty text": b'""',
    "null": b"null",
    "true": b"true",
    "a list that mixes": b'["a",1,[2],{"text":"b"}]',
    "many empty lists": b"[" + b"[]," * 600_000 + b"[]]",
    "many numbers": b"[" + b"7," * 2_100_000 + b"7]",
}


def bodies(value: bytes, fields: str) -> list[bytes]:
    """The value as what the API reads, as a model, beside what is read, and twice."""
    before, _, after = fields.encode().partition(b"%s")
    field = before + value + after
    normal = before + b'"hi"' + after
    return [
        b'{"model":"m",' + field + b"}",
        b'{"model":' + value + b"," + normal + b"}",
        b'{"model":"m","other":' + value + b"," + normal + b"}",
        b'{"model":"m",' + normal + b"," + field + b',"model":"n"}',
        b'{"model":"m",' + field,
        value,
    ]


def outcome(path: str, body: bytes, headers: Headers = HEADERS) -> Content | str:
    try:
        return CHAIN.parse(path, headers, body)
    except Unparsable as error:
        return str(error)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize("path", [*JSON_FIELDS, *GRPC, *OTHER])
def test_every_body_is_read_or_refused_in_short_words(path: str, value: bytes) -> None:
    for body in bodies(value, JSON_FIELDS.get(path, '"x":%s')):
        found = outcome(path, body)
        if isinstance(found, str):
            assert 0 < len(found) < 400, found
        elif found.takes_model:
            assert outcome(path, b"".join(replace_model(body, "else"))) == structs.replace(found, model="else")


JSON_PARSERS = OpenAIParser, AnthropicParser, VllmHttpParser, SglangHttpParser
TEXT = '"hi"'
TRANSFERS: dict[str, tuple[str, bool]] = {
    # of a body, and whether it is taken from a client
    "vLLM's NIXL": ('"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"h","remote_port":1}', False),
    "a key with escapes": (r'"kv_transf\u0065r_params":{"remote_host":"h"}', False),
    "beside options": ('"kv_transfer_params":{"lmcache.skip_save":true,"disagg_spec":{"receiver_host":"h"}}', False),
    "the last of two": ('"kv_transfer_params":{},"kv_transfer_params":{"remote_host":"h"}', False),
    "too much": ('"kv_transfer_params":{"lmcache.tag":"%s"}' % ("x" * 2**16), False),
    "a list": ('"kv_transfer_params":[{"remote_host":"h"}]', False),
    "no UTF-8": ('"kv_transfer_params":{"\udcff":1}', False),
    "embeddings": ('"ec_transfer_params":{"hash":{"peer_host":"h"}}', False),
    "SGLang": ('"bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":7', False),
    "SGLang's lists": ('"bootstrap_host":["h"]', False),
    "TensorRT-LLM": ('"disaggregated_params":{"request_type":"generation_only"}', False),
    "options of LMCache": ('"kv_transfer_params":{"lmcache.skip_save":true,"lmcache.ttl":60}', True),
    "nothing": ('"kv_transfer_params":{},"ec_transfer_params":null,"bootstrap_host":null', True),
    "elsewhere": ('"metadata":{"kv_transfer_params":{"remote_host":"h"}}', True),
}


@pytest.mark.parametrize("case", TRANSFERS)
@pytest.mark.parametrize("path", [path for path in JSON_FIELDS if not path.endswith("count_tokens")])
@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_clients_dont_name_servers_from_which_a_model_server_takes_data(path: str, case: str, long: bool) -> None:
    text, taken = TRANSFERS[case]
    padding = '"other":[' + "[]," * (20_000 if long else 1) + "1]"
    body = f'{{"model":"m",{JSON_FIELDS[path] % TEXT},{padding},{text}}}'
    found = outcome(path, body.encode("utf-8", "surrogateescape"))
    assert isinstance(found, Content) is taken, found
    assert outcome(path.replace("e", "%65"), body.encode("utf-8", "surrogateescape")) == found
    if isinstance(found, str):
        assert "not taken from clients" in found or "isn't valid JSON" in found
    parsers = (kind("parser", JsonParameters(transfer_parameters=True)) for kind in JSON_PARSERS)
    assert isinstance(ParserChain(parsers).parse(path, HEADERS, body.encode("utf-8", "replace")), Content)


@pytest.mark.parametrize("case", TRANSFERS)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/inference/v1/generate", '{"token_ids":[1],"sampling_params":{"extra_args":{%s}}}'),
        ("/v1/chat/completions", '{"model":"m","messages":[{"role":"user","content":"p"}],"vllm_xargs":{%s}}'),
        ("/v1/completions", '{"model":"m","prompt":"p","vllm_xargs":{%s}}'),
        ("/v1/completions", '{"model":"m","vllm_xargs":{%s},"other":[' + "[]," * 20_000 + "1]}"),
    ],
    ids=["extra_args", "vllm_xargs", "of completions", "of a long body"],
)
def test_nor_among_the_arguments_of_vllms_engine(path: str, body: str, case: str) -> None:
    text, taken = TRANSFERS[case]
    found = outcome(path, (body % text).encode("utf-8", "surrogateescape"))
    assert isinstance(found, Content) is (taken or not text.startswith(('"kv', '"ec'))), found


@pytest.mark.parametrize(("names", "told_apart"), [(256, 256), (257, 1)])
def test_only_so_many_adapters_are_told_apart(names: int, told_apart: int) -> None:
    body = {"model": "m", "prompt": "x", "lora_path": [f"adapter-{number % names}" for number in range(1000)]}
    found = outcome("/v1/completions", json.encode(body))
    assert isinstance(found, Content)
    assert len(found.adapters) == told_apart
    assert (found.adapters[0] == "adapter-0") is (told_apart > 1)
