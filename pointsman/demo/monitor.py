"""Reads the state of the running system as an operator could: `/debug/state`, `/metrics`, Envoy's statistics.

Queues, KV cache usage, requests in flight and ages are those that the pickers see. Counters continue over restarts.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

import aiohttp
import msgspec

from pointsman.demo.plan import engine_label
from pointsman.demo.snapshot import (
    ENVOY_STATS,
    CollectorRow,
    EndpointRow,
    PickerRow,
    Snapshot,
    assigned,
    endpoint_row,
    retries,
)
from pointsman.demo.stats import Buckets, Counters, histogram_quantile, observations
from pointsman.demo.tally import WINDOW
from pointsman.local.process import Process, ProcessError
from pointsman.local.services import ServiceProcess
from pointsman.local.stack import LocalStack

TIMEOUT = 2.0
"""Seconds for a request; a process that takes longer doesn't show in this snapshot."""
DECISIONS, SERVED, PICKS, SKIPPED, SECONDS = (
    "pointsman_picker_decisions_total",
    "pointsman_picker_served_total",
    "pointsman_picker_picks_total",
    "pointsman_picker_skipped_stages_total",
    "pointsman_picker_decision_seconds_bucket",
)


class _PickerHistory:
    """A picker's counters, and its decision times at each reading of the last `WINDOW` seconds."""

    def __init__(self) -> None:
        self.counters = Counters(
            {DECISIONS: "status", SERVED: "by", PICKS: "endpoint", SKIPPED: "stage", SECONDS: "le"}
        )
        self._readings: deque[tuple[float, Buckets]] = deque()

    def read(self, page: str, now: float) -> None:
        self.counters.read(page)
        self._readings.append((now, self.decision_seconds))

    @property
    def decision_seconds(self) -> Buckets:
        return self.counters.by_label(SECONDS)

    def recent(self, now: float) -> tuple[Buckets, float]:
        """The decision times of the window, and decisions per second."""
        while self._readings and self._readings[0][0] < now - WINDOW:
            self._readings.popleft()
        if len(self._readings) < 2:
            return {}, 0.0
        (first_at, first), (last_at, last) = self._readings[0], self._readings[-1]
        times = {bound: count - first.get(bound, 0.0) for bound, count in last.items()}
        return times, observations(times) / (last_at - first_at)


class Monitor:
    """Takes snapshots of a stack. Use as an async context manager."""

    def __init__(self, stack: LocalStack, clock: Callable[[], float] = time.monotonic) -> None:
        self._stack = stack
        self._clock = clock
        self._conditions: dict[str, str] = {}
        """What the demo has done to processes: a word for each that isn't up."""
        self._history = {picker.name: _PickerHistory() for picker in stack.pickers}
        self._frames = {collector.name: (0, 0) for collector in stack.collectors}
        """Frames that each collector has sent: in its earlier runs, and in this one."""
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT))
        self._looking = asyncio.Lock()
        self.latest = Snapshot()

    def mark(self, process: Process, condition: str = "") -> None:
        """Say what the demo has done to a process; nothing once it is up again."""
        self._conditions[process.name] = condition

    async def look(self) -> Snapshot:
        """A new snapshot. Raises ProcessError if a process has ended that the demo didn't stop."""
        async with self._looking:  # concurrent readings of counters could arrive in the wrong order
            return await self._look()

    async def _look(self) -> Snapshot:
        stack = self._stack
        for process in stack.processes:
            self._condition(process)
        services = [*stack.pickers, *stack.collectors]
        states, pages, stats = await asyncio.gather(
            asyncio.gather(*(self.state(service) for service in services)),
            asyncio.gather(*(self._get(f"{picker.url}/metrics") for picker in stack.pickers)),
            self._envoy_stats(),
        )
        now = self._clock()
        for picker, page in zip(stack.pickers, pages, strict=True):
            if page is not None:
                self._history[picker.name].read(page, now)
        known = {service.name: state for service, state in zip(services, states, strict=True) if state is not None}
        self.latest = Snapshot(
            endpoints=self._endpoint_rows(known),
            pickers=tuple(self._picker_row(picker, known.get(picker.name), now) for picker in stack.pickers),
            collectors=tuple(
                self._collector_row(collector, known.get(collector.name)) for collector in stack.collectors
            ),
            server_retries=stats["servers"] if stats else self.latest.server_retries,
            picker_retries=stats["pickers"] if stats else self.latest.picker_retries,
        )
        return self.latest

    def decision_seconds(self, picker: str) -> Buckets:
        """All decision times of a picker."""
        return self._history[picker].decision_seconds

    def skipped(self, stage: str) -> int:
        """Requests that had to do without this stage, at all pickers."""
        histories = self._history.values()
        return int(sum(history.counters.by_label(SKIPPED).get(stage, 0.0) for history in histories))

    async def endpoints(self) -> tuple[EndpointRow, ...]:
        """The model servers as the pickers see them now."""
        pickers = self._stack.pickers
        states = await asyncio.gather(*(self.state(picker) for picker in pickers))
        return self._endpoint_rows({picker.name: state for picker, state in zip(pickers, states, strict=True) if state})

    async def state(self, service: ServiceProcess) -> Any:
        """Its `/debug/state`; None if it doesn't respond."""
        text = await self._get(f"{service.url}/debug/state") if service.running else None
        return None if text is None else msgspec.json.decode(text)

    async def _envoy_stats(self) -> dict[str, int] | None:
        assert self._stack.envoy is not None, "the demo's plan has an Envoy"
        text = await self._get(f"{self._stack.envoy.admin_url}/stats", filter=ENVOY_STATS)
        return None if text is None else retries(text)

    async def _get(self, url: str, **query: str) -> str | None:
        """The body of a response; None without one."""
        try:
            async with self._session.get(url, params=query) as response:
                return await response.text() if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    def _condition(self, process: Process) -> str:
        """`up`, or what the demo has done to it. Raises ProcessError if it ended by itself."""
        condition = self._conditions.get(process.name)
        if not condition and not process.running:
            raise ProcessError(process, f"ended by itself, with exit code {process.exit_code}")
        return condition or "up"

    def _endpoint_rows(self, known: Mapping[str, Any]) -> tuple[EndpointRow, ...]:
        endpoints: dict[str, Any] = {}
        for picker in self._stack.pickers:  # the pickers agree, so the first that responds will do
            for endpoint in known.get(picker.name, {}).get("endpoints", []):
                endpoints.setdefault(endpoint["authority"], endpoint)
        rows = []
        for plan, server in zip(self._stack.plan.simulators, self._stack.simulators, strict=True):
            endpoint = endpoints.get(server.authority)
            picks = 0.0
            if endpoint:
                picks = sum(
                    history.counters.by_label(PICKS).get(endpoint["id"], 0.0) for history in self._history.values()
                )
            rows.append(endpoint_row(server.name, engine_label(plan), self._condition(server), endpoint, int(picks)))
        return tuple(rows)

    def _picker_row(self, picker: ServiceProcess, state: Any, now: float) -> PickerRow:
        history = self._history[picker.name]
        times, rate = history.recent(now)
        served = history.counters.by_label(SERVED)
        return PickerRow(
            name=picker.name,
            condition=self._condition(picker),
            rate=rate,
            p50=histogram_quantile(times, 0.5),
            p99=histogram_quantile(times, 0.99),
            in_flight=state["open_exchanges"] if state else 0,
            peers=len(state["peers"]) if state else 0,
            decisions=int(history.counters.total(DECISIONS)),
            fallbacks=int(served.get("fallback", 0) + served.get("other", 0)),
        )

    def _collector_row(self, collector: ServiceProcess, state: Any) -> CollectorRow:
        earlier, sent = self._frames[collector.name]
        if state:
            frames = state["frames"]["sent"]
            if frames < sent:  # it has been restarted
                earlier += sent
            sent = frames
            self._frames[collector.name] = (earlier, sent)
        return CollectorRow(
            name=collector.name,
            condition=self._condition(collector),
            endpoints=assigned(state),
            frames=earlier + sent,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def __repr__(self) -> str:
        return f"<Monitor of {self._stack!r}>"
