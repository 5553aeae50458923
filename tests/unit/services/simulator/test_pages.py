"""Every value of the pages, of a state whose figures differ. What vLLM's page has, `test_metrics.py` knows."""

import re

import pytest

from services.simulator.counters import Counters, FinishReason
from services.simulator.engine import EngineState
from services.simulator.metrics import MetricsPage
from services.simulator.settings import EngineType
from tests.unit.services.simulator.scenario import settings

STATE = EngineState(
    running=7,
    waiting=3,
    deferred=1,
    prefilling=2,
    kv_usage=0.25,
    kv_used=250,
    kv_cached=0,
    loaded_adapters=(),
    running_adapters=(),
    waiting_adapters=(),
)


def counters() -> Counters:
    made = Counters(4096)
    made.prompt_tokens, made.cached_tokens, made.generation_tokens = 600, 50, 80
    made.prefix_queries, made.prefix_hits = 1000, 125
    made.preemptions, made.rejections, made.steps, made.busy_seconds = 4, 6, 90, 2.5
    made.finished = {FinishReason.STOP: 30, FinishReason.LENGTH: 11, FinishReason.ABORT: 5}
    times = (made.first_token, made.inter_token, made.per_token, made.end_to_end)
    for number, each in enumerate((*times, made.queue, made.inference, made.prefill, made.decode), start=1):
        each.observe(number)
        each.observe(0)
    return made


SGLANG = """
num_running_reqs 7
num_used_tokens 1000
token_usage 0.25
swa_token_usage 0
mamba_usage 0
num_queue_reqs 3
num_grammar_queue_reqs 0
num_running_reqs_offline_batch 0
cache_hit_rate 0.125
gen_throughput 32
num_retracted_reqs 4
num_paused_reqs 0
utilization 0.875
max_total_num_tokens 4000
page_size 4
num_pages 1000
context_len 500
cache_config_info{num_pages="1000",page_size="4"} 1
prompt_tokens_total 600
generation_tokens_total 80
cached_tokens_total 50
num_requests_total 41
num_aborted_requests_total 5
time_to_first_token_seconds_count 2
time_to_first_token_seconds_sum 1
inter_token_latency_seconds_count 2
inter_token_latency_seconds_sum 2
e2e_request_latency_seconds_count 2
e2e_request_latency_seconds_sum 4
queue_time_seconds_count 2
queue_time_seconds_sum 5
"""
TRTLLM = """
request_success_total{finished_reason="stop"} 30
request_success_total{finished_reason="length"} 11
e2e_request_latency_seconds_count 2
e2e_request_latency_seconds_sum 4
time_to_first_token_seconds_count 2
time_to_first_token_seconds_sum 1
time_per_output_token_seconds_count 2
time_per_output_token_seconds_sum 3
request_queue_time_seconds_count 2
request_queue_time_seconds_sum 5
request_prefill_time_seconds_count 2
request_prefill_time_seconds_sum 7
request_decode_time_seconds_count 2
request_decode_time_seconds_sum 8
request_inference_time_seconds_count 2
request_inference_time_seconds_sum 6
prompt_tokens_total 600
generation_tokens_total 80
prompt_cached_tokens_total 50
num_requests_completed_total 41
num_requests_running 7
num_requests_waiting 3
max_num_active_requests 8
kv_cache_utilization 0.25
kv_cache_hit_rate 0.125
kv_cache_max_blocks 1000
kv_cache_free_blocks 750
kv_cache_used_blocks 250
kv_cache_tokens_per_block 4
num_context_requests 2
num_generation_requests 5
num_scheduled_requests 7
num_paused_requests 0
max_batch_size_static 8
"""
TRITON = """
inference_request_success 41
inference_count 41
inference_exec_count 90
inference_request_duration_us 4000000
inference_queue_duration_us 5000000
inference_compute_input_duration_us 0
inference_compute_infer_duration_us 6000000
inference_compute_output_duration_us 0
inference_request_failure{reason="BACKEND"} 0
inference_request_failure{reason="CANCELED"} 5
inference_request_failure{reason="OTHER"} 0
inference_request_failure{reason="REJECTED"} 6
inference_pending_request_count 3
cpu_utilization 0
"""
TENSORRT_LLM = """
trt_llm_request_metrics{request_type="context"} 2
trt_llm_request_metrics{request_type="scheduled"} 7
trt_llm_request_metrics{request_type="max"} 8
trt_llm_request_metrics{request_type="active"} 10
trt_llm_request_metrics{request_type="waiting"} 3
trt_llm_runtime_memory_metrics{memory_type="pinned"} 0
trt_llm_runtime_memory_metrics{memory_type="gpu"} 0
trt_llm_runtime_memory_metrics{memory_type="cpu"} 0
trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"} 4
trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"} 250
trt_llm_kv_cache_block_metrics{kv_cache_block_type="free"} 750
trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"} 1000
trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.25
trt_llm_inflight_batcher_metrics{inflight_batcher_specific_metric="micro_batch_id"} 0
trt_llm_inflight_batcher_metrics{inflight_batcher_specific_metric="generation_requests"} 5
trt_llm_general_metrics{general_type="iteration_counter"} 90
trt_llm_general_metrics{general_type="timestamp"} 99
"""


PAGES = {
    EngineType.SGLANG: ("sglang:", SGLANG),
    EngineType.TRTLLM_SERVE: ("trtllm_", TRTLLM),
    EngineType.TRITON: ("nv_", TRITON),
    EngineType.TRITON_TENSORRT_LLM: ("nv_", TRITON + TENSORRT_LLM[1:]),
}


@pytest.mark.parametrize("engine", PAGES)
def test_a_page_shows_the_state(engine: EngineType) -> None:
    prefix, values = PAGES[engine]
    page = MetricsPage(settings(engine=engine, slots=8, max_model_len=500), 0).render(STATE, counters(), 1, 99.5)
    lines = [line for line in page.decode().splitlines() if not line.startswith("#") and "_bucket{" not in line]
    assert all(line.startswith(prefix) for line in lines)
    # Without the labels that say which server and model it is; the model's name and version are Triton's.
    server = r',?\b(engine_type|model_name|moe_ep_rank|pp_rank|tp_rank|model|version)="[^"]*"'
    bare = [re.sub(r"\{,?(.*)\}", r"{\1}", re.sub(server, "", line.removeprefix(prefix))) for line in lines]
    assert [re.sub(r"\.0$", "", line.replace("{}", "")) for line in bare] == values.split("\n")[1:-1]
