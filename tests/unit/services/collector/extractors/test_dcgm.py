"""Whose GPUs are how busy, from pages of a DCGM exporter."""

import asyncio

import pytest

from services.collector.extractors.dcgm import DcgmBinding, DcgmExtractor
from services.collector.page.selection import Outcome
from services.collector.sources.dcgm import DcgmSource
from services.watcher.kubernetes.endpoints import rank_of
from shared.attributes import GPU_UTILIZATION, AttributeMap
from shared.model import Endpoint

ENDPOINT = Endpoint(id="llm/vllm-0", name="vllm-0", namespace="llm", address="10.0.0.1", port=8000)
RANK = rank_of(ENDPOINT, 1, 8001)
"""Of a pod, as watchers name it."""


def bind(endpoint: Endpoint = RANK) -> DcgmBinding:
    return DcgmExtractor("dcgm").bind(endpoint)


def read(binding: DcgmBinding, page: str, attributes: AttributeMap, at: float = 1.0) -> bool:
    asyncio.run(DcgmSource("d").reader([binding]).read(page.encode(), 0.0))
    return binding.store(attributes, at)


def sample(value: str, **labels: str) -> str:
    named = ",".join(f'{name}="{text}"' for name, text in {"gpu": "0", "UUID": "GPU-1", **labels}.items())
    return f"DCGM_FI_DEV_GPU_UTIL{{{named}}} {value}\n"


@pytest.mark.parametrize("endpoint", [ENDPOINT, RANK], ids=["of a file", "of a pod"])
@pytest.mark.parametrize(
    ("page", "share"),
    [
        (sample("40"), 0.4),
        (sample("40") + sample("70") + sample("10"), 0.7),
        (sample("40", pod="vllm-0"), 0.4),
        (sample("40", pod="vllm-0", namespace="llm") + sample("90", pod="vllm-1", namespace="llm"), 0.4),
        (sample("40", pod="vllm-0", namespace="llm") + sample("90", pod="vllm-0", namespace="other"), 0.4),
        (sample("40", pod="", namespace="") + sample("90", pod="vllm-1", namespace="llm"), 0.4),
        (sample("40", namespace="other"), 0.4),
        (sample("40", pod="vllm-0") + sample("9.223372036854776e+18", pod="vllm-0"), 0.4),
        (sample("NaN") + sample("-1") + sample("40"), 0.4),
        (sample("0"), 0.0),
        (sample("100"), 1.0),
    ],
)
def test_the_busiest_of_the_endpoints_gpus_counts(page: str, share: float, endpoint: Endpoint) -> None:
    binding, attributes = bind(endpoint), AttributeMap()
    assert read(binding, "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n" + page, attributes)
    assert attributes.get(GPU_UTILIZATION) == pytest.approx(share)
    assert binding.findings()[0].outcome is Outcome.FOUND


@pytest.mark.parametrize(
    ("page", "outcome"),
    [
        ("DCGM_FI_DEV_SM_CLOCK 1\n", Outcome.ABSENT),
        (sample("90", pod="vllm-1"), Outcome.NO_SERIES),
        (sample("90", pod="vllm-0", namespace="other"), Outcome.NO_SERIES),
        (sample("9.223372036854776e+18", pod="vllm-1"), Outcome.NO_SERIES),
        (sample("9.223372036854776e+18"), Outcome.INVALID),
        (sample("NaN", pod="vllm-0", namespace="llm"), Outcome.INVALID),
    ],
)
def test_a_page_without_a_share_of_the_endpoint_says_why(page: str, outcome: Outcome) -> None:
    binding, attributes = bind(), AttributeMap()
    assert not read(binding, page, attributes)
    assert attributes.get(GPU_UTILIZATION) is None
    assert [finding.outcome for finding in binding.findings()] == [outcome]


def test_a_page_without_the_metric_leaves_the_last_value_to_age() -> None:
    binding, attributes = bind(), AttributeMap()
    assert read(binding, sample("40"), attributes, at=1.0)
    assert not read(binding, sample("40"), attributes, at=2.0)
    assert not read(binding, "", attributes, at=3.0)
    kept = attributes.sample(GPU_UTILIZATION)
    assert kept is not None
    assert (kept.value, kept.at) == (0.4, 2.0)
    assert read(binding, sample("50"), attributes, at=4.0)


def test_a_blank_on_one_page_is_forgotten_with_the_next() -> None:
    binding, attributes = bind(), AttributeMap()
    read(binding, sample("NaN"), attributes)
    read(binding, sample("90", pod="vllm-1"), attributes)
    assert binding.findings()[0].outcome is Outcome.NO_SERIES
