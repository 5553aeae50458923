from typing import Any

import pytest

from services.simulator.settings import EngineType, SimulatorSettings
from shared.config.problems import Invalid
from shared.service import parse


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_model_len": 100, "kv_blocks": 5}, "max_model_len: 100 is more than the KV cache holds, .* = 80"),
        ({"kv_blocks": 1, "block_tokens": 1}, "the context, 1 token"),
        ({"models": ("a", "b"), "adapters": ("b",)}, "given more than once: b"),
        ({"adapters": ("",)}, "a name is empty"),
    ],
)
def test_fields_that_contradict_each_other_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimulatorSettings(**given)


def test_flags_and_environment_are_read() -> None:
    settings = parse(
        SimulatorSettings,
        ["--port", "0", "--engine", "sglang", "--models", "a,b", "--decode-time", "20ms", "--page-bytes", "50k"],
        {"POINTSMAN_SLOTS": "3", "POINTSMAN_PORT": "9"},
        "test",
    )
    assert (settings.port, settings.engine, settings.models) == (0, EngineType.SGLANG, ("a", "b"))
    assert (settings.decode_time, settings.page_bytes, settings.slots) == (0.02, 50_000, 3)


def test_everything_wrong_is_reported_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        parse(SimulatorSettings, ["--slots", "0", "--engine", "vlm", "--speed=-1"], {}, "test")
    assert {problem.path for problem in caught.value.problems} == {"--slots", "--engine", "--speed"}


def test_the_context_is_what_the_cache_holds_unless_it_is_given() -> None:
    assert SimulatorSettings(kv_blocks=10, block_tokens=16).context_length == 160
    assert SimulatorSettings(kv_blocks=10, block_tokens=16, max_model_len=100).context_length == 100


def test_trtllm_serve_has_its_metrics_elsewhere() -> None:
    assert {engine.metrics_path for engine in EngineType if engine is not EngineType.TRTLLM_SERVE} == {"/metrics"}
    assert EngineType.TRTLLM_SERVE.metrics_path == "/prometheus/metrics"
