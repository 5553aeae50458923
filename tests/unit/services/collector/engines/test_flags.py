"""The default engine that metric flags make, and what it is beside a document."""

import pytest
from msgspec.structs import replace

from services.collector.engines.builtin import VLLM, Engine, specs
from services.collector.engines.flags import flags_engine, with_flags
from services.collector.extractors.core import CoreMetricsExtractor, CoreParameters
from services.collector.metrics_port import at_metrics_port
from services.collector.pipeline import build
from services.collector.settings import CollectorSettings
from services.collector.sources.metrics import MetricsParameters, MetricsSource
from shared.config import Invalid, LoadedConfig, load
from shared.model import Endpoint, Pool
from shared.plugin import Registry
from shared.service.settings import parse

REGISTRY = Registry.installed()
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
KV_CACHE = HEAD + "plugins: [{type: kv-cache-utilization-scorer}]\n"
TRT = "nv_trt_llm_request_metrics"
BLOCKS = "nv_trt_llm_kv_cache_block_metrics"


def settings(*argv: str) -> CollectorSettings:
    return parse(CollectorSettings, argv, {}, "collector")


def engine(*argv: str) -> Engine:
    made = flags_engine(settings(*argv))
    assert made is not None
    return made.engine()


def loaded(text: str, *argv: str) -> LoadedConfig:
    return with_flags(load(text, REGISTRY), settings(*argv))


def core(config: LoadedConfig) -> CoreParameters:
    (found,) = [
        plugin.parameters for plugin in config.plugins.values() if issubclass(plugin.kind, CoreMetricsExtractor)
    ]
    assert isinstance(found, CoreParameters)
    return found


def source(config: LoadedConfig) -> MetricsParameters:
    (found,) = [plugin.parameters for plugin in config.plugins.values() if issubclass(plugin.kind, MetricsSource)]
    assert isinstance(found, MetricsParameters)
    return found


# The engine


def test_without_metric_flags_there_is_no_engine_of_theirs() -> None:
    assert flags_engine(settings("--interval=1s")) is None
    config = load("", REGISTRY)
    assert with_flags(config, settings()) == config


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (
            ("--total-queued-requests-metric", "--totalQueuedRequestsMetric", "-totalQueuedRequestsMetric"),
            "queued_requests",
        ),
        (("--waiting-requests-metric", "--waitingRequestsMetric", "-waitingRequestsMetric"), "queued_requests"),
        (
            ("--total-running-requests-metric", "--running-requests-metric", "--runningRequestsMetric"),
            "running_requests",
        ),
        (("--all-requests-metric", "--allRequestsMetric"), "all_requests"),
        (("--kv-cache-usage-percentage-metric", "--kvCacheUsagePercentageMetric"), "kv_usage"),
        (("--kv-cache-usage-metric", "--kVCacheUsageMetric", "-kVCacheUsageMetric"), "kv_usage"),
        (("--used-kv-cache-blocks-metric", "--usedKVCacheBlocksMetric"), "used_kv_blocks"),
        (("--max-kv-cache-blocks-metric", "--maxKVCacheBlocksMetric"), "max_kv_blocks"),
        (("--used-kv-cache-tokens-metric", "--usedKVCacheTokensMetric"), "used_kv_tokens"),
        (("--max-kv-cache-tokens-metric", "--maxKVCacheTokensMetric"), "max_kv_tokens"),
        (("--lora-info-metric", "--loraInfoMetric", "--lora-request-info-metric", "-loraRequestInfoMetric"), "lora"),
        (("--cache-info-metric", "--cacheInfoMetric"), "cache_info"),
    ],
)
def test_each_flag_in_each_spelling_is_a_quantity(flags: tuple[str, ...], field: str) -> None:
    for flag in flags:
        assert engine(flag, "mine{a=b}") == replace(Engine(name="flags"), **{field: specs("mine{a=b}")})


def test_what_is_not_given_is_that_of_the_engine_to_which_the_given_names_belong() -> None:
    made = engine("--total-queued-requests-metric=vllm:other_queue")
    assert made.queued_requests == specs("vllm:other_queue")
    assert (made.running_requests, made.kv_usage, made.lora, made.cache_info) == (
        VLLM.running_requests,
        VLLM.kv_usage,
        VLLM.lora,
        VLLM.cache_info,
    )


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("vllm:q", "vllm"),
        ("sglang:q", "sglang"),
        ("trtllm_q", "trtllm-serve"),
        (f"{TRT}{{request_type=waiting}}", "triton-tensorrt-llm"),
        ("nv_inference_pending_request_count", "triton"),
        ("q", ""),
        ("", "vllm"),
    ],
)
def test_names_tell_the_engine(name: str, base: str) -> None:
    made = flags_engine(settings(f"--total-queued-requests-metric={name}"))
    assert made is not None
    assert made.extends == base


def test_names_of_two_engines_or_of_one_and_none_add_nothing() -> None:
    for other in ("sglang:token_usage", "mine"):
        made = engine("--total-queued-requests-metric=vllm:q", f"--kv-cache-usage-percentage-metric={other}")
        assert made == Engine(name="flags", queued_requests=specs("vllm:q"), kv_usage=specs(other))


def test_an_empty_flag_switches_its_quantity_off() -> None:
    assert engine("--lora-info-metric=") == Engine(
        name="flags",
        queued_requests=VLLM.queued_requests,
        running_requests=VLLM.running_requests,
        kv_usage=VLLM.kv_usage,
        cache_info=VLLM.cache_info,
    )
    made = engine("--total-queued-requests-metric", f"{TRT}{{request_type=waiting}}", "--lora-info-metric", "")
    assert made.lora == ()


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--totalQueuedRequestsMetric=q{"], "--total-queued-requests-metric: 'q{' is not a metric specification"),
        (["--cache-info-metric=rate(x)"], "--cache-info-metric: 'rate(x)' is not a metric specification"),
        (["--model-server-metrics-scheme=ftp"], "--model-server-metrics-scheme: 'ftp'"),
        (["--modelServerMetricsPath=metrics"], "--model-server-metrics-path: 'metrics' doesn't begin with /"),
        (["--modelServerMetricsPort=0"], "--model-server-metrics-port: 0 is below 1"),
    ],
)
def test_a_flag_that_can_not_be_is_named(argv: list[str], problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        settings(*argv)
    assert [line for line in caught.value.lines() if problem in line], caught.value.lines()


# Beside a document


def test_the_engine_of_the_flags_is_the_default_one_beside_all_others() -> None:
    parameters = core(loaded("", "--total-queued-requests-metric=vllm:q"))
    assert parameters.default_engine == "flags"
    assert list(parameters.engines()) == ["flags", "vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm", "triton"]


def test_what_the_document_says_of_labels_and_recognition_holds_beside_the_flags() -> None:
    text = HEAD + (
        "plugins:\n- {type: core-metrics-extractor, parameters: {engineLabelKey: e, recognizeEngine: false}}\n"
    )
    parameters = core(loaded(text, "--total-queued-requests-metric=vllm:q"))
    assert (parameters.engine_label_key, parameters.recognize_engine) == ("e", False)
    assert parameters.default_engine == "flags"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("{defaultEngine: sglang}", "defaultEngine"),
        ("{DefaultEngine: sglang}", "defaultEngine"),
        ("{engineConfigs: [{name: a, extends: vllm}]}", "engineConfigs"),
        ("{engineConfigs: [], defaultEngine: vllm}", "defaultEngine and engineConfigs"),
        ("{kvUsageSpec: k}", "kvUsageSpec"),
    ],
)
def test_engines_of_the_document_go_before_the_flags_and_a_warning_says_so(given: str, named: str) -> None:
    text = HEAD + f"plugins:\n- {{type: core-metrics-extractor, parameters: {given}}}\n"
    config = loaded(text, "--total-queued-requests-metric=vllm:q", "--lora-info-metric=")
    assert core(config) == core(load(text, REGISTRY))
    assert [str(warning) for warning in config.warnings if "no effect" in warning.message] == [
        "plugins[0].parameters: no effect of --total-queued-requests-metric and --lora-info-metric: "
        f"overridden by {named} here"
    ]


def test_flags_that_do_not_suffice_are_refused_in_words_of_flags() -> None:
    with pytest.raises(Invalid) as caught:
        loaded(KV_CACHE, "--total-queued-requests-metric=q", "--used-kv-cache-blocks-metric=u")
    assert caught.value.lines() == [
        "--kv-cache-usage-percentage-metric: nothing gives KVCacheUsagePercent, which 'kv-cache-utilization-scorer' "
        "requires; give --kv-cache-usage-percentage-metric, or --max-kv-cache-blocks-metric beside "
        "--used-kv-cache-blocks-metric, or --cache-info-metric beside --used-kv-cache-blocks-metric; or write "
        '--kv-cache-usage-percentage-metric="" if there is none'
    ]


@pytest.mark.parametrize(
    "argv",
    [
        ["--all-requests-metric=a", "--running-requests-metric=r", "--kv-cache-usage-metric=k"],
        ["--waiting-requests-metric=q", "--used-kv-cache-tokens-metric=u", "--max-kv-cache-tokens-metric=m"],
        [f"--total-queued-requests-metric={TRT}{{request_type=waiting}}", "--lora-info-metric="],
        ["--lora-info-metric="],
    ],
)
def test_flags_that_suffice_are_taken_without_a_warning(argv: list[str]) -> None:
    assert loaded(KV_CACHE, *argv).warnings == ()


def test_a_quantity_that_flags_switch_off_on_purpose_is_a_warning() -> None:
    config = loaded(KV_CACHE, "--total-queued-requests-metric=q", "--kv-cache-usage-percentage-metric=")
    assert [str(warning).partition(":")[0] for warning in config.warnings] == ["--kv-cache-usage-percentage-metric"]


# The metrics page


def test_the_flags_of_the_page_stand_for_parameters_that_are_not_given() -> None:
    argv = ("--model-server-metrics-scheme=https", "--model-server-metrics-path=/m")
    assert (source(loaded("", *argv)).scheme, source(loaded("", *argv)).path) == ("https", "/m")
    text = HEAD + "plugins:\n- {type: metrics-data-source, parameters: {scheme: http}}\n"
    assert (source(loaded(text, *argv)).scheme, source(loaded(text, *argv)).path) == ("http", "/m")
    build(loaded(text, *argv))


def endpoint(name: str, address: str, metrics_host: str = "") -> Endpoint:
    return Endpoint(id=name, name=name, address=address, port=8000, metrics_host=metrics_host)


def test_the_flags_of_the_page_are_about_no_other_page() -> None:
    text = HEAD + "plugins:\n- type: dcgm-extractor\n- type: models-data-extractor\n"
    config = load(text, REGISTRY, allow_experimental=True)
    flags = settings("--model-server-metrics-path=/m", "--model-server-metrics-scheme=https")
    changed = with_flags(config, flags).plugins
    assert {name for name, spec in changed.items() if spec != config.plugins[name]} == {"metrics-data-source"}


def test_an_interval_of_the_collector_by_which_metrics_go_stale_is_warned_of() -> None:
    (warning,) = loaded("", "--interval=2s").warnings
    assert str(warning) == (
        "dataLayer.staleMetrics.after: 2s isn't above --interval, 2s: values become stale before the next scrape"
    )
    assert not loaded("", "--interval=1s").warnings
    own = "plugins: [{type: metrics-data-source, parameters: {interval: 1s}}, {type: queue-scorer}]\n"
    assert not loaded(HEAD + own, "--interval=1m").warnings


def test_an_interval_of_the_collector_is_a_millisecond_at_least() -> None:
    with pytest.raises(Invalid, match="--interval: is below 1ms"):
        settings("--interval=100us")


A, B, SAME = endpoint("a", "10.0.0.1"), endpoint("b", "fd00::1"), endpoint("c", "10.0.0.1")
OWN = endpoint("a", "10.0.0.1", "10.0.0.9:9")


@pytest.mark.parametrize(
    ("pool", "endpoints", "port", "hosts"),
    [
        (None, (A, B), 8002, ["10.0.0.1:8002", "[fd00::1]:8002"]),
        (Pool(name="p"), (A, B), 8002, ["10.0.0.1:8002", "[fd00::1]:8002"]),
        (Pool(name="p", target_ports=(8000,)), (A, B), 8002, ["10.0.0.1:8002", "[fd00::1]:8002"]),
        (Pool(name="p", target_ports=(8000, 8001)), (A,), 8002, [""]),
        (None, (A, SAME, B), 8002, ["", "", "[fd00::1]:8002"]),
        (None, (OWN,), 8002, ["10.0.0.9:9"]),
        (None, (A,), None, [""]),
    ],
    ids=[
        *("no pool", "no word of ports", "one port", "several: nobody's", "shared address: several ports"),
        *("an endpoint's own goes before", "no flag"),
    ],
)
def test_the_port_is_that_of_every_endpoint_of_a_pool_with_one_port(
    pool: Pool | None, endpoints: tuple[Endpoint, ...], port: int | None, hosts: list[str]
) -> None:
    found = at_metrics_port({each_endpoint.id: each_endpoint for each_endpoint in endpoints}, pool, port)
    assert [each.metrics_host for each in found.values()] == hosts
