"""A picker's request handler for tests, and what proxies say to it."""

from functools import cache
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from services.picker.admin.decisions import DecisionRing
from services.picker.admin.metrics import PickerMetrics
from services.picker.extproc.events import Limits
from services.picker.pipeline import build
from services.picker.request_handler import RequestHandler
from services.picker.request_stream import RequestStream
from services.picker.state.view import View
from shared.config import LoadedConfig, load
from shared.plugin import Registry
from tests.unit.services.picker.extproc.proxy import Answer, read
from tests.unit.services.picker.world import NOW

REGISTRY = Registry.installed()


@cache
def _loaded(document: str) -> LoadedConfig:
    return load(document, REGISTRY)


class PickerUnderTest:
    """A request handler over a view, whose clock stands until it is moved."""

    def __init__(
        self,
        view: View,
        document: str = "",
        *,
        log_decisions: bool = False,
        limit: int = 10_000,
        **options: Any,
    ) -> None:
        self.now = NOW
        self.view = view
        self.ring = DecisionRing(10)
        self.registry = CollectorRegistry()
        self.metrics = PickerMetrics(self.registry, self.view, lambda: self.now)
        self.handler = RequestHandler(
            self.view,
            build(_loaded(document), np.random.default_rng(1), lambda: 0.0, **options),
            self.ring,
            self.metrics,
            limits=Limits(request_body=limit),
            make_id=lambda: "made",
            clock=lambda: self.now,
            log_decisions=log_decisions,
        )

    def begin(self, *messages: Any) -> tuple[RequestStream, list[Answer]]:
        stream = RequestStream(self.handler)
        return stream, self.say(stream, *messages)

    def say(self, stream: RequestStream, *messages: Any) -> list[Answer]:
        """Messages as a transport hands them in, which asks after each whether the stream is idle."""
        answers: list[Answer] = []
        for message in messages:
            answers += [read(answer) for answer in stream.receive(message.SerializeToString()) if answer]
            assert stream.idle is not bool(stream.closed or stream.waiting or stream.ready or stream.handed_back)
        return answers

    @property
    def load(self) -> dict[str, int]:
        """Requests in flight, by endpoint id."""
        return {name: requests for name, (requests, _) in self.view.in_flight.own().items()}

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.view.in_flight.own().values())

    def sample(self, series: str, /, **labels: str) -> float | None:
        """A metric's value; None where there is no such series."""
        return self.registry.get_sample_value(series, labels)


def destinations(answers: list[Answer]) -> str:
    """The one destination that these answers name."""
    found = [value for answer in answers if (value := answer.set_headers.get("x-gateway-destination-endpoint"))]
    assert len(found) == 1, answers
    return found[0]


def refused(answers: list[Answer]) -> Answer:
    """The refusal that these answers end with."""
    assert answers[-1].status, answers
    return answers[-1]
