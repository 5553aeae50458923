"""Pages for tests, and a sink that keeps every sample."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from services.collector.page.scan import parse_labels, scan

Sample = tuple[str, dict[str, str], float, float]
"""Name, labels, value, timestamp."""


class Everything:
    """Keeps what it is offered."""

    def __init__(self) -> None:
        self.samples: list[tuple[bytes, float, float]] = []

    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        self.samples.append((labels, value, timestamp))


def samples(page: bytes, names: Iterable[str]) -> list[Sample]:
    """All samples of these metrics, name by name, in the page's order."""
    sinks = {name: Everything() for name in names}
    for name, sink in sinks.items():
        scan(page, name.encode(), [sink])
    return [
        (name, dict(parse_labels(labels)), value, timestamp)
        for name, sink in sinks.items()
        for labels, value, timestamp in sink.samples
    ]


def recorded_vllm_page() -> bytes:
    """The page of a real vLLM 0.32."""
    fixtures = os.environ.get("POINTSMAN_FIXTURES")
    if not fixtures:
        pytest.skip("POINTSMAN_FIXTURES isn't set: it names the folder with vllm-0.32-idle.prom")
    return Path(fixtures, "vllm-0.32-idle.prom").read_bytes()
