"""`--emit-endpoint-scores`: the proxy gets the total score of every candidate."""

from typing import Any

import pytest

from services.picker.extproc.messages import ProcessingResponse
from services.picker.settings.picker import PickerSettings
from shared.attributes import WAITING_QUEUE_SIZE
from shared.service.settings import parse
from tests.unit.services.picker.extproc.proxy import FULL_DUPLEX, LEAN, body, headers, trailers
from tests.unit.services.picker.handler import PickerUnderTest
from tests.unit.services.picker.hooked import PATH, Modes
from tests.unit.services.picker.world import endpoint, pool, report

QUEUES = """apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: by-label, parameters: {label: tier, validValues: [new]}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: by-label}, {pluginRef: queue-scorer, weight: 2}]
"""
CHANCE = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: random-picker}]\n"
KEY = "x-gateway-destination-endpoint-scores"


def told(modes: Modes, document: str, *last: Any, emit: bool = True) -> list[dict[str, float]]:
    """The scores in each answer's metadata."""
    view = pool(endpoint("a1", tier="new"), endpoint("a2", tier="new"), endpoint("a3", tier="old"))
    report(view, {WAITING_QUEUE_SIZE: [0, 4, 8]})
    picker = PickerUnderTest(view, document, emit_scores=emit)
    stream, _ = picker.begin()
    found: list[dict[str, float]] = []
    for message in (headers(PATH, modes=modes), *last):
        for answer in stream.receive(message.SerializeToString()):
            fields = ProcessingResponse.FromString(answer).dynamic_metadata.fields["envoy.lb"].struct_value.fields
            found.append({name: score.number_value for name, score in fields[KEY].struct_value.fields.items()})
    return found


@pytest.mark.parametrize(
    ("modes", "last"),
    [
        (LEAN, [body(b'{"model": "m", "prompt": "hi"}', end=True)]),
        (FULL_DUPLEX, [body(b'{"model": "m", "prompt": "hi"}', end=True)]),
        (FULL_DUPLEX, [body(b'{"model": "m", "prompt": "hi"}'), trailers()]),
    ],
)
def test_one_answer_has_the_totals_of_what_was_scored(modes: Modes, last: list[Any]) -> None:
    found = [scores for scores in told(modes, QUEUES, *last) if scores]
    assert found == [{"10.0.0.1:8000": 2.0, "10.0.0.2:8000": 0.0}]


def test_nothing_is_told_without_the_setting_or_without_a_scorer() -> None:
    asked = body(b'{"model": "m", "prompt": "hi"}', end=True)
    assert not any(told(LEAN, QUEUES, asked, emit=False))
    assert not any(told(LEAN, CHANCE, asked))


def test_the_setting_is_off_unless_it_is_given() -> None:
    for flags, given in (((), False), (("--emit-endpoint-scores",), True)):
        assert parse(PickerSettings, flags, {}, "picker").emit_endpoint_scores is given
