"""What documents of the Go original name that isn't here: told apart from mistakes, with what comes nearest."""

import csv
import os
from pathlib import Path

import pytest

from shared.config import Invalid, LoadedConfig, load
from shared.config.originals import ABSENT
from shared.plugin import Registry
from tests.unit.shared.config.plugins import HEADER

REGISTRY = Registry.installed()
TYPES = {name: substitute for types in ABSENT.values() for name, substitute in types.items()}
FIXTURES = os.environ.get("POINTSMAN_FIXTURES", "")


def loaded(plugins: str, more: str = "") -> LoadedConfig:
    return load(f"{HEADER}plugins:\n{plugins}\n{more}", REGISTRY, allow_experimental=True)


def errors(plugins: str) -> list[str]:
    with pytest.raises(Invalid) as caught:
        loaded(plugins)
    return caught.value.lines()


@pytest.mark.parametrize(
    ("type", "problem"),
    [
        (
            "latency-scorer",
            "'latency-scorer' is a plugin type of the Go original that isn't available here; "
            "the nearest type that is: token-load-scorer",
        ),
        (
            "p2p-source-producer",
            "'p2p-source-producer' is a plugin type of the Go original that isn't available here; "
            "nothing comes near it",
        ),
        ("queue-scorrer", "'queue-scorrer' is no plugin type that is installed; did you mean 'queue-scorer'?"),
        ("my-filter", "'my-filter' is no plugin type that is installed"),
    ],
)
def test_a_type_of_the_original_is_told_from_one_that_nobody_knows(type: str, problem: str) -> None:
    assert errors(f"- type: {type}") == [f"plugins[0].type: {problem}"]


def test_no_type_of_the_table_is_installed_and_every_substitute_is() -> None:
    assert not {name for name in TYPES if REGISTRY.find(name) is not None}
    assert not {name for name in TYPES.values() if name and REGISTRY.find(name) is None}
    assert len(TYPES) == sum(map(len, ABSENT.values()))


@pytest.mark.skipif(not FIXTURES, reason="POINTSMAN_FIXTURES names no documents")
def test_every_type_that_a_published_document_names_is_installed_or_in_the_table() -> None:
    with open(Path(FIXTURES) / "configs" / "INDEX.tsv", encoding="utf-8", newline="") as lines:
        named = {name for row in list(csv.reader(lines, delimiter="\t"))[1:] for name in row[2].split()}
    assert "decode-filter" in named
    assert not {name for name in named - TYPES.keys() if REGISTRY.find(name) is None and not name.startswith("test-")}


def test_cache_tracking_is_explained_in_one_message() -> None:
    (error,) = errors(
        "- type: prefix-cache-scorer\n"
        "  parameters:\n"
        "    mode: cache_tracking\n"
        "    indexerConfig: {tokenProcessorConfig: {blockSize: 64}}\n"
        "    kvEventsConfig: {zmqEndpoint: 'tcp://*:5557'}"
    )
    assert error.startswith("plugins[0].parameters: mode: 'cache_tracking' of llm-d 0.2 to 0.5")
    assert "precise-prefix-cache-producer" in error
    assert "Leave out mode, indexerConfig, kvEventsConfig:" in error
    (error,) = errors("- {type: prefix-cache-scorer, parameters: {kvCacheRedisAddr: 'redis:6379'}}")
    assert error.startswith("plugins[0].parameters: kvCacheRedisAddr: of mode 'cache_tracking'")


def test_the_mode_that_the_scorer_has_is_left_out_with_a_warning() -> None:
    config = loaded("- {type: prefix-cache-scorer, parameters: {mode: estimate}}")
    assert [str(warning) for warning in config.warnings] == [
        "plugins[0].parameters: mode is deprecated, and has no effect; leave it out"
    ]
