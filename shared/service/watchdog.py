"""Detects pauses of the event loop: their length, and the task that was running.

A paused loop delays everything else, and peers consider the process dead. A task measures how late it is woken; another
thread sees what runs meanwhile. Little CPU time within a pause means that the machine was busy or the process was
stopped.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import structlog
from msgspec import Struct
from prometheus_client import CollectorRegistry, Gauge, Histogram

log = structlog.get_logger(__name__)

THRESHOLD = 0.05
"""Seconds: a shorter pause is none."""
INTERVAL = 0.02
"""Seconds between two looks."""
LOG_EVERY = 10.0
"""Seconds between two lines in the log, the longest pauses aside."""
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROOT = Path(__file__).parents[2]
UNKNOWN = "unknown"


class Culprit(Struct, frozen=True):
    """What ran during a pause."""

    task: str = UNKNOWN
    """The task's name; `a callback` where none ran."""
    at: str = UNKNOWN
    """File, line and function of this program that ran, or waited for what did."""


NOBODY = Culprit()


class Watchdog:
    """Watches the loop that it runs on."""

    def __init__(self, registry: CollectorRegistry, *, log_every: float = LOG_EVERY) -> None:
        self._pauses = Histogram(
            "pointsman_event_loop_pause_seconds",
            f"Pauses of the event loop above {THRESHOLD * 1000:.0f} ms",
            buckets=BUCKETS,
            registry=registry,
        )
        self._longest = Gauge(
            "pointsman_event_loop_longest_pause_seconds",
            "The longest pause of the event loop",
            registry=registry,
        )
        self.longest = 0.0
        """Seconds of the longest pause."""
        self._log_every = log_every
        self._log_at = float("-inf")
        self._unlogged = 0
        self._due = float("inf")
        self._seen = NOBODY

    async def run(self) -> None:
        """Watch until cancelled."""
        loop, thread, over = asyncio.get_running_loop(), threading.get_ident(), threading.Event()
        watching = threading.Thread(target=self._watch, args=(loop, thread, over.wait), name="watchdog", daemon=True)
        watching.start()
        try:
            while True:
                self._seen = NOBODY
                used = time.thread_time()
                self._due = time.monotonic() + INTERVAL
                await asyncio.sleep(INTERVAL)
                late = time.monotonic() - self._due
                if late > THRESHOLD:
                    self.paused(late, time.thread_time() - used, self._seen)
        finally:
            over.set()

    def paused(self, seconds: float, cpu_seconds: float, culprit: Culprit) -> None:
        """The loop stood still for so long, and its thread used so much CPU time meanwhile."""
        self._pauses.observe(seconds)
        record = seconds > self.longest
        if record:
            self.longest = seconds
            self._longest.set(seconds)
        self._unlogged += 1
        now = time.monotonic()
        if record or now >= self._log_at:
            log.warning(
                "event_loop.paused",
                seconds=round(seconds, 3),
                cpu_seconds=round(cpu_seconds, 3),
                task=culprit.task,
                at=culprit.at,
                since_last_line=self._unlogged,
            )
            self._log_at, self._unlogged = now + self._log_every, 0

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, over: Callable[[float], bool]) -> None:
        """In a thread of its own: once in each pause, see what runs."""
        while not over(INTERVAL):
            if self._seen is NOBODY and time.monotonic() > self._due + THRESHOLD:
                task = asyncio.current_task(loop)
                name = task.get_name() if task is not None else "a callback"
                self._seen = Culprit(name, _place(sys._current_frames().get(thread)))

    def __repr__(self) -> str:
        return f"<Watchdog: {self.longest:.3f} s at most>"


def _place(frame: FrameType | None) -> str:
    """The innermost frame of this program, without the program's own path."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
            return f"{path.relative_to(ROOT)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return UNKNOWN
