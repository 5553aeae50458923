"""The pages of the collector's plugins say what the plugins are."""

import re
from pathlib import Path

import msgspec

from services.collector.engines.builtin import BUILT_IN
from services.collector.engines.configs import CustomMetricConfig, EngineConfig
from services.collector.extractors.core import CoreMetricsExtractor, CoreParameters
from services.collector.settings import CollectorSettings
from shared.plugin import Plugin
from shared.service.settings import describe

DOCS = Path(__file__).resolve().parents[4] / "docs" / "plugins"


def page(kind: type[Plugin]) -> str:
    return (DOCS / f"{kind.TYPE}.md").read_text()


def test_the_table_of_engines_is_the_built_in_one() -> None:
    text = page(CoreMetricsExtractor)
    for engine in BUILT_IN:
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{engine.name}`")]
        for spec in (
            *engine.queued_requests,
            *engine.running_requests,
            *engine.kv_usage,
            *engine.lora,
            *engine.cache_info,
        ):
            assert f"`{spec}`" in row
    assert f"`{CoreParameters().default_engine}`" in text


def test_every_field_of_an_engine_and_every_metric_flag_is_on_the_page() -> None:
    text = page(CoreMetricsExtractor)
    for struct in (EngineConfig, CustomMetricConfig):
        for field in msgspec.structs.fields(struct):
            assert f"`{field.encode_name}`" in text, field.encode_name
    for flag, _, _, _ in describe(CollectorSettings):
        if flag.endswith("-metric") or flag.startswith("--model-server-metrics"):
            assert f"`{flag}`" in text, flag


def test_flags_of_the_page_are_those_that_there_are() -> None:
    text = page(CoreMetricsExtractor)
    known = {word.strip("(),") for row in describe(CollectorSettings) for word in (row[0], *row[3].split())}
    for flag in re.findall(r"`(--[A-Za-z-]+)`", text):
        assert flag in known, flag
