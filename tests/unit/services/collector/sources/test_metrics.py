"""Where a metrics source asks, and whom it trusts."""

import asyncio
from typing import Any

import pytest

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.page.scan import PIECE
from services.collector.sources.metrics import MetricsParameters, MetricsSource
from shared.attributes import WAITING_QUEUE_SIZE, AttributeMap
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems
from shared.model import Endpoint


def endpoint(address: str = "10.0.0.1", metrics_host: str = "") -> Endpoint:
    return Endpoint(id="default/a", name="a", address=address, port=8000, metrics_host=metrics_host)


@pytest.mark.parametrize(
    ("given", "where", "url"),
    [
        ({}, endpoint(), "http://10.0.0.1:8000/metrics"),
        ({"scheme": "https"}, endpoint(), "https://10.0.0.1:8000/metrics"),
        ({"path": "/prometheus/metrics"}, endpoint(), "http://10.0.0.1:8000/prometheus/metrics"),
        ({"port": 9400}, endpoint(), "http://10.0.0.1:9400/metrics"),
        ({}, endpoint(metrics_host="10.0.0.9:8002"), "http://10.0.0.9:8002/metrics"),
        ({"port": 9400}, endpoint(metrics_host="10.0.0.9:8002"), "http://10.0.0.9:9400/metrics"),
        ({}, endpoint(metrics_host="10.0.0.9"), "http://10.0.0.9:8000/metrics"),
        ({}, endpoint("fd00::1"), "http://[fd00::1]:8000/metrics"),
        ({}, endpoint(metrics_host="[fd00::2]:8002"), "http://[fd00::2]:8002/metrics"),
    ],
)
def test_the_page_is_at_the_endpoints_address_unless_something_says_otherwise(
    given: dict[str, Any], where: Endpoint, url: str
) -> None:
    assert MetricsSource("m", MetricsParameters(**given)).url(where) == url


@pytest.mark.parametrize("host", ["[fd00::1", "10.0.0.1:none", ":80"])
def test_a_metrics_host_that_is_no_address_is_an_error(host: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        MetricsSource("m").url(endpoint(metrics_host=host))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"scheme": "ftp"}, "parameters.scheme: 'ftp' isn't one of 'http', 'https'"),
        ({"path": "metrics"}, "parameters: path: 'metrics' doesn't begin with /"),
        ({"path": "/a b"}, "percent-encode it"),
        ({"port": 0}, "parameters.port"),
        ({"port": 65536}, "parameters.port"),
        ({"interval": "-1s"}, "parameters.interval: '-1s' is negative"),
        ({"clientCertPath": "/a"}, "give both or none"),
        ({"insecure": True}, "unknown field"),
    ],
)
def test_parameters_that_can_not_be_used_are_refused_by_name(given: dict[str, Any], problem: str) -> None:
    problems = Problems()
    assert decode(given, MetricsParameters, "parameters", problems, ignore_case=True) is MISSING
    assert any(problem in str(error) for error in problems.errors), problems.errors


@pytest.mark.parametrize(("given", "interval"), [({}, None), ({"interval": 0.05}, 0.05), ({"interval": 0.0}, None)])
def test_a_source_without_an_interval_leaves_it_to_the_collector(given: dict[str, Any], interval: float | None) -> None:
    assert MetricsSource("m", MetricsParameters(**given)).interval == interval


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"insecure_skip_verify": False, "ca_cert_path": "/nowhere/ca.crt"}, "caCertPath: '/nowhere/ca.crt'"),
        ({"client_cert_path": "/nowhere/a", "client_key_path": "/nowhere/b"}, "clientCertPath"),
    ],
)
def test_certificate_files_that_can_not_be_read_are_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        MetricsSource("m", MetricsParameters(scheme="https", **given))


async def test_a_long_page_is_read_in_steps_and_lets_others_work() -> None:
    page = b"".join(b'other{i="%d"} 1\n' % number for number in range(40_000)) + b"vllm:num_requests_waiting 4\n"
    binding, attributes = CoreMetricsExtractor("core").bind(endpoint()), AttributeMap()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(others())
    await MetricsSource("m").reader([binding]).read(page, 0.0)
    working.cancel()
    binding.store(attributes, 1.0)
    assert attributes.get(WAITING_QUEUE_SIZE) == 4.0
    assert turns >= len(page) // PIECE
