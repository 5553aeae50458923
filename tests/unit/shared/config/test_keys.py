"""Every key of the document: what its value comes to, and what is said of a misspelt key and of a wrong value.

The keys are found in the schema, so that one that is added to it fails here until it has its line.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import inspect, structs

from pointsman.docs import DOCS
from shared.config import Invalid, LoadedConfig, Problem, SourceSpec, load
from shared.config.schema import Document, FlowControlSection, PriorityBand, StaleMetrics
from tests.unit.shared.config.plugins import registry

Reader = Callable[[LoadedConfig], Any]


def fields(info: inspect.Type, path: str = "") -> Iterator[tuple[str, inspect.Type]]:
    """Every key below a type with its own type: `plugins`, `plugins[0].name`."""
    match info:
        case inspect.StructType(fields=found):
            for field in found:
                at = f"{path}.{field.encode_name}" if path else field.encode_name
                yield at, field.type
                yield from fields(field.type, at)
        case inspect.VarTupleType(item_type=item):
            yield from fields(item, f"{path}[0]")
        case inspect.UnionType(types=types):
            for kind in types:
                yield from fields(kind, path)
        case inspect.Metadata(type=inner):
            yield from fields(inner, path)


KEYS = dict(fields(inspect.type_info(Document)))
SECTIONS = {path.rpartition(".")[0] for path in KEYS if "." in path}
"""What holds keys: `dataLayer`, `plugins[0]`."""


def document(path: str, value: object, **others: object) -> dict[str, Any]:
    """A document whose value at the path is that one: `plugins[0].name`."""
    for step in reversed(re.findall(r"\w+|\[0\]", path)):
        value = [value] if step == "[0]" else {step: value}
    assert isinstance(value, dict)
    return {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", **others, **value}


def loaded(raw: object) -> LoadedConfig:
    return structs.replace(load(json.dumps(raw), registry()), revision="", text="")


def errors(raw: object) -> list[tuple[str, str]]:
    with pytest.raises(Invalid) as caught:
        loaded(raw)
    return [(problem.path, problem.message) for problem in caught.value.problems]


def key_of(path: str) -> str:
    return path.rpartition(".")[2]


@pytest.mark.parametrize("path", sorted(KEYS))
def test_a_misspelt_key_is_an_error_that_names_the_right_one(path: str) -> None:
    key = key_of(path)
    misspelt = path.removesuffix(key) + key[:-2] + key[-1]
    assert (misspelt, f"unknown field; did you mean {key!r}?") in errors(document(misspelt, None))


@pytest.mark.parametrize("path", sorted(KEYS))
def test_a_value_of_another_type_is_an_error_at_its_place(path: str) -> None:
    """A number where there is none, and a list where there is one."""
    found = dict(errors(document(path, [] if _number(KEYS[path]) else 3)))
    assert path in found
    assert re.search(r"(is|are) expected$|isn't one of ", found[path])


def _number(info: inspect.Type) -> bool:
    match info:
        case inspect.Metadata(type=inner):
            return _number(inner)
        case inspect.UnionType(types=types):
            return any(map(_number, types))
        case inspect.LiteralType():
            return True
    return isinstance(info, inspect.IntType | inspect.FloatType)


REQUIRED = {
    "apiVersion",
    "kind",
    "plugins[0].type",
    "schedulingProfiles[0].name",
    "schedulingProfiles[0].plugins[0].pluginRef",
    "requestHandler.parsers[0].pluginRef",
    "parser.pluginRef",
    "flowControl.saturationDetector.pluginRef",
    "flowControl.priorityBands[0].priority",
    *(
        f"{section}.{key}.pluginRef"
        for section in ("data", "dataLayer")
        for key in ("sources[0]", "sources[0].extractors[0]", "discovery", "peerDiscovery")
    ),
}


@pytest.mark.parametrize("path", sorted(REQUIRED))
def test_a_key_without_a_default_is_required(path: str) -> None:
    found = dict(errors(document(path, None, featureGates=["flowControl"])))
    assert found[path].startswith("required, and missing")


@pytest.mark.parametrize("path", sorted(KEYS.keys() - REQUIRED))
def test_null_leaves_the_default(path: str) -> None:
    """As leaving the key out does."""
    section = path.rpartition(".")[0]
    without = document(section, {}) if section else document("plugins", [])
    assert outcome(document(path, None)) == outcome(without)


def outcome(raw: object) -> object:
    """What the document comes to, or what it lacks."""
    try:
        return loaded(raw)
    except Invalid as error:
        return error.problems


def flow(config: LoadedConfig) -> FlowControlSection:
    assert config.flow_control is not None
    return config.flow_control


PLUGINS = [
    {"type": "plain-scorer", "name": "plain"},
    {"type": "max-score-picker"},
    {"type": "random-picker", "name": "dice"},
    {"type": "utilization-detector", "name": "gauge"},
    {"type": "metrics-data-source", "name": "pages"},
    {"type": "core-metrics-extractor", "name": "core"},
    {"type": "file-discovery", "name": "files"},
    {"type": "openai-parser", "name": "chat"},
    {"type": "fcfs-ordering-policy", "name": "first"},
    {"type": "round-robin-fairness-policy", "name": "turns"},
    {"type": "static-usage-limit-policy", "name": "limit"},
]
FED = {"pluginRef": "pages", "extractors": [{"pluginRef": "core"}]}


NO_EFFECT = "no effect: pickers share their load by themselves; leave it out"
BAND = {"maxBytes": "2Mi", "maxRequests": "3k", "fairnessPolicyRef": "turns", "orderingPolicyRef": "first"}
Value = tuple[object, Reader, object]
"""What is written, what is read, and what that is."""


def data_layer(section: str) -> dict[str, Value]:
    return {
        f"{section}.injectDefaults": (False, lambda config: config.sources, ()),
        f"{section}.sources": ([FED], lambda config: config.sources, (SourceSpec("pages", ("core",)),)),
        f"{section}.discovery": ({"pluginRef": "files"}, lambda config: config.discovery, "files"),
        f"{section}.peerDiscovery": ({"pluginRef": "files"}, lambda config: config.warnings[-1].message, NO_EFFECT),
        f"{section}.crossReplicaSyncerPluginRef": (
            "limit",
            lambda config: config.warnings[-1],
            Problem(f"{section}.crossReplicaSyncerPluginRef", NO_EFFECT),
        ),
        f"{section}.crossReplicaSyncInterval": (
            "400ms",
            lambda config: config.warnings[-1],
            Problem(f"{section}.crossReplicaSyncInterval", NO_EFFECT),
        ),
        f"{section}.staleMetrics": (
            {"after": "4s", "policy": "lastKnown"},
            lambda config: config.stale_metrics,
            StaleMetrics(4.0, "lastKnown"),
        ),
    }


VALUES: dict[str, Value] = {
    "apiVersion": ("inference.networking.x-k8s.io/v1alpha1", lambda config: config.warnings[0].path, "apiVersion"),
    "kind": ("EndpointPickerConfig", lambda config: config.warnings, ()),
    "featureGates": (["flowControl"], lambda config: config.gates["flowControl"], True),
    "plugins": (
        [{"type": "plain-scorer", "name": "mine", "parameters": {"share": 0.25}}],
        lambda config: (config.plugins["mine"].kind.TYPE, config.plugins["mine"].parameters.share),
        ("plain-scorer", 0.25),
    ),
    "schedulingProfiles": (
        [{"name": "own", "plugins": [{"pluginRef": "plain", "weight": 2.5}, {"pluginRef": "dice"}]}],
        lambda config: [(profile.name, [member.weight for member in profile.members]) for profile in config.profiles],
        [("own", [2.5, 1.0])],
    ),
    "saturationDetector": ({"pluginRef": "gauge"}, lambda config: config.saturation_detector, "gauge"),
    "parser": ({"pluginRef": "chat"}, lambda config: config.parsers, ("chat",)),
    "requestHandler": ({"parsers": [{"pluginRef": "chat"}]}, lambda config: config.parsers, ("chat",)),
    **data_layer("dataLayer"),
    **data_layer("data"),
    "flowControl.maxBytes": ("1Gi", lambda config: flow(config).max_bytes, 1024**3),
    "flowControl.maxRequests": (900, lambda config: flow(config).max_requests, 900),
    "flowControl.defaultRequestTTL": ("90s", lambda config: flow(config).default_request_ttl, 90.0),
    "flowControl.noEndpointRequestTTL": ("0s", lambda config: flow(config).no_endpoint_request_ttl, 0.0),
    "flowControl.usageLimitPolicyPluginRef": (
        "limit",
        lambda config: flow(config).usage_limit_policy_plugin_ref,
        "limit",
    ),
    "flowControl.saturationDetector": ({"pluginRef": "gauge"}, lambda config: config.saturation_detector, "gauge"),
    "flowControl.enableEviction": (True, lambda config: flow(config).enable_eviction, True),
    "flowControl.flowWeights": (
        {"gold": 4, "other": 0.5},
        lambda config: flow(config).flow_weights,
        {"gold": 4.0, "other": 0.5},
    ),
    "flowControl.priorityBands": (
        [{"priority": 7, **BAND}],
        lambda config: flow(config).priority_bands,
        (PriorityBand(7, 2 * 1024**2, 3000, "turns", "first"),),
    ),
    "flowControl.defaultPriorityBand": (
        {"priority": 1, **BAND},
        lambda config: flow(config).default_priority_band,
        PriorityBand(1, 2 * 1024**2, 3000, "turns", "first"),
    ),
    "flowControl.defaultNegativePriorityBand": (
        {"priority": -1, **BAND},
        lambda config: flow(config).default_negative_priority_band,
        PriorityBand(-1, 2 * 1024**2, 3000, "turns", "first"),
    ),
}


@pytest.mark.parametrize("path", VALUES)
def test_a_value_comes_to_what_it_says(path: str) -> None:
    value, read, expected = VALUES[path]
    gates = {"featureGates": ["flowControl"]} if path.startswith("flowControl") else {}
    assert read(loaded(document(path, value, **{"plugins": PLUGINS, **gates}))) == expected


def given(path: str, value: object) -> Iterator[str]:
    """The keys that a value at a path gives, without those that only hold others."""
    if isinstance(value, list) and f"{path}[0]" in SECTIONS:
        yield from given(f"{path}[0]", value[0])
    elif isinstance(value, dict) and path in SECTIONS:
        for key, item in value.items():
            yield from given(f"{path}.{key}", item)
    else:
        yield path


def test_every_key_has_a_value_here() -> None:
    tried = {key for path, (value, _, _) in VALUES.items() for key in given(path, value)}
    holders = {path.removesuffix("[0]") for path in SECTIONS}
    assert KEYS.keys() - holders == tried


def test_every_key_is_on_the_page() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", page))))
    assert {key_of(path) for path in KEYS} - words == set()
