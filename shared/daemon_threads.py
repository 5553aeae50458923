"""Threads for calls that can't be interrupted, such as those of the system's resolver."""

import asyncio
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """At most `limit` daemon threads, for calls that can't be interrupted. Calls that hang don't keep the process:
    `shutdown` waits for them at most `patience` seconds.

    A thread that takes a call starts another one if none is idle. So the event loop starts the first thread only: many
    calls at once don't hold it.
    """

    def __init__(self, limit: int, name: str, *, patience: float = 0.0) -> None:
        self._limit = limit
        self._name = name
        self._patience = patience
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._open: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._started = 0
        self._refused = False
        """Whether the last thread couldn't be started."""
        self._idle = 0
        """Threads that wait for a call, or are about to."""

    async def run(self, call: Callable[[], T]) -> T:
        """Raises what the call raises, and OSError if no thread can be started."""
        return await asyncio.wrap_future(self.submit(call))

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Raises OSError if no thread can be started."""
        future: Future[T] = Future()
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        self._calls.put((future, partial(call, *args, **kwargs)))
        if not self._started or self._refused:
            self._start_one()
        if not self._started:
            future.cancel()
            raise OSError("no thread can be started")
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if wait:
            futures.wait(tuple(self._open), timeout=self._patience)

    def _start_one(self) -> None:
        """Start a thread, unless one is idle or there are as many as allowed."""
        with self._lock:
            if self._idle or self._started == self._limit:
                return
            self._started += 1
            self._idle += 1
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._refused = False
        except RuntimeError:
            self._refused = True
            with self._lock:
                self._started -= 1
                self._idle -= 1

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            with self._lock:
                self._idle -= 1
            self._start_one()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - the top of the thread; the caller gets it
                    future.set_exception(error)
            del future, call  # a result isn't kept until the next call
            with self._lock:
                self._idle += 1
