"""Waiting for what other tasks do."""

from collections.abc import Callable

from tests.waiting import eventually


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks work until the condition holds."""
    await eventually(condition, step=0.001)
