"""Where things stand in a YAML stream: the line that a problem's path means, and the text of each document.

The parsed data has no positions, so they are looked up afterwards, and only when there is a problem to report or a
document to cut out: a file that is fine costs nothing here.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import yaml
from msgspec.structs import replace

from shared.config.problems import Problem

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = "tag:yaml.org,2002:null"


def with_lines(text: str, index: int, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of the stream's document `index` (empty documents don't count), each with its line.

    A path that isn't in the document, because something is missing, gets the line of the nearest thing around it.
    """
    found = list(problems)
    if not found:
        return found
    root = next(islice(_roots(text), index, None), None)
    return [replace(one, line=one.line or _line(root, one.path)) for one in found]


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


def _line(node: Any, path: str) -> int | None:
    if node is None:
        return None
    line: int = node.start_mark.line + 1
    rest = path
    while rest:
        step = _step(node, rest.removeprefix("."))
        if step is None:
            break
        line, node, rest = step
    return line


def _step(node: Any, path: str) -> tuple[int, Any, str] | None:
    """One key or position further: its line, its node, and the rest of the path. Keys may have dots themselves."""
    if isinstance(node, yaml.MappingNode):
        best: tuple[int, Any, str] | None = None
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            rest = path[len(name) :]
            if (
                name
                and path.startswith(name)
                and (not rest or rest[0] in ".[")
                and (not best or len(rest) < len(best[2]))
            ):
                best = (key.start_mark.line + 1, value, rest)
        return best
    if isinstance(node, yaml.SequenceNode) and path.startswith("["):
        number, _, rest = path[1:].partition("]")
        if number.isdigit() and int(number) < len(node.value):
            item = node.value[int(number)]
            return item.start_mark.line + 1, item, rest
    return None


def _is_null(value: str) -> bool:
    return value in ("", "~", "null", "Null", "NULL")
