"""`request-attribute-reporter`: which numbers the proxy gets, when, and which expressions are refused."""

from typing import Any

import cel.cel
import numpy as np
import pytest

from services.picker.extproc.messages import BodyMode, ProcessingResponse
from services.picker.pipeline import build
from services.picker.responses.usage import NOTHING, Usage
from services.picker.scheduling.record import Exchange
from services.picker.scheduling.reporters.request_attribute import RequestAttributeReporter
from shared.config import Invalid, load
from tests.unit.services.picker.extproc.proxy import FULL_DUPLEX, LEAN, response_body, response_trailers
from tests.unit.services.picker.handler import REGISTRY
from tests.unit.services.picker.hooked import BUFFERED, EVENT, EVENTS, JSON, LAST_EVENT, STREAMED, World, answered
from tests.unit.services.picker.scheduling.plugins import plugin, read

SUM = "usage.prompt_tokens + usage.completion_tokens"
BOTH = "has(usage.prompt_tokens) && has(usage.completion_tokens)"
CACHED = "has(usage.prompt_token_details) ? usage.prompt_token_details.cached_tokens : 0.0"

TEN = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
NESTED = f"{TEN}.map(a, {TEN}.map(b, {TEN}.map(c, a + b + c)))"

COMMENTED = f"{TEN}.exists // one of them\n\t(a, a == 1)"


def reporter(expression: str, condition: str = "", **key: str) -> RequestAttributeReporter:
    attribute = {"key": {"name": "cost", **key}, "expression": expression, "condition": condition}
    made: RequestAttributeReporter = plugin(RequestAttributeReporter, {"attributes": [attribute]})
    return made


def exchange(usage: Usage) -> Exchange:
    return Exchange(
        request_id="r",
        model="m",
        priority=0,
        picked=(),
        profiles={},
        refusal=None,
        remembered={},
        usage=usage,
    )


@pytest.mark.parametrize(
    ("expression", "condition", "usage", "value"),
    [
        (SUM, "", Usage(10, 5), 15),
        (f"{SUM}\n", BOTH, Usage(10, 5), 15),
        ("usage.total_tokens", "", Usage(10, 5), 15),
        ("usage.prompt_tokens + 2.0 * usage.completion_tokens", "", Usage(10, 5), 20),
        ("usage.prompt_tokens * 0.25", "", Usage(10, 5), 2),  # cut, not rounded
        ("int(usage.completion_tokens) * 3", "", Usage(10, 5), 15),
        ("0.0 - usage.prompt_tokens", "", Usage(10, 5), -10),
        (SUM, "usage.completion_tokens > 5.0", Usage(10, 5), None),
        (SUM, "usage.completion_tokens", Usage(10, 5), None),  # no boolean
        (SUM, "", NOTHING, None),  # zero isn't reported
        (SUM, "", Usage(10), 10),
        (CACHED, "", Usage(10, 5, 4), 4),
        (CACHED, "", Usage(10, 5), None),
    ],
)
def test_the_number(expression: str, condition: str, usage: Usage, value: int | None) -> None:
    made = reporter(expression, condition)
    found = made.response_body(exchange(usage), first=False, last=True)
    assert found == (None if value is None else {("envoy.lb", "cost"): value})
    assert made.response_body(exchange(usage), first=True, last=False) is None


@pytest.mark.parametrize("expression", ["'text'", "usage.prompt_tokens > 1.0", "[1]", "1.0 / 0.0"])
def test_a_value_that_is_no_number_is_a_failure(expression: str) -> None:
    with pytest.raises(ValueError, match="no number"):
        reporter(expression).response_body(exchange(Usage(1, 1)), first=False, last=True)


def test_the_namespace_can_be_another() -> None:
    for given, namespace in (("my.filter", "my.filter"), ("", "envoy.lb")):
        found = reporter("1", namespace=given).response_body(exchange(NOTHING), first=False, last=True)
        assert found == {(namespace, "cost"): 1}


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ([], "at.attributes: no items; at least 1"),
        ([{"key": {"name": "a"}, "expression": "1"}] * 2, "at: attributes: 2; one is expected"),
        ([{"key": {"name": ""}, "expression": "1"}], "at.attributes[0].key.name"),
        ([{"key": {"name": "a"}, "expression": ""}], "at.attributes[0].expression"),
        ([{"key": {"name": "a"}, "expression": "1 +"}], "expression: not a CEL expression over usage: "),
        ([{"key": {"name": "a"}, "expression": "cost"}], "expression: not a CEL expression over usage: "),
        ([{"key": {"name": "a"}, "expression": "usage.nothing"}], "expression: not a CEL expression over usage: "),
        ([{"key": {"name": "a"}, "expression": "usage.prompt_tokens * 2"}], "does not coerce between types"),
        ([{"key": {"name": "a"}, "expression": "1", "condition": "("}], "condition: not a CEL expression"),
        ([{"key": {"name": "a"}, "expression": "(" * 1000}], "expression: not a CEL expression"),
        ([{"key": {"name": "a"}, "expression": "size(" + NESTED + ")"}], "expression: map isn't supported"),
        ([{"key": {"name": "a"}, "expression": "1", "condition": COMMENTED}], "condition: exists isn't supported"),
        ([{"key": {"name": "a"}, "expression": "'a'.matches('(a{1,90}){1,90}') ? 1 : 2"}], "matches isn't supported"),
    ],
)
def test_a_document_with_a_wrong_attribute_is_refused(attributes: list[Any], problem: str) -> None:
    made, errors = read(RequestAttributeReporter.Parameters, {"attributes": attributes})
    assert made is None
    (error,) = errors
    assert problem.partition(";")[0] in error
    assert len(error) < 500


class Reporting(World):
    """A picker that reports `SUM`."""

    def __init__(self) -> None:
        super().__init__()
        document = (
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: request-attribute-reporter\n"
            f"  parameters: {{attributes: [{{key: {{name: cost}}, expression: {SUM}}}]}}\n- type: queue-scorer\n"
        )
        self.handler.pipeline = build(load(document, REGISTRY), np.random.default_rng(1), lambda: 0.0)

    def numbers(self, stream: Any, *messages: Any) -> list[dict[str, float]]:
        """The numbers in each answer's metadata."""
        found = []
        for message in messages:
            for answer in stream.receive(message.SerializeToString()):
                fields = ProcessingResponse.FromString(answer).dynamic_metadata.fields
                found.append(
                    {name: value.number_value for name, value in fields["envoy.lb"].struct_value.fields.items()}
                )
        return found


@pytest.mark.parametrize("modes", [LEAN, BUFFERED, STREAMED, FULL_DUPLEX, (BodyMode.BUFFERED, FULL_DUPLEX[1])])
@pytest.mark.parametrize("trailers", [False, True])
def test_the_last_answer_has_the_number_in_every_mode(modes: Any, trailers: bool) -> None:
    world = Reporting()
    stream, _ = world.ask(modes)
    pieces = [response_body(EVENT), response_body(LAST_EVENT, end=not trailers)]
    if modes == BUFFERED:
        pieces = [response_body(EVENT + LAST_EVENT, end=not trailers)]
    messages = [answered(EVENTS), *pieces, *([response_trailers()] if trailers else [])]
    found = world.numbers(stream, *messages)
    assert found[-1] == {"cost": 5}
    assert not any(found[:-1])


def test_a_response_that_breaks_off_has_no_number() -> None:
    world = Reporting()
    stream, _ = world.ask(STREAMED)
    assert not any(world.numbers(stream, answered(), response_body(JSON[:20])))
    stream.end()
    assert world.failures == []


def test_expressions_are_compiled_when_the_document_is_loaded() -> None:
    document = (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: request-attribute-reporter\n"
        "  parameters:\n    attributes:\n    - key: {name: cost}\n      expression: usage.prompt_token\n"
    )
    with pytest.raises(Invalid, match=r"plugins\[0\]\.parameters\.attributes\[0\]"):
        load(document, REGISTRY)


LONGEST = "size([" + ",".join("1" * 508) + "])"


def reporters(expression: str, count: int) -> str:
    """A document whose reporters share one expression as an alias."""
    head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scorer\n"
    parameters = "{attributes: [{key: {name: x}, expression: %s, condition: *e}]}"
    return head + "".join(
        f"- {{type: request-attribute-reporter, name: r{number}, parameters: "
        f"{parameters % ('*e' if number else f'&e {expression!r}')}}}\n"
        for number in range(count)
    )


def test_a_text_is_compiled_once_and_before_the_plugins_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_cel(text: str) -> Any:
        compiled.append(text)
        return original(text)

    original = cel.cel.compile
    monkeypatch.setattr(cel.cel, "compile", compile_cel)
    loaded = load(reporters("1 + 2 == 3 // only here", 50), REGISTRY)
    assert compiled == ["1 + 2 == 3 // only here"]
    build(loaded, np.random.default_rng(1), lambda: 0.0)
    assert len(compiled) == 1


def test_the_expressions_of_a_document_are_bounded_each_and_together() -> None:
    assert len(LONGEST) == 1023
    with pytest.raises(Invalid, match=r"expression: .* has more than 1024 characters"):
        load(reporters(f"{LONGEST} ;", 1), REGISTRY)
    load(reporters(LONGEST, 7), REGISTRY)
    with pytest.raises(Invalid) as refused:
        load(reporters(LONGEST, 20), REGISTRY)
    (problem,) = refused.value.problems
    assert problem.path == "plugins[8].parameters.attributes[0].expression"
    assert "expressions have more than 16384 characters" in problem.message
