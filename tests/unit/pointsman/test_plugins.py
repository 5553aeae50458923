"""`pointsman plugins`: what it says of every installed type."""

import json

import pytest
from msgspec import Struct

from pointsman.plugins import describe, main
from shared.attributes import KV_CACHE_USAGE
from shared.plugin import Input, Plugin, Registry, Role, Stability, Tier

TYPES = [kind.TYPE for kind in Registry.installed()]


class Parameters(Struct, frozen=True, rename="camel"):
    least_share: float
    names: tuple[str, ...] = ("a",)


class Example(Plugin):
    """Keeps something.

    More of it."""

    TYPE = "example-filter"
    ALIASES = ("former-filter",)
    ROLES = frozenset({Role.SCORER, Role.FILTER})
    STABILITY = Stability.ALPHA
    Parameters = Parameters
    CONSUMES = (KV_CACHE_USAGE, Input(name="Power", optional=True))
    PRODUCES = (KV_CACHE_USAGE,)


def test_a_type_says_what_it_declares() -> None:
    found = describe(Example)
    assert (found.type, found.aliases, found.roles) == ("example-filter", ("former-filter",), ("filter", "scorer"))
    assert (found.tiers, found.stability, found.summary) == (("picker",), "alpha", "Keeps something.")
    assert [(each.name, each.required, each.default) for each in found.parameters] == [
        ("leastShare", True, None),
        ("names", False, ("a",)),
    ]
    assert [str(each) for each in found.inputs] == [KV_CACHE_USAGE.wire, "[Power]"]
    assert found.outputs == (KV_CACHE_USAGE.wire,)


def test_every_installed_type_is_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["TYPE", "ROLES", "TIERS", "STABILITY", "PARAMETERS", "INPUTS", "OUTPUTS"]
    assert [line.split()[0] for line in lines[:-2]] == sorted(TYPES)
    (queue,) = [line.split() for line in lines if line.startswith("queue-scorer")]
    assert queue == ["queue-scorer", "scorer", "picker", "beta", "-", "WaitingQueueSize/core-metrics-extractor", "-"]


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--format", "json"]) == 0
    plugins = json.loads(capsys.readouterr().out)
    assert [each["type"] for each in plugins["plugins"]] == sorted(TYPES)
    assert plugins["problems"] == []
    assert {tier for each in plugins["plugins"] for tier in each["tiers"]} == {tier.value for tier in Tier}
    (scorer,) = [each for each in plugins["plugins"] if each["type"] == "metric-scorer"]
    assert {"name": "metricName", "required": True, "default": None} in scorer["parameters"]


def test_single_types_can_be_named_by_any_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "max-score-picker"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["token-producer", "max-score-picker"]
    assert main(["max-score-pikcer", "queue-scorer"]) == 1
    assert "did you mean 'max-score-picker'?" in capsys.readouterr().err
