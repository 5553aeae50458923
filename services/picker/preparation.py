"""Waits for what producers prepare for one request before it is scheduled, such as the call of a tokenizer."""

import asyncio

from services.picker.director import Prepared
from services.picker.scheduling.checks import refusal_without
from shared.plugin import Role


async def prepare(prepared: Prepared) -> None:
    """Runs the producers in their order, each within its own budget. One that fails costs only its own products, or has
    the request refused."""
    for producer in prepared.producers:
        error: Exception
        try:
            if (awaited := producer.prepare(prepared.request)) is not None:
                async with asyncio.timeout(producer.BUDGET):
                    prepared.results[producer] = await awaited
            continue
        except TimeoutError:
            error = TimeoutError(f"it wasn't ready within {producer.BUDGET:g} s")
        except Exception as raised:  # noqa: BLE001 - a plugin's failure is noted, and costs only the plugin's part
            error = raised
        prepared.failures.append((producer, error))
        if producer.ON_FAILURE == "refuse":
            prepared.refusal = refusal_without(producer, Role.DATA_PRODUCER)
            return
