"""The OpenTelemetry SDK of a process: sampling, a bounded queue, and a thread that exports over OTLP.

The SDK reads the standard `OTEL_…` variables itself; only their defaults are ours.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

import structlog
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
    OTEL_TRACES_SAMPLER,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from services.picker.request import Headers
from services.picker.tracing.otlp import OTLPExporter
from services.picker.tracing.request_span import RequestSpan
from shared.tasks import set_within
from shared.version import VERSION

log = structlog.get_logger(__name__)

DEFAULT_SAMPLING_RATIO = 0.1
"""Share of the traces without a parent that are sampled if nothing says so; the Go original's default."""
PROTOCOL = "http/json"
SHUTDOWN_TIMEOUT = 2.0
"""Seconds for which the end of a process waits for its last spans to be exported."""
SERVICE_NAME = "pointsman-picker"
_NOISY_LOGGERS = ("opentelemetry.trace.propagation.tracecontext", "opentelemetry.trace.span")
"""Loggers that warn of each malformed header: clients choose these."""


class Tracing:
    """Makes the spans of a picker's requests, and exports them."""

    def __init__(
        self,
        id: str,
        exporter: SpanExporter | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`id` names the picker in its spans, which go over OTLP unless there is another `exporter`. `clock` is that of
        its requests; `wall_clock` gives unix nanoseconds."""
        for name in _NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        self._clock, self._wall_clock = clock, wall_clock
        self._provider = TracerProvider(
            sampler=None
            if os.environ.get(OTEL_TRACES_SAMPLER)
            else ParentBased(TraceIdRatioBased(DEFAULT_SAMPLING_RATIO)),
            resource=_resource(id),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPExporter()))
        self._tracer = self._provider.get_tracer("pointsman", VERSION)
        protocol = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL) or os.environ.get(OTEL_EXPORTER_OTLP_PROTOCOL)
        if protocol not in (None, "", PROTOCOL):
            log.warning("tracing.protocol", asked=protocol, used=PROTOCOL)
        log.info("tracing.on", sampler=self._provider.sampler.get_description())

    def start_span(self, headers: Headers, received_at: float) -> RequestSpan:
        """The span of a request with these headers, whose first message came at this time of the clock."""
        return RequestSpan(self._tracer, headers, received_at, self._wall_clock() / 1e9 - self._clock())

    async def shutdown(self) -> None:
        """Export what is left, for `SHUTDOWN_TIMEOUT` seconds at most."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop may have ended meanwhile
                loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=shut_down, name="tracing", daemon=True).start()
        await set_within(closed, SHUTDOWN_TIMEOUT)

    def __repr__(self) -> str:
        return f"<Tracing {self._provider.sampler.get_description()}>"


def _resource(id: str) -> Resource:
    """What the spans are of. The environment's word counts more."""
    ours: Mapping[str, str] = {
        "service.name": SERVICE_NAME,
        "service.version": VERSION,
        "service.instance.id": id,
    }
    return Resource.create({**ours, **OTELResourceDetector().detect().attributes})
