"""What a view keeps of others' messages is limited by settings: a changed one takes effect."""

from collections.abc import Callable
from typing import Any

import pytest

from services.picker.settings.limits import ViewLimits
from services.picker.settings.picker import PickerSettings
from services.picker.state.view import View
from shared.attributes import AttributeKey
from shared.model import Endpoint, Model, ModelRewrite, RewriteRule, Target
from shared.service.settings import parse
from tests.unit.services.picker.world import endpoint, frame, load

NOW = 100.0


def view(limits: ViewLimits) -> View:
    made = View(limits=limits)
    fact = endpoint("a1")
    assert isinstance(fact, Endpoint)
    made.upsert("p.endpoint.a1", fact)
    assert len(made.layout)
    return made


def peers(limits: ViewLimits) -> int:
    made = view(limits)
    for number in range(20):
        made.apply_load(load(f"p{number}", {"a1": (1, 1)}), NOW)
    return len(list(made.in_flight.peers()))


def numbers(limits: ViewLimits) -> int:
    return _attributes(view(limits), float, 1.0)


def objects(limits: ViewLimits) -> int:
    return _attributes(view(limits), tuple, ["name"])


def large_objects(limits: ViewLimits) -> int:
    return _attributes(view(limits), tuple, ["name" * 1000] * 10)


def _attributes(made: View, kind: type[Any], value: object) -> int:
    most = 0
    for number in range(100):
        key: AttributeKey[Any] = AttributeKey(f"Limited{kind.__name__}{number}", "x", kind)
        made.apply_frame(frame(["a1"], {key: [value]}), NOW, 0.0)
        most = max(most, len(made.columns.of(0, NOW)))
    return most


def named_objects(limits: ViewLimits) -> int:
    made = view(limits)
    for number in range(100):
        key: AttributeKey[Any] = AttributeKey(f"{number}".zfill(200), "x", tuple)
        made.apply_frame(frame(["a1"], {key: [[]]}), NOW, 0.0)
    return len(made.columns.of(0, NOW))


def models(limits: ViewLimits) -> int:
    made = view(limits)
    rules = tuple(RewriteRule(models=(f"m{number}",), targets=(Target(model="t"),)) for number in range(20))
    made.upsert("p.rewrite.r", ModelRewrite(name="r", rules=rules))
    return sum(made.rewrites.target(f"m{number}", "id") is not None for number in range(20))


def named_models(limits: ViewLimits) -> int:
    made = view(limits)
    for number in range(20):
        made.upsert(f"p.model.{number}", Model(name=f"{number:02}", model_name=f"m{number}"))
    return sum(made.rewrites.names(f"m{number}") for number in range(20))


def blocks(limits: ViewLimits) -> int:
    made = view(limits)
    made.prefixes.add("a1", range(1, 1000), capacity=10_000)
    return made.prefixes.blocks_of("a1")


@pytest.mark.parametrize(
    ("kept", "limits", "least", "most"),
    [
        (blocks, ViewLimits(prefix_blocks=300), 298, 300),
        (peers, ViewLimits(peer_rows=5000), 5, 5),
        (numbers, ViewLimits(attributes=30), 30, 30),
        (objects, ViewLimits(attributes=80), 10, 10),
        (large_objects, ViewLimits(attribute_bytes=100_000), 1, 5),
        (large_objects, ViewLimits(), 50, 64),
        (named_objects, ViewLimits(attributes=800, attribute_bytes=20_000), 1, 80),
        (models, ViewLimits(model_names=10), 5, 5),
        (named_models, ViewLimits(model_names=7), 7, 7),
    ],
)
def test_what_a_view_keeps_is_limited(
    kept: Callable[[ViewLimits], int], limits: ViewLimits, least: int, most: int
) -> None:
    assert least <= kept(limits) <= most


def test_settings_are_the_limits_of_the_view() -> None:
    argv = (
        "--max-model-names 7 --max-peer-rows 6000 --max-attributes 9 --max-attribute-bytes 1Ki --max-senders 20 "
        "--max-prefix-blocks 300"
    )
    settings = parse(PickerSettings, argv.split(), {}, "test")
    expected = ViewLimits(
        model_names=7, peer_rows=6000, attributes=9, attribute_bytes=1024, runs=200, prefix_blocks=300
    )
    assert settings.view_limits == expected
