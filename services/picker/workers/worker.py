"""One worker as its supervisor sees it: a process that is started again when it ends.

The process is `python -m services.picker.worker` with one end of the channel and the settings on its standard input. It
isn't forked: threads of the libraries would not survive that.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from typing import cast

import msgspec
import structlog

from services.picker.settings.picker import PickerSettings
from services.picker.workers.channel import ADMIN, CONNECTION, RELEASE, STOP, Status, SupervisorEnd
from shared.config.problems import Invalid

log = structlog.get_logger(__name__)

MODULE = "services.picker.worker"
INITIAL_PAUSE = 0.1
"""Seconds before a worker is started again. Each further time twice as long, up to `MAX_PAUSE`."""
MAX_PAUSE = 10.0
LASTING = 60.0
"""Seconds that a worker must have run for the pauses to be short again."""
LOOK = 1.0
"""Seconds between two looks whether the worker reports."""
SILENT = 2
"""Looks without a report after which a worker gets connections only when no other can take them."""
HUNG = 30
"""Looks without a report after which a worker is killed: as long as the liveness probe of a picker without workers."""


class Unanswered(Exception):
    """A worker gives no answer; the text says why."""


class _Received:
    """Bytes that http.client reads like a socket's."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, _: str) -> BytesIO:
        return BytesIO(self._content)


def _content(answer: bytes) -> tuple[int, bytes]:
    """(status, body) of an HTTP answer. Raises `Unanswered` for one that ends early, as when the worker was killed:
    half a page would make counters fall."""
    response = HTTPResponse(cast(socket.socket, _Received(answer)))
    try:
        response.begin()
        if response.length is None and not response.chunked:
            raise Unanswered("answering without an end")
        return response.status, response.read()
    except HTTPException as error:
        raise Unanswered("not answering in full" if answer else "not answering") from error


class Worker:
    """One of the workers."""

    def __init__(
        self, number: int, settings: PickerSettings, clock: Callable[[], float], on_end: Callable[["Worker"], None]
    ) -> None:
        """`settings` are the worker's own."""
        self.number = number
        self.id = settings.id
        self.restarts = 0
        self._settings = settings
        self._clock = clock
        self._on_end = on_end
        self._process: asyncio.subprocess.Process | None = None
        self._channel: SupervisorEnd | None = None
        self._status = Status()
        self._given = 0
        """Connections that were handed to the process."""
        self._silent = 0
        """Looks since its last report."""
        self._stopping = asyncio.Event()
        self._news = asyncio.Event()

    @property
    def connections(self) -> int:
        """Connections that the process has, or will have."""
        return self._status.connections + self._given - self._status.adopted

    @property
    def ready(self) -> bool:
        """Whether it should get requests."""
        return self._status.ready and self._silent < SILENT

    @property
    def state(self) -> str:
        """One or two words about the process."""
        if self._channel is None:
            return "not running"
        if not self._status.started:
            return "starting"
        if self._silent >= SILENT:
            return "not responding"
        return "ready" if self.ready else "not ready"

    def about(self) -> dict[str, object]:
        """What `/debug/state` shows of the process."""
        pid = None if self._process is None or self._channel is None else self._process.pid
        return {"pid": pid, "state": self.state, "connections": self.connections, "restarts": self.restarts}

    async def run(self) -> None:
        """Start the process, and again whenever it ends. Returns when it has ended after `stop`."""
        pause = INITIAL_PAUSE
        while not self._stopping.is_set():
            began = self._clock()
            try:
                why: dict[str, object] = {"exit_code": await self._run_process()}
            except OSError as error:  # no memory, too many processes
                why = {"error": str(error)}
            if self._stopping.is_set():
                return
            if self._clock() - began > LASTING:
                pause = INITIAL_PAUSE
            self.restarts += 1
            if self._status.invalid:
                why["problems"] = Invalid(self._status.invalid, self._status.origin).lines()
            log.warning("worker.ended", worker=self.id, restart_after=pause, **why)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(2 * pause, MAX_PAUSE)

    async def started(self) -> None:
        """Wait until the process has started. Raises `Invalid` if it can't use its settings."""
        while not self._status.started:
            if self._status.invalid:
                raise Invalid(self._status.invalid, self._status.origin)
            self._news.clear()
            await self._news.wait()

    def adopt(self, connection: socket.socket) -> bool:
        """Hand over a connection of a proxy. False if the process can't take it."""
        if self._channel is None or not self._status.started or not self._channel.send(CONNECTION, connection):
            return False
        self._given += 1
        return True

    def release(self) -> None:
        """Make one of its proxies open a new connection."""
        if self._channel is not None:
            self._channel.send(RELEASE)

    async def get(self, path: str, timeout: float) -> tuple[int, bytes]:
        """(status, body) of the worker's admin HTTP. Raises `Unanswered`."""
        if self._channel is None or not self._status.started or self._silent >= SILENT:
            raise Unanswered(self.state)
        ours, theirs = socket.socketpair()
        with theirs:
            if not self._channel.send(ADMIN, theirs):
                ours.close()
                raise Unanswered("not answering")
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.timeout(timeout):
                writer.write(f"GET {path} HTTP/1.1\r\nhost: worker\r\nconnection: close\r\n\r\n".encode())
                answer = await reader.read()
        except TimeoutError as error:
            raise Unanswered(f"without an answer within {timeout:g} s") from error
        except OSError as error:
            raise Unanswered("not answering") from error
        finally:
            writer.close()
        return _content(answer)

    def stop(self) -> None:
        """Have the process drain and end, and start no other."""
        self._stopping.set()
        if self._channel is not None and not self._channel.send(STOP):
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _run_process(self) -> int:
        """One process from its start to its end; its exit code."""
        ours, theirs = socket.socketpair()
        channel = SupervisorEnd(ours)
        self._status, self._given, self._silent = Status(), 0, 0
        loop = asyncio.get_running_loop()
        try:
            with theirs:
                self._process = process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", MODULE, str(theirs.fileno())),
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C in a terminal is the supervisor's business
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                )
            self._channel = channel
            log.info("worker.starting", worker=self.id, pid=process.pid)
            assert process.stdin is not None
            process.stdin.write(msgspec.msgpack.encode(self._settings))
            process.stdin.close()
            loop.add_reader(channel, self._receive, channel)
            if self._stopping.is_set():
                self.stop()
            watching = asyncio.create_task(self._watch())
            try:
                return await process.wait()
            finally:
                watching.cancel()
        finally:
            loop.remove_reader(channel)
            self._receive(channel)  # also when the process has ended before the loop saw its last words
            channel.close()
            self._channel = None
            self._status = Status(invalid=self._status.invalid, origin=self._status.origin)
            self._given = 0
            self._on_end(self)

    def _receive(self, channel: SupervisorEnd) -> None:
        for status in channel.statuses():
            self._status, self._silent = status, 0
        if not channel.open:
            asyncio.get_running_loop().remove_reader(channel)
        self._news.set()

    async def _watch(self) -> None:
        """Kill a process that has hung. Looks are counted, not seconds: a machine that stood still is no reason."""
        while True:
            await asyncio.sleep(LOOK)
            self._silent += 1
            if self._silent == HUNG:
                log.error("worker.hung", worker=self.id, seconds=HUNG * LOOK)
                self.kill()

    def __repr__(self) -> str:
        return f"<Worker {self.id!r}: {self.state}, {self.connections} connections>"
