from typing import Any

import pytest

from services.simulator.settings import EngineType, SimulatorSettings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_model_len": 100, "kv_blocks": 5}, "--max-model-len: 100 is more than the KV cache holds, .* = 80"),
        ({"kv_blocks": 1, "block_tokens": 1}, "--max-model-len: 1 is too short"),
        ({"models": ("a", "b"), "adapters": ("b",)}, "given more than once: b"),
        ({"adapters": ("",)}, "a name is empty"),
    ],
)
def test_fields_that_contradict_each_other_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimulatorSettings(**given)


def test_the_context_is_what_the_cache_holds_unless_it_is_given() -> None:
    assert SimulatorSettings(kv_blocks=10, block_tokens=16).context_length == 160
    assert SimulatorSettings(kv_blocks=10, block_tokens=16, max_model_len=100).context_length == 100


def test_trtllm_serve_has_its_metrics_elsewhere() -> None:
    assert {engine.metrics_path for engine in EngineType if engine is not EngineType.TRTLLM_SERVE} == {"/metrics"}
    assert EngineType.TRTLLM_SERVE.metrics_path == "/prometheus/metrics"
