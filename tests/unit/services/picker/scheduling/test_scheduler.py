from typing import Any

import pytest

from services.picker.plugins import PLUGINS
from services.picker.scheduling.scheduler import Scheduler
from services.picker.scheduling.scorers.scraped_load import QueueScorer
from shared.config import Invalid, load
from shared.config.loaded import LoadedConfig
from shared.plugin import Plugin, Registry, Tier
from tests.unit.services.picker.world import cycle, pool, request

REGISTRY = Registry.installed()
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def scheduler(plugins: str) -> Scheduler:
    """Of a configuration with these plugin types, one a word; all that can be are in the one profile."""
    text = HEAD + "plugins:\n" + "".join(f"- type: {kind}\n" for kind in plugins.split())
    config = load(text, REGISTRY)
    return Scheduler(config, config.instances(Tier.PICKER))


@pytest.mark.parametrize(
    ("plugins", "producers"),
    [
        ("queue-scorer", []),
        ("prefix-cache-scorer", ["approx-prefix-cache-producer"]),
        ("queue-scorer approx-prefix-cache-producer", []),
        ("token-load-scorer", ["inflight-load-producer"]),
        (
            "active-request-scorer approx-prefix-cache-producer",
            ["approx-prefix-cache-producer", "inflight-load-producer"],
        ),
    ],
)
def test_only_what_some_plugin_reads_is_produced(plugins: str, producers: list[str]) -> None:
    assert sorted(producer.name for producer in scheduler(plugins).producers) == producers


def test_a_request_without_a_load_scorer_is_charged_all_the_same() -> None:
    view = pool("a1")
    made = scheduler("queue-scorer")
    run = cycle(view, request(b"x" * 400))
    made.produce(run)
    assert made.tokens(run, 0) == 100
    assert not made.tokens_until_end


def test_a_prompt_that_was_placed_weighs_less_the_next_time() -> None:
    view = pool("a1")
    made = scheduler("prefix-cache-scorer token-load-scorer")
    weights = []
    for _ in range(2):
        run = cycle(view, request(b"x" * 1024))
        made.produce(run)
        weights.append(made.tokens(run, 0))
        made.picked(run, 0)
    assert weights == [256, 0]


def test_the_state_names_profiles_handler_and_producers() -> None:
    assert scheduler("prefix-cache-scorer").state() == {
        "profiles": ["<Profile 'default': prefix-cache-scorer·1 → max-score-picker>"],
        "handler": "single-profile-handler",
        "producers": {"approx-prefix-cache-producer": {"lookups": 0, "blocks": 0, "hits": 0}},
    }


def test_a_handler_that_is_none_is_refused() -> None:
    config: LoadedConfig = load("", REGISTRY)
    instances: dict[str, Plugin] = config.instances(Tier.PICKER)
    instances[config.profile_handler] = QueueScorer("impostor")
    with pytest.raises(Invalid, match="implements no ProfileHandler"):
        Scheduler(config, instances)


def test_every_type_of_the_picker_is_installed() -> None:
    installed: dict[str, Any] = {kind.TYPE: kind for kind in REGISTRY}
    assert all(installed[kind.TYPE] is kind for kind in PLUGINS)
    assert {kind.TIER for kind in PLUGINS} == {Tier.PICKER}
