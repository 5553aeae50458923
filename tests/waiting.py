"""The one way in which tests wait: ask until the answer is yes.

A test waits for what it wants to see, however long that takes on a busy machine. The time-out only ends a test that
would wait for ever, so it decides nothing: it is at least ten times what the design promises.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds; ten times the longest time that the design promises for anything is 50."""
STEP = 0.01


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]],
    what: str | Callable[[], object] = "",
    *,
    timeout: float = TIMEOUT,
    step: float = STEP,
) -> T: ...
@overload
async def eventually(
    condition: Callable[[], T],
    what: str | Callable[[], object] = "",
    *,
    timeout: float = TIMEOUT,
    step: float = STEP,
) -> T: ...
async def eventually(
    condition: Callable[[], T | Awaitable[T]],
    what: str | Callable[[], object] = "",
    *,
    timeout: float = TIMEOUT,
    step: float = STEP,
) -> T:
    """Call `condition` every `step` seconds until it returns something true, and return that.

    An AssertionError that it raises means "not yet", so that plain `assert` statements can be waited for. After
    `timeout` seconds an error with that one's text and `what` is raised: a description, or a function that makes one.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        missing: AssertionError | None = None
        try:
            answer = condition()
            found: T = await answer if inspect.isawaitable(answer) else answer
            if found:
                return found
        except AssertionError as error:
            missing = error
        if loop.time() - began >= timeout:
            described = what() if callable(what) else what
            last = f"; the last time: {missing}" if missing else ""
            raise AssertionError(f"not within {timeout:g} s: {described or condition}{last}") from missing
        await asyncio.sleep(step)
