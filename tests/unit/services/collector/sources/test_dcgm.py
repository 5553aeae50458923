"""Where the DCGM exporter of an endpoint is."""

from typing import Any

import pytest

from services.collector.interfaces import PROMETHEUS_TEXT
from services.collector.sources.dcgm import DcgmParameters, DcgmSource
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems
from shared.model import Endpoint
from shared.plugin import Stability


def endpoint(**given: Any) -> Endpoint:
    return Endpoint(**{"id": "default/a", "name": "a", "address": "10.0.0.1", "port": 8000, **given})


@pytest.mark.parametrize(
    ("given", "where", "url"),
    [
        ({}, {}, "http://10.0.0.1:9400/metrics"),
        ({"scheme": "https", "path": "/gpus", "port": 9500}, {}, "https://10.0.0.1:9500/gpus"),
        ({}, {"metrics_host": "10.0.0.7:8002", "node_address": "10.1.0.1"}, "http://10.0.0.1:9400/metrics"),
        ({"useNodeAddress": True}, {"node_address": "10.1.0.1"}, "http://10.1.0.1:9400/metrics"),
        ({"useNodeAddress": True}, {"node_address": "fd00::1"}, "http://[fd00::1]:9400/metrics"),
        (
            {"overrides": [{"matchLabels": {"gpu": "old"}, "port": 9445}]},
            {"labels": {"gpu": "old"}},
            "http://10.0.0.1:9445/metrics",
        ),
    ],
)
def test_the_exporter_is_in_the_pod_or_on_the_node(given: dict[str, Any], where: dict[str, Any], url: str) -> None:
    problems = Problems()
    parameters = decode(given, DcgmParameters, "parameters", problems, ignore_case=True)
    assert parameters is not MISSING, problems.errors
    assert DcgmSource("d", parameters).url(endpoint(**where)) == url


def test_it_gives_metrics_pages_once_a_second_and_is_alpha() -> None:
    assert DcgmSource.OUTPUT == PROMETHEUS_TEXT
    assert DcgmSource("d").interval == 1.0
    assert DcgmSource.STABILITY is Stability.ALPHA
