import pytest

from pointsman.description import describe
from shared.config import load
from shared.config.defaults import revision
from tests.unit.shared.config.plugins import HEADER, registry

BODY = """\
plugins:
- {type: label-filter, name: canary, parameters: {labelKey: a}}
- {type: utilization-detector}
- {type: queue-scorer}
- {type: prefix-scorer, name: prefix}
- {type: plain-scorer, name: forgotten}
- {type: fcfs-ordering-policy}
- {type: file-discovery}
- {type: metrics-data-source, name: idle}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: canary}
  - {pluginRef: utilization-detector}
  - {pluginRef: prefix, weight: 0.5}
dataLayer:
  discovery: {pluginRef: file-discovery}
  staleMetrics: {after: 500ms, policy: ignore}
"""


def test_everything_that_runs_is_listed_with_where_it_runs() -> None:
    described = describe(load(HEADER + BODY, registry()))
    assert described.lines() == [
        f"revision               {revision(HEADER + BODY)}",
        "profile default        canary (label-filter) → utilization-detector → queue-scorer·2 + "
        "prefix (prefix-scorer)·0.5 → max-score-picker*",
        "profile handler        single-profile-handler*",
        "parsers                openai-parser*, passthrough-parser*",
        "data producers         tokenizer*, index*",
        "saturation detector    utilization-detector",
        "data source            idle (metrics-data-source) → core-metrics-extractor*",
        "endpoint discovery     file-discovery",
        "stale metrics          after 500ms: ignore",
        "feature gates          haPopulateNonLeaderDatastore",
        "runs in the watcher    file-discovery",
        "runs in the collector  idle, core-metrics-extractor",
        "runs in the picker     canary, utilization-detector, queue-scorer, prefix, "
        "max-score-picker, single-profile-handler, openai-parser, passthrough-parser, index, tokenizer",
        "not used               forgotten (plain-scorer), fcfs-ordering-policy",
        "* added by default",
    ]


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("{}", "global-strict-fairness-policy*, fcfs-ordering-policy, static-usage-limit-policy*"),
        (
            "{enableEviction: true, defaultPriorityBand: {fairnessPolicyRef: turns}}",
            "turns (round-robin-fairness-policy), fcfs-ordering-policy, static-usage-limit-policy*, "
            "sheddable-eviction-filter*, priority-then-time-eviction-order-policy*",
        ),
    ],
)
def test_the_policies_of_flow_control_are_listed_while_its_gate_is_on(section: str, line: str) -> None:
    body = "plugins: [{type: fcfs-ordering-policy}, {type: round-robin-fairness-policy, name: turns}]\n"
    body += f"featureGates: [flowControl]\nflowControl: {section}"
    found = [each for each in describe(load(HEADER + body, registry())).lines() if each.startswith("flow control")]
    assert [each.removeprefix("flow control").strip() for each in found] == [line]


@pytest.mark.parametrize(
    ("plugins", "sources", "line"),
    [
        ("", "", "none: no metrics are scraped"),
        (
            "{type: metrics-data-source}",
            "{pluginRef: metrics-data-source}",
            "metrics-data-source → no extractor: not polled",
        ),
    ],
)
def test_a_configuration_that_scrapes_nothing_says_so(plugins: str, sources: str, line: str) -> None:
    body = f"plugins: [{plugins}]\ndataLayer: {{injectDefaults: false, sources: [{sources}]}}"
    [found] = [
        each_line
        for each_line in describe(load(HEADER + body, registry())).lines()
        if each_line.startswith("data source")
    ]
    assert found.removeprefix("data source").strip() == line
