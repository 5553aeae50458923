from pointsman.description import Named, describe
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


def test_a_profile_is_filters_then_weighted_scorers_then_the_picker() -> None:
    [profile] = describe(load(HEADER + BODY, registry())).profiles
    assert str(profile) == (
        "canary (label-filter) → utilization-detector → queue-scorer·2 + prefix (prefix-scorer)·0.5 → max-score-picker*"
    )


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
        "also                   fcfs-ordering-policy",
        "stale metrics          after 500ms: ignore",
        "feature gates          haPopulateNonLeaderDatastore",
        "runs in the watcher    file-discovery",
        "runs in the collector  idle, core-metrics-extractor",
        "runs in the picker     canary, utilization-detector, queue-scorer, prefix, fcfs-ordering-policy, "
        "max-score-picker, single-profile-handler, openai-parser, passthrough-parser, index, tokenizer",
        "has no part            forgotten (plain-scorer)",
        "* added by default",
    ]


def test_a_source_that_feeds_nobody_says_so() -> None:
    sources = "dataLayer: {injectDefaults: false, sources: [{pluginRef: metrics-data-source}]}"
    body = f"plugins: [{{type: metrics-data-source}}]\n{sources}"
    assert "metrics-data-source → nobody: it is not asked" in "\n".join(
        describe(load(HEADER + body, registry())).lines()
    )


def test_a_configuration_that_scrapes_nothing_says_so() -> None:
    described = describe(load(f"{HEADER}dataLayer: {{injectDefaults: false}}", registry()))
    assert "data source          none: no metrics are scraped" in described.lines()


def test_a_plugin_goes_by_its_name_and_its_type_where_they_differ() -> None:
    assert str(Named("a", "queue-scorer")) == "a (queue-scorer)"
    assert str(Named("queue-scorer", "queue-scorer", added=True)) == "queue-scorer*"
