"""What waits and runs under flow control, as a topic of a feed."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from services.console.feed import event
from shared.pool_view.reader import PoolReader
from shared.pool_view.rows import BandRow, FlowRow

MAX_FLOWS = 100


def flow_page(reader: PoolReader, names: Mapping[str, str]) -> dict[str, Any]:
    """As `services.console.schemas.FlowPage`. `names` are those of flows, by their hashes."""
    bands = reader.queues()
    flows = [(band.priority, flow) for band in bands for flow in band.flows]
    flows.sort(key=lambda entry: (-entry[1].requests, -entry[1].running))
    return {
        "pickers": {row.id: row.waiting for row in reader.members() if row.waiting is not None},
        "bands": [_band(band) for band in bands],
        "flows": [_flow(priority, flow, names) for priority, flow in flows[:MAX_FLOWS]],
        "more_flows": max(0, sum(band.flow_count for band in bands) - MAX_FLOWS),
    }


def _band(band: BandRow) -> dict[str, Any]:
    return {
        "priority": band.priority,
        "requests": band.requests,
        "tokens": band.tokens,
        "longest_wait": round(band.oldest, 3),
        "running": band.running,
        "rate": round(band.rate, 2),
        "flows": band.flow_count,
    }


def _flow(priority: int, flow: FlowRow, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "flow": flow.flow,
        "name": names.get(flow.flow, ""),
        "priority": priority,
        "requests": flow.requests,
        "tokens": flow.tokens,
        "longest_wait": round(flow.oldest, 3),
        "running": flow.running,
    }


class FlowTopic:
    """Each change is the whole: it is small. `learn` looks for names of flows."""

    def __init__(
        self,
        page: Callable[[], dict[str, Any]],
        about: Callable[[], dict[str, Any]],
        learn: Callable[[], Awaitable[None]],
    ) -> None:
        self._page, self._about, self._learn = page, about, learn
        self._content: dict[str, Any] = {}

    async def refresh(self) -> bytes | None:
        await self._learn()
        before, self._content = self._content, {"about": self._about(), **self._page()}
        return event("changes", msgspec.json.encode(self._content)) if self._content != before else None

    async def whole(self) -> bytes:
        return event("whole", msgspec.json.encode(self._content))

    def __repr__(self) -> str:
        return "<FlowTopic>"
