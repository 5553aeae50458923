"""Counts the work of Python code: how much something costs beside how much else there is, on any machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
