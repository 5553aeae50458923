"""Waits for what producers prepare for one request before it is scheduled, such as the call of a tokenizer."""

import asyncio

from services.picker.director import Prepared


async def prepare(prepared: Prepared) -> None:
    """Runs the producers in their order, each within its own budget. One that fails costs only its own products."""
    for producer in prepared.producers:
        try:
            if (awaited := producer.prepare(prepared.request)) is not None:
                async with asyncio.timeout(producer.BUDGET):
                    prepared.results[producer] = await awaited
        except TimeoutError:
            late = TimeoutError(f"it wasn't ready within {producer.BUDGET:g} s")
            prepared.failures.append((producer, late))
        except Exception as error:  # noqa: BLE001 - a plugin's failure is noted, and costs only the plugin's part
            prepared.failures.append((producer, error))
