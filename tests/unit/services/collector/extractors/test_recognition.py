"""Which engine an endpoint's pages are read as, where no label says it."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from services.collector.extractors.core import CoreMetricsExtractor, CoreParameters
from services.collector.extractors.core.binding import MAX_RECOGNITION_PAUSE, CoreBinding
from services.collector.extractors.core.extractor import MAX_LOGGED_NAMES
from shared.attributes import ACTIVE_MODELS, KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, AttributeMap
from shared.model import Endpoint
from tests.unit.services.collector.extractors.test_core import VLLM, labelled, parameters, read

SGLANG = "sglang:num_running_reqs 5\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5\n"
TRTLLM_SERVE = "trtllm_num_requests_waiting 4\ntrtllm_num_requests_running 2\n"
TRITON = "nv_inference_pending_request_count 7\nnv_inference_exec_count 3\n"
TENSORRT = (
    'nv_trt_llm_request_metrics{request_type="waiting"} 3\nnv_trt_llm_request_metrics{request_type="scheduled"} 6\n'
)
STARTING = "process_cpu_seconds_total 1.5\npython_info 1\n"

UNLABELLED = Endpoint(id="a", name="a", address="10.0.0.1", port=8000)


def bound(endpoint: Endpoint = UNLABELLED, **given: Any) -> CoreBinding:
    made = parameters(**given)
    assert isinstance(made, CoreParameters), made
    return CoreMetricsExtractor("core", made).bind(endpoint)


def chosen(binding: CoreBinding) -> tuple[str, str]:
    described = binding.describe()
    return described["engine"], described["engine_chosen_by"]


@pytest.mark.parametrize(
    ("page", "engine"),
    [
        (VLLM, ("vllm", "default")),
        (SGLANG, ("sglang", "recognized")),
        (TRTLLM_SERVE, ("trtllm-serve", "recognized")),
        (TENSORRT, ("triton-tensorrt-llm", "recognized")),
        (TRITON, ("triton", "recognized")),
        (TRITON + TENSORRT, ("triton-tensorrt-llm", "recognized")),
        (SGLANG + VLLM, ("vllm", "default")),
        (STARTING, ("vllm", "default")),
        ("", ("vllm", "default")),
    ],
)
def test_an_engine_is_recognized_from_the_first_page(page: str, engine: tuple[str, str]) -> None:
    binding = bound()
    read(binding, page, AttributeMap())
    assert chosen(binding) == engine


@pytest.mark.parametrize(
    ("label", "expected"),
    [("vllm", ("vllm", "label")), ("triton", ("triton", "label")), ("unheard-of", ("sglang", "recognized"))],
)
def test_a_label_that_names_a_known_engine_holds_whatever_the_pages_show(label: str, expected: tuple[str, str]) -> None:
    binding = bound(labelled(label))
    for _ in range(3):
        read(binding, SGLANG, AttributeMap())
    assert chosen(binding) == expected


FIRST = {
    "name": "first",
    "queuedRequestsSpec": "sglang:num_queue_reqs",
    "runningRequestsSpec": "sglang:num_running_reqs",
}
SECOND = {"name": "second", "queuedRequestsSpec": "sglang:num_queue_reqs"}
HALF = {"name": "half", "queuedRequestsSpec": "sglang:num_queue_reqs", "runningRequestsSpec": "other"}
CPU = {"name": "mine", "customMetrics": [{"attributeKey": "a", "metricSpec": "cpu"}]}


@pytest.mark.parametrize(
    ("given", "page", "expected"),
    [
        ({"recognizeEngine": False}, SGLANG, ("vllm", "default")),
        ({"engineConfigs": [FIRST, SECOND]}, SGLANG, ("first", "recognized")),
        ({"engineConfigs": [SECOND, FIRST]}, SGLANG, ("second", "recognized")),
        ({"engineConfigs": [HALF]}, SGLANG, ("sglang", "recognized")),
        ({"engineConfigs": [HALF]}, "other 1\n", ("half", "recognized")),
        (
            {"defaultEngine": "mine", "engineConfigs": [CPU | {"queuedRequestsSpec": "q"}]},
            "cpu 1\n" + SGLANG,
            ("sglang", "recognized"),
        ),
        ({"defaultEngine": "mine", "engineConfigs": [CPU]}, "cpu 1\n" + SGLANG, ("mine", "default")),
    ],
    ids=[
        "recognition is off",
        "the configuration's engines in its order",
        "and in the other one",
        "all request metrics go before some",
        "some are enough",
        "the user's own metrics, which any page may have, tell no engine",
        "unless it has no others",
    ],
)
def test_engines_of_the_configuration_are_recognized_too(
    given: dict[str, Any], page: str, expected: tuple[str, str]
) -> None:
    binding = bound(**given)
    read(binding, page, AttributeMap())
    assert chosen(binding) == expected


# Later pages


def looked_for(binding: CoreBinding) -> int:
    return len(binding.fallbacks)


def test_a_server_that_starts_is_recognized_when_its_metrics_are_there() -> None:
    binding, attributes = bound(), AttributeMap()
    for _ in range(3):
        read(binding, STARTING, attributes)
        assert chosen(binding) == ("vllm", "default")
        assert len(attributes) == 0
    read(binding, STARTING + SGLANG, attributes)
    assert chosen(binding) == ("sglang", "recognized")
    assert attributes.get(WAITING_QUEUE_SIZE) == 1.0


def test_an_engine_is_recognized_anew_when_pages_have_nothing_of_it() -> None:
    binding, attributes = bound(), AttributeMap()
    read(binding, SGLANG, attributes, at=1.0)
    read(binding, TRTLLM_SERVE, attributes, at=2.0)
    assert chosen(binding) == ("sglang", "recognized")
    read(binding, TRTLLM_SERVE, attributes, at=3.0)
    assert chosen(binding) == ("trtllm-serve", "recognized")
    assert attributes.get(WAITING_QUEUE_SIZE) == 4.0
    read(binding, VLLM, attributes, at=4.0)
    read(binding, VLLM, attributes, at=5.0)
    assert chosen(binding) == ("vllm", "default")
    assert attributes.get(ACTIVE_MODELS) == ("a", "b")


def test_what_the_new_engine_has_not_is_known_to_be_missing() -> None:
    binding, attributes = bound(), AttributeMap()
    read(binding, SGLANG, attributes, at=1.0)
    assert attributes.get(KV_CACHE_USAGE) == 0.5
    read(binding, TRITON, attributes, at=2.0)
    assert read(binding, TRITON, attributes, at=3.0)
    sample = attributes.sample(KV_CACHE_USAGE)
    assert sample is not None
    assert (sample.value, sample.at) == (None, 3.0)


def test_a_restart_of_the_same_engine_changes_nothing() -> None:
    binding, attributes = bound(), AttributeMap()
    read(binding, SGLANG, attributes)
    for page in (STARTING, STARTING, SGLANG):
        read(binding, page, attributes)
        assert chosen(binding) == ("sglang", "recognized")
    assert attributes.get(RUNNING_REQUESTS_SIZE) == 5.0


def test_a_starting_triton_that_shows_its_models_metrics_later_is_recognized_anew() -> None:
    """Its own metrics are there from the start, those of the TensorRT-LLM model when that is loaded."""
    for starting in (1, 7):
        binding, attributes = bound(), AttributeMap()
        for _ in range(starting):
            read(binding, TRITON, attributes)
        assert chosen(binding) == ("triton", "recognized")
        pages = 0
        while chosen(binding)[0] == "triton":
            read(binding, TRITON + TENSORRT, attributes)
            pages += 1
        assert chosen(binding) == ("triton-tensorrt-llm", "recognized")
        assert pages <= starting + 2


def test_looks_at_a_recognized_engine_become_rare() -> None:
    binding, attributes = bound(), AttributeMap()
    alone = looked_for(bound(labelled("triton")))
    looks: list[int] = []
    for page in range(3 * MAX_RECOGNITION_PAUSE):
        if looked_for(binding) > alone:
            looks.append(page)
        read_nothing(binding, attributes)
    assert looks[:6] == [0, 2, 5, 10, 19, 36]
    assert looks[-1] - looks[-2] == MAX_RECOGNITION_PAUSE + 1
    assert len(looks) < 15


def read_nothing(binding: CoreBinding, attributes: AttributeMap) -> None:
    """A page of Triton, offered without a scan: fast, for thousands of pages."""
    for choice in binding.fallbacks:
        while (selector := choice.next()) is not None:
            if selector.name.startswith(b"nv_inference"):
                selector.offer(b"", 1.0, 0.0)
    binding.store(attributes, 1.0)


def test_a_label_that_names_no_engine_is_said() -> None:
    extractor = CoreMetricsExtractor("core")
    mistaken = labelled("vlm")
    with capture_logs() as logs:
        bindings = [extractor.bind(mistaken) for _ in range(100)]
        extractor.bind(labelled("vllm"))
        extractor.bind(UNLABELLED)
    assert bindings[0].describe() == {
        "engine": "vllm",
        "engine_chosen_by": "default",
        "unknown_engine_label": "vlm",
    }
    assert [(log["event"], log["engine"]) for log in logs] == [("engine.unknown", "vlm")]
    assert "sglang, triton, triton-tensorrt-llm, trtllm-serve, vllm" in logs[0]["known"]


def test_names_without_end_are_not_all_logged() -> None:
    extractor = CoreMetricsExtractor("core")
    with capture_logs() as logs:
        for number in range(MAX_LOGGED_NAMES + 10):
            extractor.bind(labelled(f"engine-{number}"))
    assert len(logs) == MAX_LOGGED_NAMES
