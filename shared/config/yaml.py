"""Reads YAML (and so JSON) into plain data, strictly: duplicate keys are problems, syntax errors name their line.

PyYAML's C loader is used where available. Hostile text is checked before: nesting on the event stream, because the C
composer overflows the stack at 100 000 levels, and aliases on the node graph before anything is built.
"""

import json
import re
from typing import Any

import yaml

from shared.config.problems import Problems, join, show

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_DEPTH = 64
"""Levels of nesting. An EndpointPickerConfig has about eight."""
MAX_EXPANSION = 100_000
"""Values, and characters of texts, that a document may have once each alias counts for what it names, beyond ten times
those that are written."""

MAX_DIGITS = 100
"""Characters of a whole number: PyYAML's time for one with colons (`1:30` is 90) grows with their square."""
MAX_PLAIN = 10_000
"""Characters of what can be another thing than a text, as it is written without quotes."""
_FLOAT = re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")


class NodeLoader(_Base):  # type: ignore[misc]  # the base is chosen at import
    """PyYAML's safe loader, which looks only at short texts for what else they can be: its patterns for numbers and
    times hold other threads for tenths of a second where a text has millions of digits."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and len(value) > MAX_PLAIN:
            return self.DEFAULT_SCALAR_TAG
        return super().resolve(kind, value, implicit)


class _Loader(NodeLoader):
    """The same, which also reads numbers as JSON and YAML 1.2 write them (`1e3`)."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
        if len(node.value) > MAX_DIGITS:
            raise ValueError(f"{show(node.value)} is a number of more than {MAX_DIGITS} digits")
        return super().construct_yaml_int(node)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


class Text:
    """A text in the pieces that libyaml asks for. Between them other threads run: libyaml keeps the interpreter's lock
    while it reads a string."""

    name = "<unicode string>"
    """What PyYAML's messages call a string."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def read(self, size: int = 0, /) -> str:
        begin = self._position
        self._position += size
        return self._text[begin : self._position]


class _Refused(Exception):
    """A document that must not be built; what is wrong has been noted."""


def parse_documents(text: str, problems: Problems, limit: int | None = None) -> list[Any]:
    """The documents of a YAML stream, without empty ones; none if they have more than `limit` values, where each alias
    counts as what it stands for.

    A syntax error is noted with its line and ends the stream. A duplicate key is noted with path and line; its last
    value counts.
    """
    documents: list[Any] = []
    try:
        _check_events(text, problems, limit)
        loader = _Loader(Text(text))
        try:
            while loader.check_node():
                node = loader.get_node()
                try:
                    _Nodes(problems, limit).check(node)
                    document = loader.construct_document(node)
                finally:
                    _free_tree(node)
                if document is not None:
                    documents.append(document)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        if text.lstrip()[:1] in ("{", "["):
            found = Problems()
            try:
                parsed = _Json(found, limit).read(text)
            except (ValueError, RecursionError):
                pass  # it is no JSON either
            except _Refused:
                problems.errors += found.errors
                return []
            else:
                problems.errors += found.errors
                return [parsed]
        mark = error.problem_mark
        problems.error("", f"not valid YAML: {error.problem or 'syntax error'}", mark.line + 1 if mark else None)
    except (LookupError, AttributeError, ArithmeticError):  # PyYAML's constructors raise them
        problems.error("", "not valid YAML: a value isn't what its tag says")
    except (yaml.YAMLError, ValueError) as error:  # unreadable characters; values that aren't what their tag says
        problems.error("", f"not valid YAML: {' '.join(str(error).split())}")
    except _Refused:
        pass
    return documents


def _free_tree(root: Any) -> None:
    """Free a tree of nodes one by one. In one go, a large one would hold other threads for tenths of a second."""
    rest = [root]
    while rest:
        node = rest.pop()
        if isinstance(node.value, list):
            children, node.value = node.value, []
            while children:
                child = children.pop()
                rest += child if isinstance(child, tuple) else (child,)


def _check_events(text: str, problems: Problems, limit: int | None) -> None:
    """Raises MarkedYAMLError for a text that is nested too deep, and `_Refused` for one of too many values."""
    depth = values = 0
    try:
        for event in yaml.parse(Text(text), Loader=_Base):
            values += isinstance(event, yaml.NodeEvent)
            if limit is not None and values > limit:
                raise _too_many(problems, limit)
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    break
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except yaml.YAMLError:
        return  # the loader meets it at the same place, and has read what comes before
    if depth > MAX_DEPTH:
        mark: Any = event.start_mark
        raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=mark)


def _too_many(problems: Problems, limit: int) -> _Refused:
    problems.error("", f"more than {limit} values, keys included; no more are allowed")
    return _Refused()


class _Nodes:
    """Looks at a document's nodes before they become data."""

    def __init__(self, problems: Problems, limit: int | None) -> None:
        self._problems = problems
        self._limit = limit
        self._sizes: dict[int, tuple[int, int]] = {}
        self._written = 0
        """Characters, each alias aside."""
        self._open: set[int] = set()

    def check(self, root: Any) -> None:
        """Note duplicate keys. Raises `_Refused` when aliases make the document endless or huge."""
        values, length = self._size(root, "")
        if self._limit is not None and values > self._limit:
            raise _too_many(self._problems, self._limit)
        for size, written, what in ((values, len(self._sizes), "values"), (length, self._written, "characters")):
            if size > MAX_EXPANSION + 10 * written:
                self._problems.error("", f"its aliases stand for {size} {what}; use fewer aliases")
                raise _Refused

    def _size(self, node: Any, path: str) -> tuple[int, int]:
        """Values, and characters of texts, under a node when each alias counts for what it names."""
        known = self._sizes.get(id(node))
        if known is not None:
            return known
        if id(node) in self._open:
            self._problems.error(path, "an alias of a value that contains it", node.start_mark.line + 1)
            raise _Refused
        self._open.add(id(node))
        inside: list[tuple[int, int]] = []
        length = 0
        if isinstance(node, yaml.ScalarNode):
            node.value = characters(node.value, path, self._problems, node.start_mark.line + 1)
            length = len(node.value)
            self._written += length
        elif isinstance(node, yaml.SequenceNode):
            inside = [self._size(item, join(path, index)) for index, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            keys: set[tuple[str, str]] = set()
            for key, value in node.value:
                inner = path
                if isinstance(key, yaml.ScalarNode):
                    line = key.start_mark.line + 1
                    key.value = characters(key.value, path, self._problems, line)
                    inner = join(path, key.value)
                    if (key.tag, key.value) in keys:
                        self._problems.error(inner, "duplicate key", line)
                    keys.add((key.tag, key.value))
                inside += (self._size(key, inner), self._size(value, inner))
        self._open.discard(id(node))
        size = 1 + sum(values for values, _ in inside), length + sum(inner for _, inner in inside)
        self._sizes[id(node)] = size
        return size


_JSON_TOKENS = re.compile(r'\\.|[",:]', re.DOTALL)
"""What begins or ends a string, or stands between values."""


class _Json:
    """Reads a JSON text that YAML can't (YAML has no surrogate pairs). Raises ValueError where it is no JSON."""

    def __init__(self, problems: Problems, limit: int | None) -> None:
        self._problems = problems
        self._limit = limit
        self._values = 0

    def read(self, text: str) -> Any:
        if self._limit is not None:  # before the parser, which holds other threads until it is done
            values, within = 1, False
            for token in _JSON_TOKENS.finditer(text):
                if token[0] == '"':
                    within = not within
                elif not within and token[0] in ",:":
                    values += 1
                    if values > self._limit:
                        raise _too_many(self._problems, self._limit)
        return self._checked(json.loads(text, object_pairs_hook=self._mapping), "", MAX_DEPTH)

    def _mapping(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                self._problems.error("", f"duplicate key {show(key)}")
            found[key] = value
        return found

    def _checked(self, value: Any, path: str, levels: int) -> Any:
        """The value with characters only. Raises ValueError where it has more levels of nesting."""
        self._values += 1 + (len(value) if isinstance(value, dict) else 0)
        if self._limit is not None and self._values > self._limit:
            raise _too_many(self._problems, self._limit)
        if isinstance(value, str):
            return characters(value, path, self._problems)
        if not levels and isinstance(value, list | dict):
            raise ValueError("nested too deeply")
        if isinstance(value, list):
            return [self._checked(item, join(path, index), levels - 1) for index, item in enumerate(value)]
        if isinstance(value, dict):
            sound: dict[str, Any] = {}
            for key, item in value.items():
                name = characters(key, path, self._problems)
                sound[name] = self._checked(item, join(path, name), levels - 1)
            return sound
        return value


def characters(text: str, path: str, problems: Problems, line: int | None = None) -> str:
    """The text with half surrogate pairs, which JSON can write and no message can hold, noted and replaced by
    U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"\\u{ord(text[error.start]):04x}"
        problems.error(path, f"{code} is half a character; both halves of a surrogate pair are needed", line)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
