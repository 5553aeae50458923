"""What a parser plugin is, and which one reads a request: the one that claims the longest suffix of its path.

A parser says no only where routing needs what is missing, or where the body's shape can't be read at all. Everything
else is for the model server to judge: a picker that knows less of an API than the server must not stand in its way.
"""

from collections.abc import Iterable
from typing import ClassVar

from services.picker.requests.request import Content, Headers, Unparsable
from shared.plugin import Plugin, Role

DEFAULT_PATH = "/v1/completions"
"""What a request is taken for when the proxy shows no path (as the Go original does)."""


class Parser(Plugin):
    """Reads request bodies."""

    ROLES = frozenset({Role.PARSER})
    SUFFIXES: ClassVar[tuple[str, ...]] = ()
    """Ends of the paths that it reads, each beginning with a slash. None makes it the fallback for all others."""

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        """What a request's body says. `path` is without query and trailing slash.

        Raises `Unparsable` with what is wrong, what was found, and what would be right.
        """
        raise NotImplementedError


class ParserChain:
    """The parsers of a configuration. Where two claim one suffix, or two are fallbacks, the first one is asked."""

    def __init__(self, parsers: Iterable[Parser]) -> None:
        self._by_suffix: dict[str, Parser] = {}
        self._fallback: Parser | None = None
        for parser in parsers:
            for suffix in parser.SUFFIXES:
                self._by_suffix.setdefault(suffix, parser)
            if not parser.SUFFIXES and self._fallback is None:
                self._fallback = parser
        self._longest_first = sorted(self._by_suffix.items(), key=lambda item: len(item[0]), reverse=True)

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        """What the body says, as its parser reads it. Raises `Unparsable`, also when no parser reads this path."""
        path = bare_path(path)
        parser = self.find(path)
        if parser is None:
            raise Unparsable(
                f"no parser registered matching path suffix for: {path} (known: {', '.join(self._by_suffix) or 'none'})"
            )
        return parser.parse(path, headers, body)

    def find(self, path: str) -> Parser | None:
        """The parser for a path without query and trailing slash; None when there is none."""
        for suffix, parser in self._longest_first:
            if path.endswith(suffix):
                return parser
        return self._fallback

    def __repr__(self) -> str:
        claims = [f"{suffix} → {parser.name}" for suffix, parser in self._by_suffix.items()]
        if self._fallback is not None:
            claims.append(f"other → {self._fallback.name}")
        return f"<ParserChain {', '.join(claims) or 'empty'}>"


def bare_path(path: str) -> str:
    """The path without query, fragment and trailing slashes.

    >>> bare_path("/v1/chat/completions/?x=1")
    '/v1/chat/completions'
    """
    return (path or DEFAULT_PATH).partition("?")[0].partition("#")[0].rstrip("/") or "/"
