import numpy as np
import pytest

from services.picker.scheduling.cycle import PREFIX_MATCH, PrefixMatch
from services.picker.scheduling.producers.approx_prefix import ApproxPrefixParameters
from services.picker.scheduling.scorers.prefix_cache import PrefixCacheParameters, PrefixCacheScorer
from shared.config import Invalid, load
from shared.config.loaded import LoadedConfig
from shared.plugin import Registry
from tests.unit.services.picker.world import cycle, pool

VIEW = pool("a1", "a2", "a3")


def scores(match: PrefixMatch | None, parameters: PrefixCacheParameters | None = None) -> list[float]:
    run = cycle(VIEW)
    if match is not None:
        run.put(PREFIX_MATCH, match)
    made: list[float] = PrefixCacheScorer("prefix", parameters).score(run, VIEW.layout.all_rows).tolist()
    return made


def test_the_share_of_the_blocks_that_match_is_the_score() -> None:
    assert scores(PrefixMatch(np.array([0.0, 2.0, 8.0]), 8, 64)) == [0, 0.25, 1]


@pytest.mark.parametrize("match", [None, PrefixMatch(np.zeros(3), 0, 64)])
def test_without_a_prompt_or_a_producer_all_score_0(match: PrefixMatch | None) -> None:
    assert scores(match) == [0, 0, 0]


def test_the_length_of_the_match_can_weigh_too() -> None:
    """w = 0.25, scale 1 024 tokens: 0.25 * min(1, matched tokens / 1024)^2 + 0.75 * share."""
    match = PrefixMatch(np.array([0.0, 8.0, 32.0]), 32, 64)
    parameters = PrefixCacheParameters(match_length_weight=0.25, match_length_scale_tokens=1024)
    assert scores(match, parameters) == pytest.approx([0, 0.25 * 0.25 + 0.75 * 0.25, 1.0])


def loaded(parameters: str) -> LoadedConfig:
    head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
    return load(f"{head}plugins:\n- type: prefix-cache-scorer\n  parameters: {parameters}\n", Registry.installed())


def test_the_indexs_parameters_of_older_documents_go_to_the_index() -> None:
    config = loaded("{blockSize: 256, lruCapacityPerServer: 99, autoTune: false}")
    parameters = config.plugins["approx-prefix-cache-producer"].parameters
    assert isinstance(parameters, ApproxPrefixParameters)
    assert (parameters.tokens, parameters.lru_capacity_per_server, parameters.auto_tune) == (64, 99, False)
    assert sum("is deprecated" in str(warning) for warning in config.warnings) == 3


@pytest.mark.parametrize("parameters", ["{matchLengthWeight: 1.5}", "{matchLengthScaleTokens: 0}"])
def test_parameters_out_of_range_are_refused(parameters: str) -> None:
    with pytest.raises(Invalid, match="matchLength"):
        loaded(parameters)
