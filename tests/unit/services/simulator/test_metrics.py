"""The pages, read by prometheus-client's parser and compared with the state that they are made of."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from services.simulator.engine import Engine, Overloaded
from services.simulator.gauges import Pins
from services.simulator.metrics import MetricsPage
from services.simulator.settings import EngineType
from tests.unit.services.simulator.scenario import MS, run_out, settings, text, work

STARTED = 1_795_000_000.5

BUILT_IN = {
    # The collector's engine table: waiting, running, KV usage, block size, blocks.
    EngineType.VLLM: (
        ("vllm:num_requests_waiting", {}),
        ("vllm:num_requests_running", {}),
        ("vllm:kv_cache_usage_perc", {}),
        ("vllm:cache_config_info", {"block_size": "4", "num_gpu_blocks": "1000"}),
        ("vllm:lora_requests_info", {}),
    ),
    EngineType.SGLANG: (
        ("sglang:num_queue_reqs", {}),
        ("sglang:num_running_reqs", {}),
        ("sglang:token_usage", {}),
        ("sglang:cache_config_info", {"page_size": "4", "num_pages": "1000"}),
    ),
    EngineType.TRTLLM_SERVE: (
        ("trtllm_num_requests_waiting", {}),
        ("trtllm_num_requests_running", {}),
        ("trtllm_kv_cache_utilization", {}),
        ("trtllm_kv_cache_tokens_per_block", {}),
        ("trtllm_kv_cache_max_blocks", {}),
    ),
    EngineType.TRITON_TENSORRT_LLM: (
        ("nv_trt_llm_request_metrics", {"request_type": "waiting"}),
        ("nv_trt_llm_request_metrics", {"request_type": "scheduled"}),
        ("nv_trt_llm_kv_cache_block_metrics", {"kv_cache_block_type": "fraction"}),
        ("nv_trt_llm_kv_cache_block_metrics", {"kv_cache_block_type": "tokens_per"}),
        ("nv_trt_llm_kv_cache_block_metrics", {"kv_cache_block_type": "max"}),
    ),
    EngineType.TRITON: (("nv_inference_pending_request_count", {}),),
}


class Server:
    """An engine and its page, without HTTP."""

    def __init__(self, **given: Any) -> None:
        self.settings = settings(**given)
        self.engine = Engine(self.settings, 0)
        self.page = MetricsPage(self.settings, STARTED)
        self.wall = STARTED + 100

    def render(self) -> str:
        return self.page.render(self.engine.state(), self.engine.counters, self.engine.revision, self.wall).decode()

    def value(self, name: str, **labels: str) -> float:
        """The one sample of that name with these labels. The parser ends every counter with `_total`."""
        found = [
            sample.value
            for family in parse(self.render()).values()
            for sample in family.samples
            if sample.name in (name, f"{name}_total") and labels.items() <= sample.labels.items()
        ]
        assert len(found) == 1, f"{len(found)} samples of {name} with {labels}"
        return found[0]


@lru_cache(1)
def parse(page: str) -> dict[str, Metric]:
    families = list(text_string_to_metric_families(page))
    assert len({family.name for family in families}) == len(families), "a family is there twice"
    return {family.name: family for family in families}


@pytest.mark.parametrize("engine", EngineType)
def test_every_family_of_the_built_in_table_is_there(engine: EngineType) -> None:
    server = Server(engine=engine, adapters=("a",))
    for name, labels in BUILT_IN[engine]:
        server.value(name, **labels)


@pytest.mark.parametrize(
    ("engine", "waiting", "running", "usage"),
    [(engine, table[0], table[1], table[2]) for engine, table in BUILT_IN.items() if engine is not EngineType.TRITON],
)
def test_gauges_show_the_engine(
    engine: EngineType, waiting: tuple[str, Any], running: tuple[str, Any], usage: tuple[str, Any]
) -> None:
    server = Server(engine=engine, slots=2)
    for index in range(5):
        server.engine.submit(work(f"{index}", text(40, f"{index}   "), 5), 0)
    assert server.value(waiting[0], **waiting[1]) == 4
    assert server.value(running[0], **running[1]) == 1, "the others wait for the step to end"
    assert server.value(usage[0], **usage[1]) == pytest.approx(0.01)
    server.engine.advance(40 * MS)
    assert server.value(waiting[0], **waiting[1]) == 3
    assert server.value(running[0], **running[1]) == 2
    assert server.value(usage[0], **usage[1]) == pytest.approx(0.021)
    run_out(server.engine)
    assert [server.value(each[0], **each[1]) for each in (waiting, running, usage)] == [0, 0, 0]


@pytest.mark.parametrize("engine", [EngineType.TRITON, EngineType.TRITON_TENSORRT_LLM])
def test_triton_counts_executions_and_pending_requests(engine: EngineType) -> None:
    server = Server(engine=engine, slots=1)
    server.engine.submit(work("one", text(10), 3), 0)
    server.engine.submit(work("two", text(10, "b   "), 1), 0)
    assert server.value("nv_inference_pending_request_count", model="simulated", version="1") == 1
    run_out(server.engine)
    assert server.value("nv_inference_exec_count") == 4
    assert server.value("nv_inference_request_success") == 2
    assert server.value("nv_inference_queue_duration_us") == 30_000


@pytest.mark.parametrize("engine", EngineType)
def test_pins_go_before_the_engine(engine: EngineType) -> None:
    server = Server(engine=engine, adapters=("a",))
    before = server.render()
    server.page.pin(Pins(waiting=10, running=7, kv_usage=0.4, running_adapters=("x", "y"), waiting_adapters=("z",)))
    table = BUILT_IN[engine]
    assert server.value(table[0][0], **table[0][1]) == 10
    if engine is not EngineType.TRITON:
        assert server.value(table[1][0], **table[1][1]) == 7
        assert server.value(table[2][0], **table[2][1]) == 0.4
    if engine is EngineType.VLLM:
        labels = {"running_lora_adapters": "x,y", "waiting_lora_adapters": "z"}
        assert server.value("vllm:lora_requests_info", **labels) == server.wall
    server.page.pin(Pins())
    if engine is not EngineType.VLLM:  # its adapter series stay, as a real one's do
        assert server.render() == before


def test_pinned_series_of_any_name_come_first_on_the_page() -> None:
    server = Server()
    server.page.pin(Pins(series={'my_queue{model="a"}': 3, "my_share": 0.25}))
    assert server.render().startswith('my_queue{model="a"} 3.0\nmy_share 0.25\n#')
    assert server.value("my_queue", model="a") == 3
    server.page.pin(Pins())
    assert "my_queue" not in server.render()


def test_pinned_sizes_show_where_the_engines_have_them() -> None:
    server = Server()
    server.page.pin(Pins(block_tokens=64, kv_blocks=150, max_adapters=3, running_adapters=()))
    sizes = {"block_size": "64", "num_gpu_blocks": "150", "kv_cache_max_concurrency": "2.4"}
    server.value("vllm:cache_config_info", **sizes)
    server.value("vllm:lora_requests_info", max_lora="3", running_lora_adapters="", waiting_lora_adapters="")


def test_adapters_show_with_those_that_passed() -> None:
    server = Server(adapters=("a", "b"), max_adapters=1)
    server.engine.submit(work("one", text(10), 20, adapter="a"), 0)
    server.engine.submit(work("two", text(10), 1, adapter="b"), 0)
    waiting = {"running_lora_adapters": "", "waiting_lora_adapters": "a,b", "max_lora": "1"}
    assert server.value("vllm:lora_requests_info", **waiting) == server.wall
    assert server.value("vllm:num_requests_waiting_by_reason", reason="deferred") == 2
    server.wall += 0.25
    server.engine.advance(550 * MS)
    running = {"running_lora_adapters": "a", "waiting_lora_adapters": "b"}
    assert server.value("vllm:lora_requests_info", **running) == server.wall
    assert server.value("vllm:lora_requests_info", **waiting) == server.wall - 0.25


def test_histograms_and_counters_follow_the_requests() -> None:
    server = Server()
    for start in (0, 1000):
        server.engine.submit(work(f"at {start}", text(50), 5, max_tokens=5), start * MS)
        run_out(server.engine)
    expected = {
        "vllm:prompt_tokens_total": 100,
        "vllm:generation_tokens_total": 10,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 48,
        "vllm:time_to_first_token_seconds_count": 2,
        "vllm:time_to_first_token_seconds_sum": 0.052,
        "vllm:inter_token_latency_seconds_count": 8,
        "vllm:e2e_request_latency_seconds_sum": 0.132,
        "vllm:request_prompt_tokens_sum": 100,
        "vllm:request_params_max_tokens_sum": 10,
        "vllm:iteration_tokens_total_sum": 52 + 8,
        "vllm:request_time_per_output_token_seconds_sum": 0.02,
        "vllm:request_decode_time_seconds_sum": 0.08,
        "vllm:request_prefill_kv_computed_tokens_sum": 52,
    }
    assert {name: server.value(name) for name in expected} == pytest.approx(expected)
    assert server.value("vllm:request_success_total", finished_reason="length") == 2
    assert server.value("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 48
    assert server.value("vllm:time_to_first_token_seconds_bucket", le="0.005") == 1
    assert server.value("vllm:time_to_first_token_seconds_bucket", le="0.06") == 2


def test_the_hit_rate_is_the_share_of_prompt_tokens_that_were_cached() -> None:
    server = Server(engine=EngineType.TRTLLM_SERVE)
    assert server.value("trtllm_kv_cache_hit_rate") == 0
    for start in (0, 1000):
        server.engine.submit(work(f"at {start}", text(50), 5), start * MS)
        run_out(server.engine)
    assert server.value("trtllm_kv_cache_hit_rate") == 0.48


def test_the_page_is_the_same_object_until_something_changes() -> None:
    """What makes a scrape cheap."""
    server = Server(engine=EngineType.SGLANG)

    def render() -> bytes:
        return server.page.render(server.engine.state(), server.engine.counters, server.engine.revision, server.wall)

    first = render()
    server.wall += 10
    assert render() is first
    server.engine.submit(work("one", text(10), 3), 0)
    assert render() is not first


def test_revisions_only_grow_so_that_no_page_is_taken_for_an_earlier_one() -> None:
    engine = Server(max_requests=1).engine
    revisions = [engine.revision]
    engine.submit(work("one", text(10), 3), 0)
    revisions.append(engine.revision)
    with pytest.raises(Overloaded):
        engine.check([work("two", text(10), 3)])
    revisions.append(engine.revision)
    run_out(engine)
    revisions.append(engine.revision)
    assert revisions == sorted(set(revisions))


@pytest.mark.parametrize("engine", EngineType)
def test_a_page_is_padded_to_the_size_that_is_asked_for(engine: EngineType) -> None:
    server = Server(engine=engine, page_bytes=80_000)
    page = server.render()
    assert len(page) == 80_000
    parse(page)
    server.engine.submit(work("one", text(10), 3), 0)
    run_out(server.engine)
    assert 80_000 <= len(server.render()) < 81_000


def test_api_requests_are_counted_as_vllm_counts_them() -> None:
    server = Server()
    server.page.http.observe("/v1/completions", "POST", 200, 100, 300, 0.2)
    server.page.http.observe("/v1/completions", "POST", 404, 50, 60, 0.002)
    assert server.value("http_requests_total", handler="/v1/completions", status="2xx") == 1
    assert server.value("http_requests_total", handler="/v1/completions", status="4xx") == 1
    assert [server.value(f"http_{kind}_size_bytes_sum") for kind in ("request", "response")] == [150, 360]
    assert [server.value(f"http_{kind}_size_bytes_count") for kind in ("request", "response")] == [2, 2]
    assert server.value("http_request_duration_seconds_bucket", handler="/v1/completions", le="0.1") == 1
    assert server.value("http_request_duration_highr_seconds_count") == 2


@pytest.mark.skipif(not os.environ.get("POINTSMAN_FIXTURES"), reason="POINTSMAN_FIXTURES names no folder of fixtures")
def test_the_vllm_page_has_what_the_recorded_one_has() -> None:
    """Families, types, help texts, and every series' labels."""
    recorded = (Path(os.environ["POINTSMAN_FIXTURES"]) / "vllm-0.32-idle.prom").read_text()
    server = Server(models=("tiny",), kv_blocks=4096, block_tokens=128, max_model_len=2048)
    server.page.http.observe("/v1/models", "GET", 200, 0, 449, 0.003)
    own, real = parse(server.render()), parse(recorded)
    # The garbage collector, Python and the process speak for themselves.
    themselves = {name for name in real if name.startswith(("python_", "process_"))}
    assert set(real) <= set(own)
    for name, family in real.items():
        assert own[name].type == family.type, name
        if not name.startswith("http_"):
            assert own[name].documentation == family.documentation, name
        if name in themselves or name == "vllm:cache_config_info":
            continue
        assert labels(own[name]) == labels(family), name
    [config], [real_config] = own["vllm:cache_config_info"].samples, real["vllm:cache_config_info"].samples
    assert set(config.labels) == set(real_config.labels)
    different = {name for name, value in real_config.labels.items() if config.labels[name] != value}
    assert different == {"kv_cache_memory_bytes", "prefix_caching_hash_algo"}
    assert server.render().count("\n") == recorded.count("\n")
    assert len(server.render()) == pytest.approx(len(recorded), rel=0.02)


def labels(family: Metric) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    return {(sample.name, frozenset(sample.labels.items())) for sample in family.samples}


@pytest.mark.parametrize("engine", EngineType)
def test_any_model_name_is_a_label(engine: EngineType) -> None:
    name = 'a "b" $model\n# HELP {le=""} \\'
    page = parse(Server(engine=engine, models=(name,)).render())
    found = {
        sample.labels.get("model_name", sample.labels.get("model")) for each in page.values() for sample in each.samples
    }
    assert name in found


def test_the_page_says_whether_prefixes_are_cached() -> None:
    Server(prefix_caching=False).value("vllm:cache_config_info", enable_prefix_caching="False")
