"""`metrics-data-source`: the model servers' Prometheus pages."""

import asyncio
from collections.abc import Iterable, Sequence

from services.collector.interfaces import PROMETHEUS_TEXT, Binding, MetricsBinding
from services.collector.scan import scan, steps
from services.collector.selection import Choice, Selector
from services.collector.sources.http import HttpParameters, HttpSource


class MetricsParameters(HttpParameters, frozen=True, kw_only=True):
    """Parameters, as of every HTTP source."""

    path: str = "/metrics"


class MetricsSource(HttpSource):
    """The polling source of metrics pages."""

    TYPE = "metrics-data-source"
    OUTPUT = PROMETHEUS_TEXT
    Parameters = MetricsParameters

    async def read(self, page: bytes, bindings: Sequence[Binding]) -> None:
        choices = [choice for one in bindings if isinstance(one, MetricsBinding) for choice in one.choices]
        pieces = list(steps(page))
        while wanted := _wanted(choices):
            for index, (start, end) in enumerate(pieces):
                if index:
                    await asyncio.sleep(0)
                scan(page, wanted, start, end)


def _wanted(choices: Iterable[Choice]) -> dict[bytes, list[Selector]]:
    """What to look for next, by the metric's name: specifications that share a metric share the search for it."""
    wanted: dict[bytes, list[Selector]] = {}
    for choice in choices:
        selector = choice.next()
        if selector is not None:
            wanted.setdefault(selector.name, []).append(selector)
    return wanted
