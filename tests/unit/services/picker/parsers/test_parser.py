"""Which parser reads a request."""

from typing import ClassVar

import pytest

from services.picker.parsers.anthropic import AnthropicParser
from services.picker.parsers.openai import OpenAIParser
from services.picker.parsers.parser import Parser, ParserChain, bare_path
from services.picker.parsers.passthrough import PassthroughParser
from services.picker.parsers.vllm_grpc import VllmGrpcParser
from services.picker.parsers.vllm_http import VllmHttpParser
from services.picker.request import Content, Headers, Unparsable

NO_HEADERS = Headers()
GRPC = Headers([(":method", "POST"), ("content-type", "Application/gRPC+proto")])
DEFAULTS = ParserChain(
    [OpenAIParser("openai"), AnthropicParser("anthropic"), VllmHttpParser("vllm"), PassthroughParser("other")]
)


class Render(Parser):
    """A parser of something longer than what openai-parser claims."""

    TYPE = "render-parser"
    SUFFIXES: ClassVar[tuple[str, ...]] = ("/embeddings/render", "/v2/completions")

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        return Content(api=self.name, model=path)


CHAIN = ParserChain([OpenAIParser("openai"), Render("render"), PassthroughParser("other")])


@pytest.mark.parametrize(
    ("chain", "path", "name"),
    [
        (CHAIN, "/v1/completions", "openai"),
        (CHAIN, "/v2/completions", "render"),
        (CHAIN, "/v1/embeddings/render", "render"),
        (CHAIN, "/v1/embeddings", "openai"),
        (CHAIN, "/v1/mycompletions", "other"),
        (CHAIN, "/", "other"),
        (DEFAULTS, "/v1/chat/completions", "openai"),
        (DEFAULTS, "/v1/chat/completions/render", "openai"),
        (DEFAULTS, "/v1/completions/render", "openai"),
        (DEFAULTS, "/openai/deployments/x/chat/completions", "openai"),
        (DEFAULTS, "/v1/responses", "openai"),
        (DEFAULTS, "/v1/conversations", "openai"),
        (DEFAULTS, "/v1/images/generations", "openai"),
        (DEFAULTS, "/v1/messages", "anthropic"),
        (DEFAULTS, "/v1/messages/count_tokens", "anthropic"),
        (DEFAULTS, "/tenant/inference/v1/generate", "vllm"),
        (DEFAULTS, "/generate", "other"),
        (DEFAULTS, "/v1/responses/resp_1", "other"),
        (DEFAULTS, "/v1/conversations/conv_1/items", "other"),
        (DEFAULTS, "/v1/rerank", "other"),
        (DEFAULTS, "/vllm.grpc.engine.VllmEngine/Generate", "other"),
    ],
)
def test_the_longest_suffix_wins_and_the_rest_falls_through(chain: ParserChain, path: str, name: str) -> None:
    assert chain.find(path, NO_HEADERS)[1].name == name


@pytest.mark.parametrize(
    ("path", "bare"),
    [
        ("/v2/completions?user=a/b", "/v2/completions"),
        ("/v2/completions/", "/v2/completions"),
        ("/v2/completions//?x=1", "/v2/completions"),
        ("/v2/completions#top", "/v2/completions"),
        ("/?x", "/"),
        ("", "/v1/completions"),
        ("/v1/chat/%63ompletions", "/v1/chat/completions"),
        ("/v1/chat%2fcompletions%2F", "/v1/chat/completions"),
        ("/v1/%3fchat", "/v1/?chat"),
        ("/v1/%ff%", "/v1/\ufffd%"),
        ("/" + "x" * 1006 + "/%76%31/responses", "/" + "x" * 1006 + "/v1/responses"),
        ("/" + "x" * 1007 + "/%76%31/responses", "/"),
        ("/" + "x" * 9999 + "/v1/responses?%", "/" + "x" * 9999 + "/v1/responses"),
    ],
)
def test_query_escapes_and_trailing_slashes_dont_count(path: str, bare: str) -> None:
    assert bare_path(path) == bare
    if "v2" in path:
        assert CHAIN.parse(path, NO_HEADERS, b"") == Content(api="render", model=bare)


def test_a_path_that_nobody_reads_is_refused_with_what_is_read() -> None:
    chain = ParserChain([Render("render")])
    with pytest.raises(Unparsable) as caught:
        chain.parse("/v1/rerank?x=1", NO_HEADERS, b"")
    assert str(caught.value) == (
        "no parser registered matching path suffix for: /v1/rerank (known: /embeddings/render, /v2/completions)"
    )


def test_a_long_path_is_shown_short() -> None:
    with pytest.raises(Unparsable, match="known: none") as caught:
        ParserChain([]).parse("/" + "x" * 10_000, NO_HEADERS, b"")
    assert len(str(caught.value)) < 400


def test_a_claim_counts_behind_a_fallback_too() -> None:
    chain = ParserChain([PassthroughParser("first"), Render("render")])
    assert chain.parse("/v2/completions", NO_HEADERS, b"").api == "render"
    assert chain.parse("/v1/completions", NO_HEADERS, b"") == Content()


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "QUERY"])
def test_only_what_is_posted_is_read(method: str) -> None:
    headers = Headers([(":method", method)])
    for path in ("/v1/chat/completions", "/v1/rerank"):
        assert DEFAULTS.parse(path, headers, b"no json") == Content()
    with pytest.raises(Unparsable, match="no parser registered"):
        ParserChain([OpenAIParser("openai")]).parse("/v1/rerank", headers, b"no json")


def test_calls_of_other_grpc_methods_pass_the_grpc_parser_unread() -> None:
    chain = ParserChain([OpenAIParser("openai"), VllmGrpcParser("grpc")])
    for path in ("/vllm.grpc.engine.VllmEngine/HealthCheck", "/grpc.health.v1.Health/Check", "/other"):
        assert chain.parse(path, GRPC, b"no frame") == Content()
    with pytest.raises(Unparsable, match="no parser registered matching path suffix for: /v1/rerank"):
        chain.parse("/v1/rerank", NO_HEADERS, b"{}")


def test_of_two_that_claim_a_suffix_the_first_one_reads() -> None:
    chain = ParserChain([Render("first"), Render("second"), PassthroughParser("third"), PassthroughParser("fourth")])
    names = [chain.find(path, NO_HEADERS)[1].name for path in ("/v2/completions", "/x")]
    assert names == ["first", "third"]


@pytest.mark.parametrize("body", [b"", b"\xff\x00", b"{}", b'{"model":"m"}'])
def test_passthrough_takes_everything_and_knows_nothing(body: bytes) -> None:
    assert PassthroughParser("p").parse("/x", NO_HEADERS, body) == Content()


def test_headers_keep_every_value_under_their_lower_case_name() -> None:
    headers = Headers.of({"a": ("1", "2"), "b": ("",)})
    assert (headers.get("a"), headers.all("a"), headers.first_of(("b", "a"))) == ("2", ("1", "2"), "2")
    assert list(headers.names()) == ["a", "b"]
