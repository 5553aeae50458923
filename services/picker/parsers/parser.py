"""The role of parser plugins, and the chain that chooses one: the parser that claims the longest suffix of the path.

A parser refuses a body only if routing needs what is missing, or if the body can't be read at all. The model server
judges everything else: a picker that knows less of an API than the server must not refuse what the server accepts.
"""

from collections.abc import Iterable, Mapping
from itertools import product
from operator import attrgetter
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from services.picker.request import Content, Headers, Unparsable
from shared.plugin import Plugin, Role
from shared.plugin_failures import Withheld

T = TypeVar("T")

DEFAULT_PATH = "/v1/completions"
"""The path of a request if the proxy shows none, as in the Go EPP."""
_MAX_ENCODED = 1024
"""Characters of a path whose percent-encoding is undone."""
_UNREAD = Content()
_SHOWN = 256
"""Characters of a path that an error shows."""
_REMEMBERED = 256
"""Paths whose parser is remembered: clients ask for a few."""
_FIELDS = {
    name: (tuple,) if get_origin(kind) is tuple else get_args(kind) or (kind,)
    for name, kind in get_type_hints(Content).items()
    if kind is not bool
}
"""What the fields of a parser's `Content` have to be."""
_SOUND = frozenset(product(*_FIELDS.values()))
"""The types of all fields of a sound one, where none is a subclass."""
_values = attrgetter(*_FIELDS)


class Parser(Plugin):
    """Reads request bodies. If it fails, the request passes unread, as one whose body the proxy withholds."""

    ROLES = frozenset({Role.PARSER})
    SUFFIXES: ClassVar[tuple[str, ...]] = ()
    """Ends of the paths that it reads, each beginning with a slash. None makes it the fallback for all others."""

    def takes(self, headers: Headers) -> bool:
        """Whether it takes a request whose path no parser claims, too."""
        return not self.SUFFIXES

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        """What a request's body says. `path` is without query and trailing slash.

        Raises `Unparsable` with what is wrong, what was found, and what would be right.
        """
        raise NotImplementedError


class ParserFailed(Exception):
    """A parser has a defect: it raised something else than `Unparsable`, or returned no sound `Content`. Of what it
    raised only the type is reported: the text may be the prompt."""

    def __init__(self, parser: Parser, error: Exception) -> None:
        super().__init__(f"{parser!r}: {error!r}")
        self.parser = parser
        self.error = error


class ParserChain:
    """The parsers of a configuration. Where two would take a request, the first one does.

    A claim counts wherever its parser stands, also after a fallback.
    """

    def __init__(self, parsers: Iterable[Parser]) -> None:
        self._parsers = tuple(parsers)
        self._by_suffix: dict[str, Parser] = {}
        for parser in self._parsers:
            for suffix in parser.SUFFIXES:
                self._by_suffix.setdefault(suffix, parser)
        self._longest_first = longest_first(self._by_suffix)
        self._known: dict[str, tuple[str, Parser]] = {}
        """Of paths that were claimed: bare, and by whom."""

    def parse(self, path: str, headers: Headers, body: bytes, failures: list[ParserFailed] | None = None) -> Content:
        """What the body says, as its parser reads it. Raises `Unparsable`, also when no parser reads this path, and
        `ParserFailed`. Failures of other parsers on the way are added to `failures`, which is empty.

        Only what is posted is read: none of the APIs has another method with a body, so the server says what is wrong.
        """
        path, parser = self._known.get(path) or self.find(path, headers, failures)
        if headers.get(":method", "POST") != "POST":
            return _UNREAD
        try:
            content = parser.parse(path, headers, body)
        except Unparsable:
            raise
        except Exception as error:  # a plugin's: the request isn't to suffer for it
            raise ParserFailed(parser, Withheld(error)) from error
        try:
            return _checked(content)
        except TypeError as error:
            raise ParserFailed(parser, error) from error

    def find(self, asked: str, headers: Headers, failures: list[ParserFailed] | None = None) -> tuple[str, Parser]:
        """The bare path, and the parser for it, remembered where the path alone decides. One that fails to say whether
        it takes the request doesn't: its failure is added to `failures`. Where no other takes it either, the last
        failure is raised instead. Raises `Unparsable` where there is none."""
        path = bare_path(asked)
        for suffix, parser in self._longest_first:
            if path.endswith(suffix):
                if len(asked) <= _SHOWN:
                    if len(self._known) >= _REMEMBERED:
                        self._known.clear()
                    self._known[asked] = path, parser
                return path, parser
        failed = [] if failures is None else failures
        for parser in self._parsers:
            try:
                takes = parser.takes(headers)
            except Exception as error:  # noqa: BLE001 - a plugin's: the next one may take the request
                failed.append(ParserFailed(parser, Withheld(error)))
                continue
            if takes:
                return path, parser
        if failed:
            raise failed.pop()
        known = ", ".join(self._by_suffix) or "none"
        raise Unparsable(f"no parser registered matching path suffix for: {_shown(path)} (known: {known})")

    def __repr__(self) -> str:
        claims = [f"{suffix} → {parser.name}" for suffix, parser in self._by_suffix.items()]
        claims += [f"other → {parser.name}" for parser in self._parsers if not parser.SUFFIXES]
        return f"<ParserChain {', '.join(claims) or 'empty'}>"


def _checked(content: Any) -> Content:
    """What a parser returned. Raises TypeError for what the picker can't work with."""
    if not isinstance(content, Content):
        raise TypeError(f"expected a Content, got a {type(content).__name__}")
    values = _values(content)
    if tuple(map(type, values)) in _SOUND:
        return content
    for name, value, kinds in zip(_FIELDS, values, _FIELDS.values(), strict=True):
        if not isinstance(value, kinds):
            raise TypeError(f"the Content has a {type(value).__name__} as {name}")
    return content


def longest_first(by_suffix: Mapping[str, T]) -> list[tuple[str, T]]:
    """In the order in which to compare a path with the suffixes."""
    return sorted(by_suffix.items(), key=lambda item: len(item[0]), reverse=True)


def bare_path(path: str) -> str:
    """The path as a server reads it: without query, fragment, percent-encoding and trailing slashes. Of an encoded path
    longer than any API's, the root: undoing so much may take long.

    >>> bare_path("/v1/chat/%63ompletions/?x=1")
    '/v1/chat/completions'
    """
    path = (path or DEFAULT_PATH).partition("?")[0].partition("#")[0]
    if "%" in path:
        path = unquote(path) if len(path) <= _MAX_ENCODED else ""
    return path.rstrip("/") or "/"


def _shown(path: str) -> str:
    return path if len(path) <= _SHOWN else path[:_SHOWN] + "…"
