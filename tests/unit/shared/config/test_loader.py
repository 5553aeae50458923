"""What is wrong with a configuration: each kind of error, and many at once."""

import re
from collections.abc import Callable

import pytest

from shared.config import Invalid, LoadedConfig, load
from shared.plugin import Registry
from tests.unit.shared.config.plugins import HEADER, MaxScorePicker, OpenAIParser, SingleProfileHandler, registry


def errors(body: str, header: str = HEADER, types: Registry | None = None) -> list[str]:
    with pytest.raises(Invalid) as caught:
        load(header + body, types or registry())
    return caught.value.lines()


def loaded(body: str, *, allow_experimental: bool = False) -> LoadedConfig:
    return load(HEADER + body, registry(), allow_experimental=allow_experimental)


def test_an_experimental_type_loads_where_it_is_allowed() -> None:
    """What is said where it isn't: among all errors of a document."""
    body = "plugins: [{type: untested-scorer}]"
    assert "untested-scorer" in loaded(body, allow_experimental=True).plugins


CATALOGUE = """\
# parameter that goes to a producer
plugins: [{type: prefix-scorer, parameters: {blockSize: 0}}]
=> plugins[0].parameters.blockSize: 0 is not above 0
# references to a broken plugin
plugins: [{type: zebra, name: z}]
schedulingProfiles: [{name: a, plugins: [{pluginRef: z}]}, {name: b, plugins: [{pluginRef: z}]}]
dataLayer: {injectDefaults: false, sources: [{pluginRef: z, extractors: [{pluginRef: z}]}]}
parser: {pluginRef: z}
=> plugins[0].type: 'zebra' is no plugin type that is installed
# references where the plugins can't be read
plugins: {type: queue-scorer}
schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}]
=> plugins: {'type': 'queue-scorer'} is a mapping; a list is expected
# references to a plugin that can't be read
plugins: [queue-scorer]
schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}]
=> plugins[0]: 'queue-scorer' is a string; a mapping is expected
# what a broken plugin may be for isn't missed
plugins: [{type: queue-scorer}, {type: core-metric-extractor}]
dataLayer: {injectDefaults: false}
=> plugins[1].type: 'core-metric-extractor' is no plugin type that is installed; did you mean 'core-metrics-extractor'?
# what lacks, beside an error elsewhere
plugins: [{type: queue-scorer}]
featureGates: [zebra]
dataLayer: {injectDefaults: false}
=> featureGates[0]: 'zebra' names no feature gate; known: flowControl, haPopulateNonLeaderDatastore
=> plugins[0]: queue-scorer needs WaitingQueueSize; add core-metrics-extractor, which produces it, under a source \
in dataLayer.sources, or leave injectDefaults on
# parameters that contradict each other
plugins: [{type: plain-scorer, parameters: {mode: auto, names: [a]}}]
=> plugins[0].parameters: names: not with mode auto
# producer that a parameter names and isn't there
plugins: [{type: prefix-scorer, parameters: {indexName: mine}}]
=> plugins[0].parameters.indexName: 'mine' is no plugin's name
# producer that a parameter names and is something else
plugins: [{type: prefix-scorer, parameters: {indexName: p}}, {type: plain-scorer, name: p}]
=> plugins[0].parameters.indexName: 'p' is of type plain-scorer, which doesn't produce PrefixMatch
# duplicate profile name
plugins: [{type: many-profiles-handler}]
schedulingProfiles: [{name: a}, {name: a}]
=> schedulingProfiles[1].name: 'a' is the name of an earlier profile
# profile entry that leads nowhere
plugins: [{type: queue-scorer}]
schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-skorer}]}]
=> schedulingProfiles[0].plugins[0].pluginRef: 'queue-skorer' is no plugin's name; did you mean 'queue-scorer'?
# profile entry for a type that isn't listed
schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}]
=> schedulingProfiles[0].plugins[0].pluginRef: 'queue-scorer' is no plugin's name; list it under plugins
# weight that is no number
plugins: [{type: queue-scorer}]
schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: .nan}]}]
=> schedulingProfiles[0].plugins[0].weight: nan is not a finite number
# two pickers
plugins: [{type: max-score-picker}, {type: random-picker, name: r}]
schedulingProfiles: [{name: a, plugins: [{pluginRef: max-score-picker}, {pluginRef: r}]}]
=> schedulingProfiles[0].plugins: 'max-score-picker' and 'r' are pickers; a profile has one
# two profile handlers
plugins: [{type: single-profile-handler}, {type: many-profiles-handler}]
=> plugins: 'single-profile-handler' and 'many-profiles-handler' are profile handlers; only one is allowed
# several profiles without a handler
schedulingProfiles: [{name: a}, {name: b}]
=> plugins: 2 scheduling profiles need a profile handler
# several profiles with the single handler
plugins: [{type: single-profile-handler}]
schedulingProfiles: [{name: a}, {name: b}]
=> plugins[0]: single-profile-handler runs one scheduling profile, not 2
# saturation detector that isn't there
flowControl: {saturationDetector: {pluginRef: mine}}
=> flowControl.saturationDetector.pluginRef: 'mine' is no plugin's name
# saturation detector that is something else
plugins: [{type: queue-scorer}]
flowControl: {saturationDetector: {pluginRef: queue-scorer}}
=> flowControl.saturationDetector.pluginRef: 'queue-scorer' is of type queue-scorer, which is no saturation detector
# former saturation detector with more than a reference
saturationDetector: {pluginRef: utilization-detector, queueDepthThreshold: 1}
=> saturationDetector.queueDepthThreshold: unknown field; known: pluginRef
# thresholds at two places
plugins: [{type: utilization-detector}]
saturationDetector: {queueDepthThreshold: 1}
=> saturationDetector: thresholds here and in the plugin 'utilization-detector'; leave these out
# wrong thresholds
saturationDetector: {queueDepthThreshold: -1, kvUtil: 1}
=> saturationDetector.queueDepthThreshold: -1 is not above 0
=> saturationDetector.kvUtil: unknown field; known: interval, mode, names, queueDepthThreshold, share
# source that isn't there
dataLayer: {sources: [{pluginRef: metrics-data-source}]}
=> dataLayer.sources[0].pluginRef: 'metrics-data-source' is no plugin's name; list it under plugins
# source that is something else
plugins: [{type: queue-scorer}]
dataLayer: {sources: [{pluginRef: queue-scorer}]}
=> dataLayer.sources[0].pluginRef: 'queue-scorer' is of type queue-scorer, which is no data source
# source that is listed twice
plugins: [{type: metrics-data-source, name: s}]
dataLayer: {sources: [{pluginRef: s}, {pluginRef: s}]}
=> dataLayer.sources[1].pluginRef: 's' is listed twice
# extractor that isn't there
plugins: [{type: metrics-data-source, name: s}]
dataLayer: {sources: [{pluginRef: s, extractors: [{pluginRef: e}]}]}
=> dataLayer.sources[0].extractors[0].pluginRef: 'e' is no plugin's name
# extractor that is something else
plugins: [{type: metrics-data-source, name: s}]
dataLayer: {sources: [{pluginRef: s, extractors: [{pluginRef: s}]}]}
=> dataLayer.sources[0].extractors[0].pluginRef: 's' is of type metrics-data-source, which is no extractor
# extractor that doesn't read what the source gives
plugins: [{type: metrics-data-source, name: s}, {type: event-extractor, name: e}]
dataLayer: {sources: [{pluginRef: s, extractors: [{pluginRef: e}]}]}
=> dataLayer.sources[0].extractors[0].pluginRef: 'e' reads events; the source 's' gives pages
# extractor that is listed twice
plugins: [{type: metrics-data-source, name: s}, {type: core-metrics-extractor, name: e}]
dataLayer: {sources: [{pluginRef: s, extractors: [{pluginRef: e}, {pluginRef: e}]}]}
=> dataLayer.sources[0].extractors[1].pluginRef: 'e' is listed twice
# errors under the section's former name
data: {sources: [{pluginRef: s}], injectDefault: true}
=> data.injectDefault: unknown field; did you mean 'injectDefaults'?
=> data.sources[0].pluginRef: 's' is no plugin's name
# both names of a section
data: {}
dataLayer: {}
=> data: the same section as dataLayer under its former name; write dataLayer
# discovery that isn't there
dataLayer: {discovery: {pluginRef: d}}
=> dataLayer.discovery.pluginRef: 'd' is no plugin's name
# discovery that is something else
plugins: [{type: plain-scorer}]
dataLayer: {discovery: {pluginRef: plain-scorer}}
=> dataLayer.discovery.pluginRef: 'plain-scorer' is of type plain-scorer, which is no endpoint discovery
# attribute that nothing produces
plugins: [{type: queue-scorer}]
dataLayer: {injectDefaults: false}
=> plugins[0]: queue-scorer needs WaitingQueueSize; add core-metrics-extractor, which produces it, under a source \
in dataLayer.sources, or leave injectDefaults on
# extractor that no source feeds
plugins: [{type: queue-scorer}, {type: core-metrics-extractor}]
dataLayer: {injectDefaults: false}
=> plugins[0]: queue-scorer needs WaitingQueueSize; add core-metrics-extractor, which produces it, under a source \
in dataLayer.sources, or leave injectDefaults on
# two producers of one attribute
plugins: [{type: prefix-scorer}, {type: index}, {type: index, name: other}]
=> plugins[2]: 'other' makes PrefixMatch, as 'index' does; one plugin makes it
# producers that read each other
plugins: [{type: egg-scorer}]
=> egg: data producers depend on each other: egg → chicken → egg
# parser that isn't there
requestHandler: {parsers: [{pluginRef: openai}]}
=> requestHandler.parsers[0].pluginRef: 'openai' is no plugin's name
# parser that is something else
plugins: [{type: queue-scorer}]
requestHandler: {parsers: [{pluginRef: queue-scorer}]}
=> requestHandler.parsers[0].pluginRef: 'queue-scorer' is of type queue-scorer, which is no parser
# parser that is listed twice
plugins: [{type: openai-parser}]
requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: openai-parser}]}
=> requestHandler.parsers[1].pluginRef: 'openai-parser' is listed twice
# default's name taken by another type
plugins: [{type: queue-scorer, name: max-score-picker}]
=> plugins[0].name: the name 'max-score-picker' is needed for the plugin of that type, added by default; rename \
this one
# flow control
featureGates: [flowControl]
flowControl:
  maxBytes: -1
  maxRequests: lots
  defaultRequestTTL: -1s
  usageLimitPolicyPluginRef: none
  priorityBands: [{priority: 1}, {priority: 1}, {maxRequests: 5}, {priority: 2, orderingPolicyRef: none}]
  defaultPriorityBand: {fairnessPolicyRef: none}
  defaultNegativePriorityBand: {priority: 2147483648}
  flowWeights: {a: 0, b: -1, c: 1001, d: many}
=> flowControl.maxBytes: -1 is negative
=> flowControl.maxRequests: 'lots': a quantity such as 4096, 64Mi or 1G is expected
=> flowControl.defaultRequestTTL: '-1s' is negative
=> flowControl.defaultNegativePriorityBand.priority: 2147483648 is above 2147483647
=> flowControl.flowWeights.a: 0 is below 0.001
=> flowControl.flowWeights.b: -1 is below 0.001
=> flowControl.flowWeights.c: 1001 is above 1000
=> flowControl.flowWeights.d: 'many' is a string; a number is expected
=> flowControl.usageLimitPolicyPluginRef: 'none' is no plugin's name
=> flowControl.priorityBands[1].priority: 1 is flowControl.priorityBands[0]'s too
=> flowControl.priorityBands[2].priority: required, and missing
=> flowControl.priorityBands[3].orderingPolicyRef: 'none' is no plugin's name
=> flowControl.defaultPriorityBand.fairnessPolicyRef: 'none' is no plugin's name
# policy of the wrong kind
featureGates: [flowControl]
plugins: [{type: fcfs-ordering-policy, name: p}]
flowControl: {priorityBands: [{priority: 1, fairnessPolicyRef: p}]}
=> flowControl.priorityBands[0].fairnessPolicyRef: 'p' is of type fcfs-ordering-policy, which is no fairness policy
# default policy's name taken by another type
featureGates: [flowControl]
plugins: [{type: queue-scorer, name: fcfs-ordering-policy}]
=> plugins[0].name: the name 'fcfs-ordering-policy' is needed for the plugin of that type, added by default; rename \
this one
# two of what there is one of
featureGates: [flowControl]
plugins: [{type: gentle-eviction-filter}, {type: gentle-eviction-filter, name: other}]
flowControl: {enableEviction: true}
=> plugins: 'gentle-eviction-filter' and 'other' are each an eviction filter policy; only one is allowed
"""
"""Each case: what is wrong, the document, and what is said."""


def cases() -> dict[str, tuple[str, list[str]]]:
    found: dict[str, tuple[str, list[str]]] = {}
    for name, case in re.findall(r"^# (.*)\n((?:[^#].*\n)+)", CATALOGUE, re.MULTILINE):
        lines = case.splitlines()
        body = [line for line in lines if not line.startswith("=> ")]
        found[name] = "\n".join(body), [line.removeprefix("=> ") for line in lines[len(body) :]]
    return found


@pytest.mark.parametrize(("body", "expected"), cases().values(), ids=cases())
def test_an_error_names_its_place_the_value_and_what_would_be_right(body: str, expected: list[str]) -> None:
    assert errors(body) == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (
            "plugins: []",
            [
                "kind: required, and missing; 'EndpointPickerConfig' is expected",
                "apiVersion: required, and missing; "
                "'llm-d.ai/v1alpha1' or 'inference.networking.x-k8s.io/v1alpha1' is expected",
            ],
        ),
        (
            "kind: Pod\napiVersion: llm-d.ai/v1",
            [
                "kind: 'Pod'; 'EndpointPickerConfig' is expected",
                "apiVersion: 'llm-d.ai/v1'; "
                "'llm-d.ai/v1alpha1' or 'inference.networking.x-k8s.io/v1alpha1' is expected",
            ],
        ),
        ("# nothing", ["document: nothing but comments; an EndpointPickerConfig is expected"]),
        ("just words", ["document: 'just words' is a string; a mapping is expected"]),
        ("a: [", ["document: not valid YAML: did not find expected node content (line 2)"]),
        (f"{HEADER}---\n{HEADER}", ["document: 2 YAML documents; one is expected"]),
    ],
)
def test_a_text_that_is_no_such_document_is_refused(header: str, expected: list[str]) -> None:
    assert errors("", header) == expected


def test_all_errors_of_a_document_are_told_at_once() -> None:
    body = """\
featureGates: [5, zebra]
plugins:
- type: queue-skorer
  name: q
- type: plain-scorer
  type: plain-scorer
  parameters: {share: 2, intervall: 1s}
- type: untested-scorer
  parameters: {share: -1}
- type: plain-scorer
  parameters: {share: x}
schedulingProfiles:
- name: a
  plugins: [{pluginRef: q, weight: heavy}, {pluginRef: r}, {pluginref: q}]
- plugins: [{pluginRef: plain-scorer}]
dataLayer: {staleMetrics: {after: -1}, source: []}
requestHandler: {parsers: [{pluginRef: q}, {pluginRef: p}]}
"""
    assert errors(body, "kind: EndpointPickerConfig\n") == [
        "plugins[1].type: duplicate key (line 7)",
        "featureGates[0]: 5 is a number; a string is expected",
        "schedulingProfiles[0].plugins[0].weight: 'heavy' is a string; a number is expected",
        "schedulingProfiles[0].plugins[2].pluginref: unknown field; did you mean 'pluginRef'?",
        "dataLayer.staleMetrics.after: -1 is not above 0",
        "dataLayer.source: unknown field; did you mean 'sources'?",
        "apiVersion: required, and missing; "
        "'llm-d.ai/v1alpha1' or 'inference.networking.x-k8s.io/v1alpha1' is expected",
        "featureGates[1]: 'zebra' names no feature gate; known: flowControl, haPopulateNonLeaderDatastore",
        "plugins[0].type: 'queue-skorer' is no plugin type that is installed; did you mean 'queue-scorer'?",
        "plugins[1].parameters.share: 2 is above 1",
        "plugins[1].parameters.intervall: unknown field; did you mean 'interval'?",
        "plugins[2].type: 'untested-scorer' is experimental (alpha); allow it with --allow-experimental-plugins",
        "plugins[2].parameters.share: -1 is negative",
        "plugins[3].name: 'plain-scorer' is the name of an earlier plugin; names are unique",
        "plugins[3].parameters.share: 'x' is a string; a number is expected",
        "schedulingProfiles[0].plugins[1].pluginRef: 'r' is no plugin's name",
        "schedulingProfiles[0].plugins[2].pluginRef: required, and missing",
        "schedulingProfiles[1].name: required, and missing",
        "requestHandler.parsers[1].pluginRef: 'p' is no plugin's name",
    ]


def test_a_default_that_isnt_installed_is_named() -> None:
    lines = errors("plugins: [{type: queue-scorer}]", types=registry(MaxScorePicker, SingleProfileHandler))
    assert lines == [
        f"plugins: the plugin type {name!r}, which is added by default, isn't installed"
        for name in ("max-score-picker", "single-profile-handler")
    ]


def test_a_plugin_package_that_cant_be_loaded_is_mentioned() -> None:
    types = registry(OpenAIParser)
    types.failures = ("entry point 'x' (x:Y): ImportError: no x",)
    assert errors("plugins: [{type: openai-parser}]", types=types) == [
        "plugins[0].type: 'openai-parser' is no plugin type that is installed; entry point 'x' (x:Y): ImportError: no x"
    ]
    [warning] = load(HEADER, types).warnings
    assert "some plugin types may be missing: entry point 'x'" in str(warning)


def test_lines_are_led_by_the_origin() -> None:
    with pytest.raises(Invalid, match=r"^pool\.yaml: pluggins: unknown field"):
        load(f"{HEADER}pluggins: []", registry(), "pool.yaml")


def test_thresholds_in_the_section_are_a_detector_that_filters_nothing() -> None:
    """Such documents are older than detectors that are filters too."""
    config = loaded("plugins: [{type: queue-scorer}]\nsaturationDetector: {queueDepthThreshold: 9, INTERVAL: 150ms}")
    assert config.saturation_detector == "utilization-detector"
    assert config.plugins["utilization-detector"].parameters.queue_depth_threshold == 9
    assert config.plugins["utilization-detector"].parameters.interval == 0.15
    assert [member.plugin.name for member in config.profiles[0].members] == ["queue-scorer", "max-score-picker"]
    assert list(map(str, config.warnings)) == [
        "saturationDetector: thresholds here are deprecated; write a utilization-detector plugin"
    ]


DETECTORS = "plugins: [{type: utilization-detector, name: a}, {type: utilization-detector, name: b}]\n"
PARSERS = "plugins: [{type: passthrough-parser, name: p}, {type: openai-parser, name: o}]\n"
SCORERS = "plugins: [{type: plain-scorer}, {type: queue-scorer}]\nschedulingProfiles: [{name: a, plugins: [%s]}]"


def weights(config: LoadedConfig) -> object:
    return [member.weight for member in config.profiles[0].members]


@pytest.mark.parametrize(
    ("body", "read", "value", "warning"),
    [
        (
            DETECTORS + "saturationDetector: {pluginRef: b}",
            lambda config: config.saturation_detector,
            "b",
            "saturationDetector: deprecated; write flowControl.saturationDetector",
        ),
        (
            DETECTORS + "saturationDetector: {pluginRef: b}\nflowControl: {saturationDetector: {pluginRef: a}}",
            lambda config: config.saturation_detector,
            "a",
            "saturationDetector: has no effect beside flowControl.saturationDetector; leave it out",
        ),
        (
            PARSERS + "parser: {pluginRef: p}",
            lambda config: config.parsers,
            ("p",),
            "parser: deprecated; write requestHandler.parsers",
        ),
        (
            PARSERS + "parser: {pluginRef: p}\nrequestHandler: {parsers: [{pluginRef: o}]}",
            lambda config: config.parsers,
            ("o",),
            "parser: has no effect beside requestHandler.parsers; leave it out",
        ),
        (
            "flowControl: {maxRequests: 5, priorityBands: [{orderingPolicyRef: none}]}",
            lambda config: config.flow_control,
            None,
            "flowControl: the feature gate flowControl is off: only its saturationDetector counts",
        ),
        (
            SCORERS % "{pluginRef: plain-scorer}, {pluginRef: plain-scorer, weight: 2}",
            weights,
            [1.0, 2.0, 1.0],
            "schedulingProfiles[0].plugins[1].pluginRef: 'plain-scorer' is listed twice, and counts twice",
        ),
        (
            SCORERS % "{pluginRef: plain-scorer, weight: -1}, {pluginRef: queue-scorer, weight: 0}",
            weights,
            [-1.0, 0.0, 1.0],
            "schedulingProfiles[0].plugins[0].weight: "
            "-1 is negative: the endpoints that 'plain-scorer' scores best are avoided",
        ),
    ],
)
def test_what_is_taken_with_a_warning(
    body: str, read: Callable[[LoadedConfig], object], value: object, warning: str
) -> None:
    config = loaded(body)
    assert (read(config), [str(warning) for warning in config.warnings]) == (value, [warning])
