"""A child process: start it, wait until it is ready, signal it, stop it.

A child never outlives its parent. It has its own session, so that Ctrl-C in the terminal reaches only the parent, which
stops its children in order. When the parent dies, the kernel kills the child (Linux: PR_SET_PDEATHSIG); elsewhere an
exit handler does. The output goes to a log file, whose last lines are in every error.
"""

import asyncio
import atexit
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import structlog

from shared.printable import printable

log = structlog.get_logger(__name__)

TAIL = 20
"""Lines of the log in an error."""
MAX_TAIL = 64 * 1024
"""Bytes of a log that are read for them: that of a process that has run for weeks can be larger than the memory."""
READY_TIMEOUT = 120.0
"""Seconds, of which an idle machine needs one. A process that ends instead is noticed at once."""
_PROBE_INTERVAL = 0.05
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None

Probe = Callable[[], Awaitable[None]]
"""Returns if the process is ready, otherwise raises NotReady with the reason. It has a time-out of its own."""


class NotReady(Exception):
    """The process isn't ready yet; the message says why."""


class ProcessError(Exception):
    """A process didn't start, didn't become ready, or ended by itself. The message has the end of its log."""

    def __init__(self, process: "Process", what: str) -> None:
        self.process = process
        lines = process.tail()
        shown = "".join(f"\n  | {printable(line)}" for line in lines) or " (its log is empty)"
        super().__init__(f"{process.name} {what}; end of {process.log}:{shown}")


class Process:
    """A child process. `start` it, or use it as an async context manager. It can be started again after its end.

    `command[0]` is a path or a program on PATH. `env` is the whole environment, by default this process's. Without a
    probe, a process is ready when it runs.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | os.PathLike[str]],
        log: Path,
        *,
        ready: Probe | None = None,
        ready_timeout: float = READY_TIMEOUT,
        stop_timeout: float = 10.0,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.command = [os.fspath(word) for word in command]
        self.log = log
        self.ready_timeout = ready_timeout
        self.stop_timeout = stop_timeout
        self._ready = ready
        self.environment = dict(os.environ if env is None else env)
        self._cwd = cwd
        self._child: asyncio.subprocess.Process | None = None
        self.paused = False
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._child.pid if self._child and self._child.returncode is None else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the last run after its end; negative for a signal."""
        return self._child.returncode if self._child else None

    def tail(self, lines: int = TAIL) -> list[str]:
        """The last lines of its log, as far as they are in its last `MAX_TAIL` bytes; none if it can't be read."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_TAIL))
                return file.read(MAX_TAIL).decode(errors="replace").splitlines()[-lines:]
        except OSError:
            return []

    def __repr__(self) -> str:
        if self._child is None:
            state = "not started"
        elif self.pid is None:
            state = f"ended with {self.exit_code}"
        else:
            state = f"{'paused' if self.paused else 'running'} as {self.pid}"
        return f"<Process {self.name} {state}>"

    async def start(self, *, wait: bool = True) -> Self:
        """Start it and, with `wait`, wait until it is ready. Raises ProcessError, with the process stopped."""
        if self.running:
            raise ProcessError(self, "is already running")
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as output:
                self._child = await asyncio.create_subprocess_exec(
                    *self.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self.environment,
                    cwd=self._cwd,
                    start_new_session=True,
                    preexec_fn=partial(_die_with_parent, os.getpid()) if _libc else None,
                )
        except OSError as error:
            raise ProcessError(self, f"can't be started: {error}") from error
        self.paused = False
        self.starts += 1
        _running.add(self)
        log.debug("process.started", name=self.name, pid=self._child.pid)
        if wait:
            try:
                await self.wait_ready()
            except BaseException:
                await self.kill()
                raise
        return self

    async def wait_ready(self) -> None:
        """Wait for the readiness probe. Raises ProcessError after `ready_timeout` or if the process ends."""
        if self._child is None:
            raise ProcessError(self, "was not started")
        if self._ready is None:
            return
        reason = "not probed yet"
        try:
            async with asyncio.timeout(self.ready_timeout):
                while True:
                    if self._child.returncode is not None:
                        raise ProcessError(self, f"ended with {outcome(self._child.returncode)} before it was ready")
                    try:
                        await self._ready()
                    except NotReady as error:
                        reason = str(error)
                    else:
                        return
                    await asyncio.sleep(_PROBE_INTERVAL)
        except TimeoutError as error:
            raise ProcessError(self, f"was not ready after {self.ready_timeout:g} s ({reason})") from error

    async def wait(self) -> int:
        """Wait for its end. Returns the exit code."""
        if self._child is None:
            raise ProcessError(self, "was not started")
        code = await self._child.wait()
        _running.discard(self)
        return code

    async def stop(self, timeout: float | None = None) -> int | None:
        """Send SIGTERM, and SIGKILL after the time-out; nothing to one that has ended. Returns the exit code, None if
        it was never started."""
        if self._child is None:
            return None
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.stop_timeout if timeout is None else timeout):
                await self.wait()
        except TimeoutError:
            log.warning("process.stop_timeout", name=self.name, pid=self.pid)
            return await self.kill()
        return self.exit_code

    async def kill(self) -> int | None:
        """Send SIGKILL and wait for the end."""
        if self._child is None:
            return None
        self._signal_group(signal.SIGKILL)
        return await self.wait()

    def kill_now(self) -> None:
        """Send SIGKILL without waiting, for callers without an event loop."""
        self._signal_group(signal.SIGKILL)

    async def restart(self) -> None:
        """Stop it, and start it again with the same command, ports and log."""
        await self.stop()
        await self.start()

    def pause(self) -> None:
        """Send SIGSTOP: it hangs, and its sockets and files stay open."""
        self._signal(signal.SIGSTOP)
        self.paused = self.running

    def resume(self) -> None:
        """Send SIGCONT if it is paused."""
        if self.paused:
            self._signal(signal.SIGCONT)
            self.paused = False

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and the event loop doesn't know yet
                self._child.send_signal(number)

    def _signal_group(self, number: signal.Signals) -> None:
        """Signal it and its children while it runs; afterwards another process may have its id."""
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def write(files: Mapping[Path, str]) -> None:
    """Write each file, and rename it, so that a reader sees the old one or the new one."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.new")
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)


def outcome(code: int) -> str:
    """An exit code in words."""
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"


def _die_with_parent(parent: int) -> None:
    """Runs in the child between fork and exec, so it only makes system calls.

    The kernel sends the signal when the thread that forked ends, which here is the main thread.
    """
    assert _libc is not None
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before prctl
        os._exit(1)


_running: set[Process] = set()


@atexit.register
def _kill_all() -> None:
    for process in list(_running):
        process.kill_now()
