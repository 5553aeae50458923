"""Which parser reads a request."""

from typing import ClassVar

import pytest

from services.picker.requests.openai import OpenAIParser
from services.picker.requests.parsers import Parser, ParserChain, bare_path
from services.picker.requests.passthrough import PassthroughParser
from services.picker.requests.request import Content, Headers, Unparsable
from shared.plugin import Role, Tier

NO_HEADERS = Headers()


class Render(Parser):
    """A parser of something longer than what openai-parser claims."""

    TYPE = "render-parser"
    SUFFIXES: ClassVar[tuple[str, ...]] = ("/chat/completions/render", "/v2/completions")

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        return Content(api=self.name, model=path)


CHAIN = ParserChain([OpenAIParser("openai"), Render("render"), PassthroughParser("other")])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "openai"),
        ("/v1/completions", "openai"),
        ("/v2/completions", "render"),
        ("/v1/chat/completions/render", "render"),
        ("/v1/embeddings", "openai"),
        ("/v1/mycompletions", "other"),
        ("/v1/rerank", "other"),
        ("/", "other"),
    ],
)
def test_the_longest_suffix_wins_and_the_rest_falls_through(path: str, name: str) -> None:
    found = CHAIN.find(path)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("path", "bare"),
    [
        ("/v2/completions?user=a/b", "/v2/completions"),
        ("/v2/completions/", "/v2/completions"),
        ("/v2/completions//?x=1", "/v2/completions"),
        ("/v2/completions#top", "/v2/completions"),
        ("/?x", "/"),
        ("", "/v1/completions"),
    ],
)
def test_query_and_trailing_slashes_dont_count(path: str, bare: str) -> None:
    assert bare_path(path) == bare
    if "v2" in path:
        assert CHAIN.parse(path, NO_HEADERS, b"") == Content(api="render", model=bare)


def test_a_path_that_nobody_reads_is_refused_with_what_is_read() -> None:
    chain = ParserChain([Render("render")])
    with pytest.raises(Unparsable) as caught:
        chain.parse("/v1/rerank?x=1", NO_HEADERS, b"")
    assert str(caught.value) == (
        "no parser registered matching path suffix for: /v1/rerank (known: /chat/completions/render, /v2/completions)"
    )


def test_a_chain_without_parsers_reads_nothing() -> None:
    with pytest.raises(Unparsable, match="known: none"):
        ParserChain([]).parse("/v1/completions", NO_HEADERS, b"{}")


def test_of_two_that_claim_a_suffix_the_first_one_reads() -> None:
    chain = ParserChain([Render("first"), Render("second"), PassthroughParser("third"), PassthroughParser("fourth")])
    assert repr(chain) == "<ParserChain /chat/completions/render → first, /v2/completions → first, other → third>"


@pytest.mark.parametrize("body", [b"", b"\xff\x00", b"{}", b'{"model":"m"}'])
def test_passthrough_takes_everything_and_knows_nothing(body: bytes) -> None:
    assert PassthroughParser("p").parse("/x", NO_HEADERS, body) == Content()


@pytest.mark.parametrize("kind", [OpenAIParser, PassthroughParser])
def test_parsers_are_plugins_of_the_picker_without_parameters(kind: type[Parser]) -> None:
    assert kind.ROLES == {Role.PARSER}
    assert kind.TIER is Tier.PICKER
    assert kind.Parameters.__struct_fields__ == ()


def test_headers_keep_every_value_under_their_lower_case_name() -> None:
    headers = Headers.of({"a": ("1", "2"), "b": ("",)})
    assert (headers.get("a"), headers.all("a"), headers.first_of("b", "a")) == ("2", ("1", "2"), "2")
    assert list(headers.names()) == ["a", "b"]
