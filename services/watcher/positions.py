"""Positions in a YAML stream: the line of a problem's path, and the text of each document.

Parsed data has no positions. They are looked up only if there is a problem to report or a document to extract, so a
valid file costs nothing here.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml
from msgspec.structs import replace

from shared.config.problems import Problem
from shared.config.yaml import NodeLoader, Text

_NULL = "tag:yaml.org,2002:null"

MAX_KEY = 512
"""The most characters of a key that is looked up. A problem at a longer one gets the line of its parent."""


def with_lines(text: str, index: int, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of the stream's document `index`, each with its line."""
    return LineFinder(text).located(index, problems)


class LineFinder:
    """Finds the lines of problems, document by document. The text is read once, up to the last document with a
    problem."""

    def __init__(self, text: str) -> None:
        self._roots = _roots(text)
        self._at = -1
        self._root: Any = None
        self._members: dict[int, dict[str, tuple[Any, Any]]] = {}
        """Keys and values of the current document's mappings, by the mapping's id and the key's text."""

    def located(self, index: int, problems: Iterable[Problem]) -> list[Problem]:
        """The problems of document `index` (empty documents don't count), each with its line. Calls must not go back to
        an earlier document. A path that isn't in the document gets the line of its nearest parent.
        """
        found = list(problems)
        if found:
            while self._at < index:
                self._at += 1
                self._root = next(self._roots, None)
                self._members.clear()
        return [replace(problem, line=problem.line or self._line(problem.path)) for problem in found]

    def _line(self, path: str) -> int | None:
        node = self._root
        if node is None:
            return None
        line: int = node.start_mark.line + 1
        rest = path
        while rest:
            step = self._step(node, rest.removeprefix("."))
            if step is None:
                break
            line, node, rest = step
        return line

    def _step(self, node: Any, path: str) -> tuple[int, Any, str] | None:
        """One key or index further: its line, its node, and the rest of the path. A key may contain dots: the longest
        match is used."""
        if isinstance(node, yaml.MappingNode):
            members = self._members_of(node)
            for end in range(min(len(path), MAX_KEY), 0, -1):
                if (end == len(path) or path[end] in ".[") and (member := members.get(path[:end])) is not None:
                    return member[0].start_mark.line + 1, member[1], path[end:]
            return None
        if isinstance(node, yaml.SequenceNode) and path.startswith("["):
            number, _, rest = path[1:].partition("]")
            # a shortened key may look like a position, too
            if number.isascii() and number.isdigit() and int(number) < len(node.value):
                item = node.value[int(number)]
                return item.start_mark.line + 1, item, rest
        return None

    def _members_of(self, node: Any) -> dict[str, tuple[Any, Any]]:
        members = self._members.get(id(node))
        if members is None:
            members = {}
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    members.setdefault(key.value, (key, value))
            self._members[id(node)] = members
        return members


def document_text(text: str, index: int) -> tuple[int, str]:
    """The line on which the stream's document `index` begins, and its original text. A single document is the whole
    stream."""
    starts: list[int] = []
    filled: list[bool] = []
    for event in _events(text):
        if isinstance(event, yaml.DocumentStartEvent):
            starts.append(event.start_mark.line if event.explicit and event.start_mark else 0)
            filled.append(False)
        elif starts and not filled[-1] and isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
            filled[-1] = not (isinstance(event, yaml.ScalarEvent) and event.implicit[0] and _is_null(event.value))
    if len(starts) <= 1:
        return 1, text
    lines = text.splitlines(keepends=True)
    real = [position for position, full in enumerate(filled) if full]
    position = real[index]
    end = starts[position + 1] if position + 1 < len(starts) else len(lines)
    return starts[position] + 1, "".join(lines[starts[position] : end])


def _events(text: str) -> Iterator[Any]:
    """The events of the stream, as far as it can be parsed: not all JSON is YAML."""
    try:
        yield from yaml.parse(Text(text), Loader=NodeLoader)
    except yaml.YAMLError:
        return


def _roots(text: str) -> Iterator[Any]:
    """The root nodes of the documents that aren't empty, as far as the stream can be parsed."""
    try:
        for node in yaml.compose_all(Text(text), Loader=NodeLoader):
            if node.tag != _NULL:
                yield node
    except yaml.YAMLError:
        return  # nothing behind a syntax error is read, so it has no problems


def _is_null(value: str) -> bool:
    return value in ("", "~", "null", "Null", "NULL")
