"""Where things stand in a YAML stream: the line that a problem's path means, and the text of each document.

The parsed data has no positions, so they are looked up afterwards, and only when there is a problem to report or a
document to cut out: a file that is fine costs nothing here.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml
from msgspec.structs import replace

from shared.config.problems import Problem

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = "tag:yaml.org,2002:null"

MAX_KEY = 512
"""Characters of a key that is looked for; a problem at a longer one has the line of what is around it."""


def with_lines(text: str, index: int, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of the stream's document `index`, each with its line (see `Places`)."""
    return Places(text).located(index, problems)


class Places:
    """Finds the lines of problems, document by document in the stream's order: the text is read once, and no further
    than to the last document that has a problem."""

    def __init__(self, text: str) -> None:
        self._roots = _roots(text)
        self._at = -1
        self._root: Any = None
        self._members: dict[int, dict[str, tuple[Any, Any]]] = {}
        """Of the present document's mappings, by the node's identity: key and value by the key's text."""

    def located(self, index: int, problems: Iterable[Problem]) -> list[Problem]:
        """The problems of document `index` (empty documents don't count), each with its line; no document before that
        of the last call.

        A path that isn't in the document, because something is missing, gets the line of the nearest thing around it.
        """
        found = list(problems)
        if found:
            while self._at < index:
                self._at += 1
                self._root = next(self._roots, None)
                self._members.clear()
        return [replace(one, line=one.line or self._line(one.path)) for one in found]

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
        """One key or position further: its line, its node, and the rest of the path. Keys may have dots themselves: the
        longest that fits is meant."""
        if isinstance(node, yaml.MappingNode):
            members = self._members_of(node)
            for end in range(min(len(path), MAX_KEY), 0, -1):
                if (end == len(path) or path[end] in ".[") and (member := members.get(path[:end])) is not None:
                    return member[0].start_mark.line + 1, member[1], path[end:]
            return None
        if isinstance(node, yaml.SequenceNode) and path.startswith("["):
            number, _, rest = path[1:].partition("]")
            if number.isdigit() and int(number) < len(node.value):
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
    """The line on which the stream's document `index` begins, and its text as it was written.

    A stream with one document is that document, comments and all.
    """
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
    """The events of the stream, as far as it can be parsed: JSON need not be YAML."""
    try:
        yield from yaml.parse(text, Loader=_Loader)
    except yaml.YAMLError:
        return


def _roots(text: str) -> Iterator[Any]:
    """The root nodes of the documents that aren't empty, as far as the stream can be parsed."""
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            if node.tag != _NULL:
                yield node
    except yaml.YAMLError:
        return  # what comes behind a syntax error has no documents, and so no problems to place


def _is_null(value: str) -> bool:
    return value in ("", "~", "null", "Null", "NULL")
