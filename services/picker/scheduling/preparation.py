"""What producers prepare for one request before it is scheduled: what takes time, such as calling a tokenizer."""

import asyncio
from collections.abc import Sequence
from typing import Any

from services.picker.request import Request
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Producer
from shared.plugin import Role


class Preparation:
    """Runs the producers in their order, each within its own budget. One that fails costs only its own products."""

    def __init__(self, producers: Sequence[Producer], request: Request) -> None:
        self._producers = producers
        self._request = request
        self._results: dict[str, Any] = {}
        self._failures: dict[Producer, Exception] = {}

    async def run(self) -> None:
        """Returns when all have prepared the request. A cancelled run cancels what is under way."""
        for producer in self._producers:
            try:
                if (awaited := producer.prepare(self._request)) is not None:
                    async with asyncio.timeout(producer.BUDGET):
                        self._results[producer.name] = await awaited
            except TimeoutError:
                late = TimeoutError(f"it wasn't ready within {producer.BUDGET:g} s")
                self._failures[producer] = late
            except Exception as error:  # noqa: BLE001 - a plugin's failure is noted, and costs only the plugin's part
                self._failures[producer] = error

    def tell(self, cycle: Cycle) -> None:
        """Hand the cycle the results, and the failures."""
        cycle.prepared = self._results
        cycle.unprepared = [producer.name for producer in self._failures]
        for producer, error in self._failures.items():
            cycle.plugin_failed(producer, Role.DATA_PRODUCER, error)
