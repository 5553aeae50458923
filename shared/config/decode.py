"""Converts plain data (from YAML, JSON or flags) into typed structs, and collects every problem.

msgspec's own conversion stops at the first error. This one walks structs, lists and maps along `msgspec.inspect`'s
description of the type. Constraints are those of `msgspec.Meta`; `extra={"format": "duration"}` and `{"format":
"size"}` accept what `shared.quantities` reads; `EXPRESSION` marks programs.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Any

from msgspec import Struct, inspect

from shared.config.problems import MAX_HINTS, Problems, join, nearest, show
from shared.config.schema import EACH_EXPRESSION, MAX_EXPRESSIONS
from shared.quantities import parse_duration, parse_size

MISSING: Any = object()
"""What `decode` returns for a value that had problems."""

_INFINITY = float("inf")


class Expressions(Struct):
    """The expressions of a document."""

    left: int = MAX_EXPRESSIONS
    """Characters that further ones may have."""


def decode(
    raw: object,
    kind: Any,
    path: str,
    problems: Problems,
    *,
    ignore_case: bool = False,
    lenient: bool = False,
    expressions: Expressions | None = None,
) -> Any:
    """Convert `raw` to the type `kind`; note a problem under `path` and return `MISSING`.

    `ignore_case` matches struct fields as Go's JSON decoder does, on which plugin parameters rely, and choices too.
    `lenient` keeps the valid parts of a struct whose fields all have defaults, so that later checks can find more
    problems. `expressions` bounds what all calls for one document read. Raises TypeError for a `kind` that isn't
    supported (sets, dates).
    """
    info = _class_info(kind) if isinstance(kind, type) else inspect.type_info(kind)
    return _Decoder(problems, ignore_case, lenient, expressions or Expressions()).value(raw, info, path, {})


@cache
def _class_info(kind: type) -> inspect.Type:
    """msgspec takes about a millisecond for a struct, and a file of endpoints has thousands of one kind."""
    return inspect.type_info(kind)


def fields_given(raw: Mapping[str, object], kind: type[Struct]) -> frozenset[str]:
    """The fields of a struct that plain data has a value for, by their encoded names; in any case, as in parameters."""
    folded = {key.lower() for key, value in raw.items() if value is not None}
    return frozenset(name for name in kind.__struct_encode_fields__ if name.lower() in folded)


class _Decoder:
    def __init__(self, problems: Problems, ignore_case: bool, lenient: bool, expressions: Expressions) -> None:
        self._problems = problems
        self._ignore_case = ignore_case
        self._lenient = lenient
        self._expressions = expressions

    def value(self, raw: object, info: inspect.Type, path: str, extra: Mapping[str, Any]) -> Any:
        match info:
            case inspect.Metadata(type=inner):
                return self.value(raw, inner, path, {**extra, **(info.extra or {})})
            case inspect.AnyType():
                return raw
            case inspect.NoneType() if raw is None:
                return None
            case inspect.UnionType(types=types):
                return self._union(raw, types, path, extra)
            case inspect.StructType():
                return self._struct(raw, info, path)
            case inspect.ListType() | inspect.VarTupleType():
                return self._list(raw, info, path)
            case inspect.DictType():
                return self._dict(raw, info, path)
            case inspect.FloatType() if extra.get("format") == "duration":
                return self._quantity(raw, parse_duration, info, path)
            case inspect.IntType() if extra.get("format") == "size":
                return self._quantity(raw, parse_size, info, path)
            case inspect.IntType() | inspect.FloatType():
                return self._number(raw, info, path)
            case inspect.StrType() if extra.get("format") == "expression":
                return self._expression(raw, info, path)
            case inspect.StrType():
                return self._string(raw, info, path)
            case inspect.BoolType():
                return raw if isinstance(raw, bool) else self._mismatch(raw, info, path)
            case inspect.LiteralType(values=values):
                return self._choice(raw, values, path)
            case inspect.EnumType(cls=cls):
                values = tuple(member.value for member in cls)
                return cls(raw) if raw in values else self._no_choice(raw, values, path)
        raise TypeError(f"{path}: {type(info).__name__} isn't read from documents")

    def _union(self, raw: object, types: tuple[inspect.Type, ...], path: str, extra: Mapping[str, Any]) -> Any:
        if raw is None and any(isinstance(kind, inspect.NoneType) for kind in types):
            return None
        rest = [kind for kind in types if not isinstance(kind, inspect.NoneType)]
        if len(rest) == 1:
            return self.value(raw, rest[0], path, extra)
        for kind in rest:
            attempt = Problems()
            decoder = _Decoder(attempt, self._ignore_case, lenient=False, expressions=self._expressions)
            value = decoder.value(raw, kind, path, extra)
            if not attempt.errors:
                return value
        self._problems.error(path, f"{_describe(raw)}; {' or '.join(map(expected, rest))} is expected")
        return MISSING

    def _suggestion(self, key: str, fields: Collection[str]) -> str:
        """A hint for what to write instead."""
        if len(self._problems.errors) > MAX_HINTS:
            return ""
        return nearest(key, fields) or (f"; known: {', '.join(sorted(fields))}" if fields else "; there are none")

    def _struct(self, raw: object, info: inspect.StructType, path: str) -> Any:
        if not isinstance(raw, Mapping):
            return self._mismatch(raw, info, path)
        fields = {field.encode_name: field for field in info.fields}
        folded = {name.lower() if self._ignore_case else name: name for name in fields}
        values: dict[str, Any] = {}
        seen: dict[str, str] = {}
        sound = True
        for key, item in raw.items():
            name = folded.get(key.lower() if self._ignore_case else key) if isinstance(key, str) else None
            at = join(path, str(key))
            if name is None:
                self._problems.error(at, f"unknown field{self._suggestion(str(key), fields)}")
                sound = False
                continue
            if name in seen:
                self._problems.error(at, f"given twice, as {seen[name]!r} too")
                sound = False
                continue
            seen[name] = str(key)
            field = fields[name]
            if item is None and not field.required:
                continue  # an explicit null leaves the default, as in the original
            value = self.value(item, field.type, at, {})
            if value is MISSING:
                sound = False
            else:
                values[field.name] = value
        for name, field in fields.items():
            if field.required and name not in seen:
                self._problems.error(join(path, name), "required, and missing")
                sound = False
        if not sound and not (self._lenient and _has_defaults(info)):
            return MISSING
        try:
            return info.cls(**values)
        except ValueError as error:  # what the fields say together, checked in __post_init__
            self._problems.error(path, str(error))
            return MISSING

    def _list(self, raw: object, info: inspect.ListType | inspect.VarTupleType, path: str) -> Any:
        if not isinstance(raw, (list, tuple)):
            return self._mismatch(raw, info, path)
        if info.min_length and len(raw) < info.min_length:
            self._problems.error(path, f"{len(raw) or 'no'} items; at least {info.min_length} is expected")
            return MISSING
        item = info.item_type
        values = [self.value(entry, item, join(path, index), {}) for index, entry in enumerate(raw)]
        if any(value is MISSING for value in values):
            blank = _blank(item)
            if not self._lenient or blank is MISSING:
                return MISSING
            # a position keeps its number, so that the paths of later problems are right
            values = [blank if value is MISSING else value for value in values]
        return tuple(values) if isinstance(info, inspect.VarTupleType) else values

    def _dict(self, raw: object, info: inspect.DictType, path: str) -> Any:
        if not isinstance(raw, Mapping):
            return self._mismatch(raw, info, path)
        values = {str(key): self.value(entry, info.value_type, join(path, str(key)), {}) for key, entry in raw.items()}
        return MISSING if any(value is MISSING for value in values.values()) else values

    def _quantity(
        self, raw: object, parse: Callable[[object], float], info: inspect.IntType | inspect.FloatType, path: str
    ) -> Any:
        try:
            number = parse(raw)
        except ValueError as error:
            self._problems.error(path, f"{show(raw)}: {error}")
            return MISSING
        return self._in_range(number, raw, info, path)

    def _number(self, raw: object, info: inspect.IntType | inspect.FloatType, path: str) -> Any:
        if isinstance(raw, bool) or not isinstance(raw, (int, float)):
            return self._mismatch(raw, info, path)
        if abs(raw) == _INFINITY or raw != raw:
            self._problems.error(path, f"{show(raw)} is not a finite number")
            return MISSING
        if isinstance(info, inspect.IntType):
            return self._in_range(int(raw), raw, info, path) if raw == int(raw) else self._mismatch(raw, info, path)
        try:
            return self._in_range(float(raw), raw, info, path)
        except OverflowError:
            self._problems.error(path, f"{show(raw)} is too large")
            return MISSING

    def _in_range(self, number: float, raw: object, info: inspect.IntType | inspect.FloatType, path: str) -> Any:
        if problem := _out_of_range(number, info):
            self._problems.error(path, f"{show(raw)} is {problem}")
            return MISSING
        return number

    def _string(self, raw: object, info: inspect.StrType, path: str) -> Any:
        if not isinstance(raw, str):
            return self._mismatch(raw, info, path)
        if info.min_length and len(raw) < info.min_length:
            problem = "is empty" if not raw else f"has fewer than {info.min_length} characters"
        elif info.max_length is not None and len(raw) > info.max_length:
            problem = f"has more than {info.max_length} characters"
        elif info.pattern and not re.search(info.pattern, raw):
            problem = f"doesn't match {info.pattern}"
        else:
            return raw
        self._problems.error(path, f"{show(raw)} {problem}")
        return MISSING

    def _expression(self, raw: object, info: inspect.StrType, path: str) -> Any:
        """One that is too much isn't even returned: those who get it compile it."""
        text = self._string(raw, info, path)
        if text is MISSING or not text:
            return text
        had, self._expressions.left = self._expressions.left, self._expressions.left - len(text) - EACH_EXPRESSION
        if self._expressions.left >= 0:
            return text
        if had >= 0:
            limit = f"more than {MAX_EXPRESSIONS} characters, where each counts for {EACH_EXPRESSION} more"
            self._problems.error(path, f"with this one, the document's expressions have {limit}")
        return MISSING

    def _choice(self, raw: object, values: tuple[object, ...], path: str) -> Any:
        if raw in values:
            return raw
        if self._ignore_case and isinstance(raw, str):
            folded = {value.lower(): value for value in values if isinstance(value, str)}
            if raw.lower() in folded:
                return folded[raw.lower()]
        return self._no_choice(raw, values, path)

    def _mismatch(self, raw: object, info: inspect.Type, path: str) -> Any:
        self._problems.error(path, f"{_describe(raw)}; {expected(info)} is expected")
        return MISSING

    def _no_choice(self, raw: object, values: Iterable[object], path: str) -> Any:
        self._problems.error(path, f"{show(raw)} isn't one of {', '.join(map(show, values))}")
        return MISSING


def expected(info: inspect.Type) -> str:
    """What a value of the type is called in messages."""
    match info:
        case inspect.Metadata(type=inner):
            return expected(inner)
        case inspect.IntType():
            return "a whole number"
        case inspect.FloatType():
            return "a number"
        case inspect.StrType():
            return "a string"
        case inspect.BoolType():
            return "true or false"
        case inspect.ListType() | inspect.VarTupleType():
            return "a list"
        case inspect.StructType() | inspect.DictType():
            return "a mapping"
        case inspect.LiteralType(values=values):
            return " or ".join(map(show, values))
        case inspect.EnumType(cls=cls):
            return " or ".join(show(member.value) for member in cls)
        case _:
            return f"a {type(info).__name__.removesuffix('Type').lower()}"


def _has_defaults(info: inspect.StructType) -> bool:
    return not any(field.required for field in info.fields)


def _blank(info: inspect.Type) -> Any:
    """What stands in a list for an item that can't be used, or MISSING where nothing can."""
    match info:
        case inspect.StructType() if _has_defaults(info):
            try:
                return info.cls()
            except ValueError:  # its fields are optional, but not all of them together
                return MISSING
        case inspect.StrType():
            return ""
        case _:
            return MISSING


def _out_of_range(number: float, info: inspect.IntType | inspect.FloatType) -> str:
    if abs(number) == _INFINITY or number != number:
        return "not a finite number"
    if info.ge is not None and number < info.ge:
        return "negative" if info.ge == 0 else f"below {info.ge:.10g}"
    if info.gt is not None and number <= info.gt:
        return f"not above {info.gt:.10g}"
    if info.le is not None and number > info.le:
        return f"above {info.le:.10g}"
    if info.lt is not None and number >= info.lt:
        return f"not below {info.lt:.10g}"
    return ""


def _describe(raw: object) -> str:
    """Describe the value and its type."""
    return "null" if raw is None else f"{show(raw)} is {kind_of(raw)}"


def kind_of(raw: object) -> str:
    """The type of a value, as an error message names it."""
    match raw:
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(raw).__name__}"
