"""`request-attribute-reporter`: computes a number from a response's token usage, and reports it to the proxy.

The number is in the metadata of the answer to the response's end, where the proxy's rate limits and access log can use
it. The expression is in the Common Expression Language (CEL), as in the Go original.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any

from msgspec import Meta, Struct

from services.picker.metadata import NAMESPACE
from services.picker.responses.usage import Usage
from services.picker.scheduling.interfaces import ResponseBodyProcessor
from services.picker.scheduling.record import Exchange
from shared.config.schema import EACH_EXPRESSION, EXPRESSION, MAX_EXPRESSION, MAX_EXPRESSIONS

Expression = Annotated[str, Meta(min_length=1, max_length=MAX_EXPRESSION, extra=EXPRESSION)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]

_UNBOUNDED = re.compile(r"\b(all|exists|exists_one|existsOne|filter|map|matches)(?:\s|//[^\n]*\n)*\(")
"""Macros that loop, with exponential time when they are nested, and regular expressions, which are compiled at each
use. All else takes time in proportion to the expression's length. Numbers need neither."""
_SAMPLE = Usage(prompt=7, completion=5, cached=3)
_SHOWN = 300
"""Characters of an error of the library, which quotes the expression."""


class AttributeName(Struct, frozen=True, rename="camel"):
    """Where the number is in the metadata."""

    name: Name
    namespace: Annotated[str, Meta(max_length=256)] = NAMESPACE


class ReportedAttribute(Struct, frozen=True, rename="camel"):
    """A number, and when it is reported."""

    key: AttributeName
    expression: Expression
    condition: Annotated[str, Meta(max_length=MAX_EXPRESSION, extra=EXPRESSION)] = ""

    def __post_init__(self) -> None:
        for name in ("expression", "condition"):
            if text := getattr(self, name):
                try:
                    compiled(text)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from error


class RequestAttributeParameters(Struct, frozen=True, rename="camel"):
    """What is reported: one attribute, as in the Go original."""

    attributes: Annotated[tuple[ReportedAttribute, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if len(self.attributes) > 1:
            raise ValueError(f"attributes: {len(self.attributes)}; one is expected, list the type again for another")


class RequestAttributeReporter(ResponseBodyProcessor):
    """The expression's value, cut to a whole number; nothing for 0, and where the condition doesn't hold."""

    TYPE = "request-attribute-reporter"
    Parameters = RequestAttributeParameters
    parameters: RequestAttributeParameters

    def __init__(self, name: str, parameters: RequestAttributeParameters) -> None:
        super().__init__(name, parameters)
        (attribute,) = parameters.attributes
        self._key = attribute.key.namespace or NAMESPACE, attribute.key.name
        self._expression = compiled(attribute.expression)
        self._condition = compiled(attribute.condition) if attribute.condition else None

    def response_body(self, exchange: Exchange, *, first: bool, last: bool) -> Mapping[tuple[str, str], float] | None:
        if not last:
            return None
        variables = {"usage": usage_of(exchange.usage)}
        if self._condition is not None and self._condition.execute(variables) is not True:
            return None
        value = self._expression.execute(variables)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise ValueError(f"the expression's value is no number, but a {type(value).__name__}")
        return {self._key: float(int(value))} if int(value) else None


@lru_cache(maxsize=MAX_EXPRESSIONS // EACH_EXPRESSION)
def compiled(expression: str) -> Any:
    """A CEL program over `usage`, compiled once for all that have this text. Compiling takes up to 6 ms, in which other
    threads stand still: the thread that reads the document does it. Raises ValueError for what is none, fails on a
    sample, or could take long."""
    if unbounded := _UNBOUNDED.search(expression):
        raise ValueError(f"{unbounded[1]} isn't supported: the usage has numbers alone")
    # Half a second, most of it for a command line, so only where it is used. `xds-protos` may have overwritten
    # `cel/__init__.py` with its own: so not `from cel`.
    from cel.cel import compile as compile_cel

    try:
        program = compile_cel(expression)
        program.execute({"usage": usage_of(_SAMPLE)})
    except Exception as error:
        raise ValueError(f"not a CEL expression over usage: {str(error)[:_SHOWN]}") from error
    return program


def usage_of(usage: Usage) -> dict[str, Any]:
    """The variable `usage`: all numbers are doubles, as in the Go original."""
    prompt, completion = float(usage.prompt or 0), float(usage.completion or 0)
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if usage.cached is not None:
        found["prompt_token_details"] = {"cached_tokens": float(usage.cached)}
    return found
