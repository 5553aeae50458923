"""Drains endpoints of a file: sets or removes `drain: true` at an entry, and leaves the rest of the text as it is."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from services.watcher.documents import read_documents
from services.watcher.files import Limits, Unusable, list_files, read_bytes, reason
from services.watcher.write_if_unchanged import write_if_unchanged
from shared.config.problems import Invalid, Problems, nearest
from shared.config.yaml import NodeLoader, Text
from shared.model import Endpoint

FIELD = "drain"
_IN_FLOW = f'"{FIELD}": true, '
_IN_BLOCK = f"{FIELD}: true"
_BREAKS = "\r\n\x85\u2028\u2029"
_MARK = "\ufeff"
"""A byte order mark, as some editors write it; positions don't count it."""
TRIES = 100
"""How often a file that others change meanwhile is read and edited again."""


class DrainError(Exception):
    """The drain isn't possible; the text says why."""


def drain_in_files(path: str, name: str, drain: bool) -> tuple[str, str, bool]:
    """Drain the endpoint `name` of a file, or of a directory's files, or end that. `name` is the endpoint's id, or its
    name if no other namespace has one of that name.

    Returns its id, the file, and whether the file has changed. Raises DrainError, OSError, and Invalid for a file with
    errors.
    """
    for _ in range(TRIES):
        file, text, endpoint = _find(path, name)
        if endpoint.draining is drain:
            return endpoint.id, str(file), False
        edited = set_drain(text, endpoint.id, drain)
        expected = [replace(each, draining=drain) if each.id == endpoint.id else each for each in _endpoints(text)]
        if not _has(edited, expected):
            # such as an entry that is an alias, or one with the label
            raise DrainError(
                f"{file}: the entry of {endpoint.id} can't be edited safely; set its `drain`, or its label, there"
            )
        if write_if_unchanged(Path(os.path.realpath(file)), text.encode(), edited.encode()):
            return endpoint.id, str(file), True
    raise DrainError(f"{file} changes all the time")


def _find(path: str, name: str) -> tuple[Path, str, Endpoint]:
    """The file with the endpoint, its text, and the endpoint. Files with errors concern only their own endpoints."""
    texts: dict[Path, str] = {}
    found: dict[str, list[tuple[Path, Endpoint]]] = {}
    errors: list[Exception] = []
    for file in list_files(Path(path), Limits().files):
        try:
            texts[file] = text = read_bytes(str(file), Limits().file_size).decode()
            for endpoint in _endpoints(text, str(file)):
                found.setdefault(endpoint.id, []).append((file, endpoint))
        except Invalid as error:
            errors.append(error)
        except (OSError, Unusable, UnicodeDecodeError) as error:
            why = f"isn't UTF-8: {error}" if isinstance(error, UnicodeDecodeError) else reason(error)
            errors.append(DrainError(f"{file} {why}"))
    named = [id for id, entries in found.items() if name in (id, entries[0][1].name)]
    if name in found:
        named = [name]
    if errors and name not in found:
        if not named:
            raise errors[0]
        raise DrainError(f"{name!r} may also be in a file with errors; give the id of an endpoint: {errors[0]}")
    if not named:
        raise DrainError(f"{path} has no endpoint {name!r}{nearest(name, found)}")
    if len(named) > 1:
        raise DrainError(f"{name!r} is the name of {' and '.join(sorted(named))}; give the id of one")
    (file, endpoint), *others = found[named[0]]
    if others:
        raise DrainError(f"{endpoint.id} is in {' and '.join(str(file) for file, _ in found[named[0]])}; remove one")
    return file, texts[file], endpoint


def set_drain(text: str, id: str, drain: bool) -> str:
    """The text with the field of this endpoint's entry set or removed; unchanged if there is no such entry."""
    plain = text.removeprefix(_MARK)
    lines = plain.splitlines(keepends=True)
    for entry in _entries(plain):
        fields = {key.value: (key, value) for key, value in entry.value if isinstance(key, yaml.ScalarNode)}
        name, namespace = (_text(fields.get(field)) for field in ("name", "namespace"))
        if f"{namespace or 'default'}/{name}" != id:
            continue
        if FIELD in fields:
            _change(lines, entry.flow_style, *fields[FIELD], drain)
        elif drain:
            _add(lines, entry.flow_style, fields["name"][0])
        break
    return text[: len(text) - len(plain)] + "".join(lines)


def _add(lines: list[str], flow: bool, name: Any) -> None:
    """Add the field before the name: no value ends there, of whatever style."""
    at, column = name.start_mark.line, name.start_mark.column
    line = lines[at]
    added = _IN_FLOW if flow else f"{_IN_BLOCK}{_line_break(line) or _line_break(lines[0])}{' ' * column}"
    lines[at] = f"{line[:column]}{added}{line[column:]}"


def _change(lines: list[str], flow: bool, key: Any, value: Any, drain: bool) -> None:
    """Change the value of the field. One that `_add` wrote is removed again."""
    at, column = key.start_mark.line, key.start_mark.column
    line = lines[at]
    following = lines[at + 1] if at + 1 < len(lines) else ""
    alone = line[column:].rstrip(_BREAKS) == _IN_BLOCK
    if not drain and flow and line[column:].startswith(_IN_FLOW):
        lines[at] = line[:column] + line[column + len(_IN_FLOW) :]
    elif not drain and not flow and alone and following.startswith(" " * column):
        lines[at : at + 2] = [line[:column] + following[column:]]
    elif not drain and not flow and line.strip() == _IN_BLOCK:
        lines[at] = ""
    else:
        start, end = value.start_mark, value.end_mark
        line = lines[start.line]
        lines[start.line] = f"{line[: start.column]}{'true' if drain else 'false'}{line[end.column :]}"


def _line_break(line: str) -> str:
    """Its line break; the last line may have none."""
    return line[len(line.rstrip(_BREAKS)) :]


def _text(field: tuple[Any, Any] | None) -> str:
    return str(field[1].value) if field is not None and isinstance(field[1], yaml.ScalarNode) else ""


def _entries(text: str) -> Iterator[Any]:
    """The nodes of the endpoints of all documents."""
    for root in yaml.compose_all(Text(text), Loader=NodeLoader):
        for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
            if key.value == "endpoints" and isinstance(value, yaml.SequenceNode):
                yield from (entry for entry in value.value if isinstance(entry, yaml.MappingNode))


def _has(text: str, expected: list[Endpoint]) -> bool:
    try:
        return _endpoints(text) == expected
    except Invalid:
        return False


def _endpoints(text: str, origin: str = "") -> list[Endpoint]:
    """Raises `Invalid` for a text with errors."""
    problems = Problems()
    documents = read_documents(text, origin, problems)
    if problems.errors:
        raise Invalid(problems.errors, origin)
    return list(documents.endpoints or ())
