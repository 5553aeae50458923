"""Looks at the running system from outside, as any operator could: `/debug/state`, `/metrics`, Envoy's statistics.

Pickers know the pool: queues, KV use, load in flight and ages are shown as a picker sees them. Counters go on over
restarts of their process.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

from pointsman.demo.plan import engine_words
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
from pointsman.demo.stats import Buckets, Climb, Page, total
from pointsman.demo.tally import SPAN
from pointsman.local.process import Process, ProcessError
from pointsman.local.services import ServiceProcess
from pointsman.local.stack import LocalStack

TIMEOUT = 2.0
"""Seconds for one question; a process that takes longer counts as silent, for once."""


class Conditions:
    """What the script has done to processes: a word for each that isn't as it should be."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}

    def set(self, process: Process, word: str) -> None:
        self._words[process.name] = word

    def clear(self, process: Process) -> None:
        self._words.pop(process.name, None)

    def of(self, process: Process) -> str:
        """`up`, or what is with it instead. Raises ProcessError for one that ended and shouldn't have."""
        word = self._words.get(process.name)
        if word is None and not process.running:
            raise ProcessError(process, f"ended by itself, with exit code {process.exit_code}")
        return word or "up"

    def __repr__(self) -> str:
        return f"<Conditions {self._words}>"


class _PickerHistory:
    """What a picker's counters said over time."""

    def __init__(self) -> None:
        self.decisions = Climb()
        self.fallbacks = Climb()
        self.picks: dict[str, Climb] = {}
        self.decision_seconds = Buckets()
        self._last = Buckets()
        self._steps: deque[tuple[float, Buckets]] = deque()

    def read(self, page: Page, now: float) -> None:
        self.decisions.read(sum(page.values("pointsman_picker_decisions_total", "status").values()))
        served = page.values("pointsman_picker_served_total", "by")
        self.fallbacks.read(served.get("fallback", 0.0) + served.get("other", 0.0))
        for endpoint, count in page.values("pointsman_picker_picks_total", "endpoint").items():
            self.picks.setdefault(endpoint, Climb()).read(count)
        seconds = page.buckets("pointsman_picker_decision_seconds")
        step = seconds.since(self._last)
        self._last = seconds
        self.decision_seconds = self.decision_seconds.plus(step)
        self._steps.append((now, step))

    def lately(self, now: float) -> Buckets:
        """Decision times of the last moments."""
        while self._steps and self._steps[0][0] < now - SPAN:
            self._steps.popleft()
        return total(step for _, step in self._steps)

    def rate(self) -> float:
        """Decisions a second, between the first and the last reading of these moments."""
        if len(self._steps) < 2:
            return 0.0
        steps = list(self._steps)
        return sum(step.count for _, step in steps[1:]) / (steps[-1][0] - steps[0][0])


class Watch:
    """Takes snapshots of a stack. Use as an async context manager."""

    def __init__(self, stack: LocalStack, conditions: Conditions, clock: Callable[[], float] = time.monotonic) -> None:
        self._stack = stack
        self._conditions = conditions
        self._clock = clock
        self._history = {picker.name: _PickerHistory() for picker in stack.pickers}
        self._frames = {collector.name: Climb() for collector in stack.collectors}
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT))
        self._looking = asyncio.Lock()
        self.latest = Snapshot(at=clock())

    async def look(self) -> Snapshot:
        """A new snapshot. Raises ProcessError when a process has ended that nobody stopped."""
        async with self._looking:  # counters must be read in the order in which they were asked for
            return await self._look()

    async def _look(self) -> Snapshot:
        stack = self._stack
        for process in stack.processes:
            self._conditions.of(process)
        states, pages, retries = await asyncio.gather(
            asyncio.gather(*(self.state(one) for one in [*stack.pickers, *stack.collectors])),
            asyncio.gather(*(self._page(one) for one in stack.pickers)),
            self._retries(),
        )
        now = self._clock()
        for picker, page in zip(stack.pickers, pages, strict=True):
            if page is not None:
                self._history[picker.name].read(page, now)
        known = {
            process.name: state
            for process, state in zip([*stack.pickers, *stack.collectors], states, strict=True)
            if state is not None
        }
        self.latest = Snapshot(
            at=now,
            endpoints=self._endpoints(known),
            pickers=tuple(self._picker(picker, known.get(picker.name), now) for picker in stack.pickers),
            collectors=tuple(self._collector(one, known.get(one.name)) for one in stack.collectors),
            server_retries=retries["servers"] if retries else self.latest.server_retries,
            picker_retries=retries["pickers"] if retries else self.latest.picker_retries,
        )
        return self.latest

    def decision_seconds(self, picker: str) -> Buckets:
        """All decision times of a picker, over its restarts."""
        return self._history[picker].decision_seconds

    async def endpoints(self) -> tuple[EndpointRow, ...]:
        """The model servers alone, as the pickers see them now."""
        pickers = self._stack.pickers
        states = await asyncio.gather(*(self.state(one) for one in pickers))
        return self._endpoints({one.name: state for one, state in zip(pickers, states, strict=True) if state})

    async def state(self, process: ServiceProcess) -> Any:
        """Its `/debug/state`; None when it doesn't answer."""
        if not process.running:
            return None
        try:
            async with self._session.get(f"{process.url}/debug/state") as response:
                return await response.json() if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def _page(self, picker: ServiceProcess) -> Page | None:
        if not picker.running:
            return None
        try:
            async with self._session.get(f"{picker.url}/metrics") as response:
                return Page(await response.text()) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def _retries(self) -> dict[str, int] | None:
        assert self._stack.envoy is not None, "the demo's plan has an Envoy"
        stats = f"{self._stack.envoy.admin_url}/stats"
        try:
            async with self._session.get(stats, params={"filter": ENVOY_STATS}) as response:
                return retries(await response.text()) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    def _endpoints(self, known: Mapping[str, Any]) -> tuple[EndpointRow, ...]:
        seen: dict[str, Any] = {}
        for picker in self._stack.pickers:  # any picker's view will do: they agree
            for endpoint in known.get(picker.name, {}).get("endpoints", []):
                seen.setdefault(endpoint["authority"], endpoint)
        rows = []
        for plan, server in zip(self._stack.plan.simulators, self._stack.simulators, strict=True):
            endpoint = seen.get(server.authority)
            picks = self._picks(endpoint["id"]) if endpoint else 0
            words = engine_words(plan)
            rows.append(endpoint_row(server.name, words, self._conditions.of(server), endpoint, picks))
        return tuple(rows)

    def _picks(self, endpoint: str) -> int:
        return int(sum(one.picks[endpoint].total for one in self._history.values() if endpoint in one.picks))

    def _picker(self, picker: ServiceProcess, state: Any, now: float) -> PickerRow:
        history = self._history[picker.name]
        lately = history.lately(now)
        return PickerRow(
            name=picker.name,
            condition=self._conditions.of(picker),
            rate=history.rate(),
            p50=lately.quantile(0.5),
            p99=lately.quantile(0.99),
            in_flight=state["open_exchanges"] if state else 0,
            peers=len(state["peers"]) if state else 0,
            decisions=int(history.decisions.total),
            fallbacks=int(history.fallbacks.total),
        )

    def _collector(self, collector: ServiceProcess, state: Any) -> CollectorRow:
        frames = self._frames[collector.name]
        if state:
            frames.read(state["frames"]["sent"])
        return CollectorRow(
            name=collector.name,
            condition=self._conditions.of(collector),
            endpoints=assigned(state),
            frames=int(frames.total),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    def __repr__(self) -> str:
        return f"<Watch of {self._stack!r}>"
