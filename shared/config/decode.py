"""Plain data (as YAML, JSON or flags give it) into typed structs, collecting every problem instead of the first.

msgspec's own conversion stops at the first error; here a struct's fields, a list's items and a map's values are walked,
and msgspec checks the leaves. Field constraints are those of `msgspec.Meta`; `extra={"format": "duration"}` and
`{"format": "size"}` accept what `shared.quantities` reads.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from shared.config.problems import Problems, join, nearest, show
from shared.quantities import parse_duration, parse_size

S = TypeVar("S", bound=msgspec.Struct)

MISSING: Any = object()
"""What `decode` returns for a value that had problems."""


def decode(
    raw: object, kind: Any, path: str, problems: Problems, *, ignore_case: bool = False, lenient: bool = False
) -> Any:
    """Convert `raw` to the type `kind`; on a problem, note it under `path` and return `MISSING`.

    `ignore_case` matches struct fields as Go's JSON decoder does, which plugin parameters rely on. `lenient` goes on
    with the sound parts of a struct whose fields all have defaults, so that a later check can find more problems.
    """
    return _Decoder(problems, ignore_case, lenient).value(raw, inspect.type_info(kind), path, {})


class _Decoder:
    def __init__(self, problems: Problems, ignore_case: bool, lenient: bool) -> None:
        self._problems = problems
        self._ignore_case = ignore_case
        self._lenient = lenient

    def value(self, raw: object, info: inspect.Type, path: str, extra: Mapping[str, Any]) -> Any:
        match info:
            case inspect.Metadata(type=inner):
                return self.value(raw, inner, path, {**extra, **(info.extra or {})})
            case inspect.UnionType(types=types):
                if raw is None and any(isinstance(one, inspect.NoneType) for one in types):
                    return None
                rest = [one for one in types if not isinstance(one, inspect.NoneType)]
                if len(rest) == 1:
                    return self.value(raw, rest[0], path, extra)
            case inspect.StructType():
                return self._struct(raw, info, path)
            case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
                return self._list(raw, item, path, info)
            case inspect.DictType(value_type=item):
                return self._dict(raw, item, path)
            case inspect.FloatType() if extra.get("format") == "duration":
                return self._quantity(raw, parse_duration, info, path)
            case inspect.IntType() if extra.get("format") == "size":
                return self._quantity(raw, parse_size, info, path)
            case inspect.AnyType():
                return raw
        return self._leaf(raw, info, path)

    def _struct(self, raw: object, info: inspect.StructType, path: str) -> Any:
        if not isinstance(raw, Mapping):
            self._problems.error(path, f"{show(raw)} is {_kind(raw)}; a mapping is expected")
            return MISSING
        fields = {field.encode_name: field for field in info.fields}
        folded = {name.lower(): name for name in fields} if self._ignore_case else {name: name for name in fields}
        values: dict[str, Any] = {}
        seen: dict[str, str] = {}
        sound = True
        for key, item in raw.items():
            name = folded.get(key.lower() if self._ignore_case else key) if isinstance(key, str) else None
            if name is None:
                hint = nearest(str(key), fields)
                known = ", ".join(sorted(fields)) or "none"
                self._problems.error(join(path, str(key)), f"unknown field{hint or f'; known: {known}'}")
                sound = False
            elif name in seen:
                self._problems.error(join(path, str(key)), f"given twice, as {seen[name]!r} too")
                sound = False
            else:
                seen[name] = str(key)
                field = fields[name]
                if item is None and (not field.required):
                    continue  # an explicit null leaves the default, as in the original
                value = self.value(item, field.type, join(path, str(key)), {})
                if value is MISSING:
                    sound = False
                else:
                    values[field.name] = value
        for name, field in fields.items():
            if field.required and name not in seen:
                self._problems.error(join(path, name), "required, and missing")
                sound = False
        if not sound and not (self._lenient and all(not field.required for field in info.fields)):
            return MISSING
        try:
            return info.cls(**values)
        except ValueError as error:  # a struct's own __post_init__ check
            self._problems.error(path, str(error))
            return MISSING

    def _list(self, raw: object, item: inspect.Type, path: str, info: inspect.Type) -> Any:
        if not isinstance(raw, (list, tuple)):
            self._problems.error(path, f"{show(raw)} is {_kind(raw)}; a list is expected")
            return MISSING
        values = [self.value(one, item, join(path, index), {}) for index, one in enumerate(raw)]
        if any(value is MISSING for value in values):
            if not self._lenient:
                return MISSING
            # a position keeps its number, so that paths of later problems are right
            if isinstance(item, inspect.StructType):
                values = [item.cls() if one is MISSING else one for one in values]
            else:
                values = [one for one in values if one is not MISSING]
        return tuple(values) if isinstance(info, inspect.VarTupleType) else values

    def _dict(self, raw: object, item: inspect.Type, path: str) -> Any:
        if not isinstance(raw, Mapping):
            self._problems.error(path, f"{show(raw)} is {_kind(raw)}; a mapping is expected")
            return MISSING
        values = {str(key): self.value(one, item, join(path, str(key)), {}) for key, one in raw.items()}
        return MISSING if any(value is MISSING for value in values.values()) else values

    def _quantity(self, raw: object, parse: Any, info: inspect.IntType | inspect.FloatType, path: str) -> Any:
        try:
            number = parse(raw)
        except ValueError as error:
            self._problems.error(path, f"{show(raw)}: {error}")
            return MISSING
        if problem := _out_of_range(number, info):
            self._problems.error(path, f"{show(raw)} is {problem}")
            return MISSING
        return number

    def _leaf(self, raw: object, info: inspect.Type, path: str) -> Any:
        if isinstance(info, (inspect.IntType, inspect.FloatType)) and isinstance(raw, (int, float)):
            if isinstance(raw, bool) or (isinstance(info, inspect.IntType) and raw != int(raw)):
                self._problems.error(path, f"{show(raw)} is {_kind(raw)}; {_expected(info)} is expected")
                return MISSING
            if problem := _out_of_range(raw, info):
                self._problems.error(path, f"{show(raw)} is {problem}")
                return MISSING
            return float(raw) if isinstance(info, inspect.FloatType) else int(raw)
        match info:
            case inspect.LiteralType(values=values):
                if raw in values:
                    return raw
                allowed = ", ".join(repr(one) for one in values)
                self._problems.error(path, f"{show(raw)} isn't one of {allowed}")
                return MISSING
            case inspect.EnumType(cls=cls):
                try:
                    return cls(raw)
                except ValueError:
                    allowed = ", ".join(repr(one.value) for one in cls)
                    self._problems.error(path, f"{show(raw)} isn't one of {allowed}")
                    return MISSING
            case inspect.BoolType() if isinstance(raw, bool):
                return raw
            case inspect.StrType() if isinstance(raw, str):
                if info.min_length and len(raw) < info.min_length:
                    self._problems.error(path, f"{show(raw)} is empty")
                    return MISSING
                return raw
        self._problems.error(path, f"{show(raw)} is {_kind(raw)}; {_expected(info)} is expected")
        return MISSING


def _out_of_range(number: float, info: inspect.IntType | inspect.FloatType) -> str:
    if number != number or number in (float("inf"), float("-inf")):
        return "not a finite number"
    if info.ge is not None and number < info.ge:
        return "negative" if info.ge == 0 else f"below {info.ge:g}"
    if info.gt is not None and number <= info.gt:
        return f"not above {info.gt:g}"
    if info.le is not None and number > info.le:
        return f"above {info.le:g}"
    if info.lt is not None and number >= info.lt:
        return f"not below {info.lt:g}"
    return ""


def _expected(info: inspect.Type) -> str:
    match info:
        case inspect.IntType():
            return "a whole number"
        case inspect.FloatType():
            return "a number"
        case inspect.StrType():
            return "a string"
        case inspect.BoolType():
            return "true or false"
        case _:
            return type(info).__name__.removesuffix("Type").lower()


def _kind(raw: object) -> str:
    match raw:
        case None:
            return "null"
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
