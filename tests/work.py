"""Counts the work of Python code: how much something costs beside how much else there is, on any machine."""

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Any


class Work:
    """Instructions of Python's interpreter. One that calls C code, such as a sort, is one."""

    def __init__(self) -> None:
        self.instructions = 0

    def __repr__(self) -> str:
        return f"<Work {self.instructions} instructions>"


@contextmanager
def counted() -> Iterator[Work]:
    """The work of this thread in the block, also of other tasks that run meanwhile."""
    work = Work()

    def count(frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes = True
        work.instructions += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield work
    finally:
        sys.settrace(before)


async def longest_turn(coroutine: Coroutine[Any, Any, object]) -> float:
    """The part of a coroutine's work that it does in its longest turn: 1 if nothing else can run meanwhile."""
    turns = [0]

    async def take_turns(work: Work) -> None:
        while True:
            turns.append(work.instructions)
            await asyncio.sleep(0)

    with counted() as work:
        beside = asyncio.create_task(take_turns(work))
        await coroutine
        turns.append(work.instructions)
    beside.cancel()
    return max(after - before for before, after in pairwise(turns)) / work.instructions
