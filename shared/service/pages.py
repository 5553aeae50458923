"""Large pages in slices, between which the process does its other work."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

SLICE = 500
"""Samples that are written at once: some 3 ms."""
CREATED = "_created"


class _Families(Collector):
    def __init__(self) -> None:
        self.families: list[Metric] = []

    def collect(self) -> Iterator[Metric]:
        return iter(self.families)


async def exposition(registry: CollectorRegistry) -> AsyncIterator[bytes]:
    """The metrics as Prometheus reads them.

    Families of one name that follow each other are one: a collector gives a large one in slices, too.
    """
    last = ""
    written = 0
    some = _Families()
    for metric in registry.collect():
        for piece in _slices(metric):
            some.families = [piece]
            text = generate_latest(some)
            if piece.name == last:
                text = text.split(b"\n", 2)[2]  # the lines HELP and TYPE
            last = piece.name
            yield text
            written += len(piece.samples)
            if written >= SLICE:
                written = 0
                await asyncio.sleep(0)


def _slices(metric: Metric) -> Iterator[Metric]:
    samples = metric.samples
    # what the client library writes behind the others has a heading of its own
    if len(samples) <= SLICE or any(one.name.endswith(CREATED) for one in samples):
        yield metric
        return
    for start in range(0, len(samples), SLICE):
        piece = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        piece.samples = samples[start : start + SLICE]
        yield piece


async def json_list(
    head: Mapping[str, object], name: str, items: Iterable[object], encode: Callable[[object], bytes]
) -> AsyncIterator[bytes]:
    """A JSON object: the members of `head`, and a list, whose items are made and written one by one."""
    members = b"".join(encode(key) + b":" + encode(value) + b"," for key, value in head.items())
    yield b"{" + members + encode(name) + b":["
    separator = b""
    for item in items:
        yield separator + encode(item)
        separator = b","
        await asyncio.sleep(0)
    yield b"]}"
