"""What `pointsman up` and the demo have in common: a directory, signals, the start of a stack, and error messages."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import structlog

from pointsman.local.binaries import BinaryMissing
from pointsman.local.envoy import ConfigurationError
from pointsman.local.ports import PortTaken
from pointsman.local.process import Process, ProcessError
from pointsman.local.services import Console
from pointsman.local.stack import LocalStack
from pointsman.top.format import duration
from pointsman.top.screen import Screen
from shared.tasks import cancel

RUN_DIRECTORY = Path(".run")
GOOD, BAD, INTERRUPTED = 0, 1, 130
"""Exit codes; the last one is for an interrupt during the start."""
_ROLES = {
    "watcher": "publishes the endpoints",
    "collector": "scrapes the servers",
    "picker": "picks for Envoy",
    "simulator": "model server",
}


class SessionError(Exception):
    """The session can't continue; the message says why."""


class Session:
    """A stack from its start to its end. Subclasses make the stack and say what happens meanwhile.

    However it ends, nothing is left running: the stack stops its processes in order, and the kernel kills them if this
    process is killed.
    """

    def __init__(self, screen: Screen, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.screen = screen
        self.directory = directory
        self.clock = clock
        self.stopping = asyncio.Event()
        self._stack: LocalStack | None = None

    def make(self) -> LocalStack:
        """The stack, not started."""
        raise NotImplementedError

    async def meanwhile(self, stack: LocalStack) -> int:
        """While it runs, until `stopping` is set. Returns the exit code."""
        raise NotImplementedError

    def role(self, stack: LocalStack, process: Process) -> tuple[str, str]:
        """Where a process listens, and what it is for."""
        if process is stack.envoy:
            return stack.url, "the proxy that clients call"
        if process is stack.nats:
            return stack.nats.url, "nats-server"
        if isinstance(process, Console):
            return process.page, "the pool in a browser"
        return getattr(process, "url", ""), _ROLES.get(getattr(process, "tier", ""), "")

    def stop(self) -> None:
        """End early, in order."""
        self.stopping.set()

    def kill(self) -> None:
        """End every process at once."""
        if self._stack is not None:
            self._stack.close()

    async def run(self) -> int:
        """The exit code. Raises PortTaken, BinaryMissing, ConfigurationError, ProcessError or SessionError."""
        self.screen.line(f"Files and logs of this run: {self.directory}")
        self._stack = stack = self.make()
        if not await self._start(stack):
            self.screen.line("Interrupted during the start. Everything is stopped again.")
            return INTERRUPTED
        try:
            return await self.meanwhile(stack)
        finally:
            began = self.clock()
            try:
                self.screen.close()
                self.screen.line("Stopping everything …")
            finally:  # also after a broken pipe
                await stack.stop()
            self.screen.line(f"Stopped after {duration(self.clock() - began)}; nothing is left running.")

    async def _start(self, stack: LocalStack) -> bool:
        """Start everything; False, with nothing left running, after an interrupt."""
        began = self.clock()

        def on_ready(process: Process) -> None:
            url, role = self.role(stack, process)
            self.screen.line(f"  {process.name:<11}  {url:<22}  {role:<29}  {duration(self.clock() - began):>6}")

        self.screen.line("Starting, and waiting until each is ready:")
        starting = asyncio.create_task(stack.start(on_ready=on_ready))
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.wait({starting})
                if starting.cancelled():
                    return False
            starting.result()
            return True
        finally:
            stopping.cancel()
            if not starting.done():  # this task was cancelled
                starting.cancel()
                await asyncio.wait({starting})

    async def until_stopped(self, *work: Coroutine[Any, Any, object]) -> None:
        """Run coroutines until `stopping` is set or one ends, and cancel them. Raises the first error."""
        await first_of(self.stopping.wait(), *work)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.directory}>"


async def first_of(*work: Coroutine[Any, Any, object]) -> None:
    """Run coroutines until one ends, and cancel the others. Raises the first error."""
    tasks = {asyncio.create_task(each) for each in work}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel(*tasks)


async def run_session(make: Callable[[Path], Session], command: str, *, directory: str = "", keep: bool = False) -> int:
    """Run it in the directory, by default a new one that is removed at the end, unless it ends badly or `keep`."""
    try:
        folder = make_directory(directory, command)
    except OSError as error:
        return refuse(command, f"cannot create a directory for files and logs: {error}")
    code = BAD
    with _logs(folder / f"{command}.log"):
        session = make(folder)
        try:
            with _signals(session):
                code = await session.run()
        except asyncio.CancelledError:  # Ctrl-C before the handler was installed; nothing has been started
            session.screen.close()
            code = INTERRUPTED
        except (PortTaken, BinaryMissing, ConfigurationError, ProcessError, SessionError) as error:
            session.screen.close()
            refuse(command, str(error))
    if directory or keep or code not in (GOOD, INTERRUPTED):
        print(f"Files and logs are in {folder}", flush=True)
    else:
        remove_directory(folder)
    return code


def make_directory(given: str, command: str, base: Path = RUN_DIRECTORY) -> Path:
    """The given directory; without one, a new one in `base`, or in the system's temporary directory if `base` isn't
    writable. Raises OSError."""
    if given:
        Path(given).mkdir(parents=True, exist_ok=True)
        return Path(given).absolute()
    try:
        base.mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{command}-", dir=base)).absolute()
    except OSError:
        return Path(tempfile.mkdtemp(prefix=f"pointsman-{command}-"))


def remove_directory(directory: Path) -> None:
    """Remove it, and the parent if it was created for it and is empty."""
    shutil.rmtree(directory, ignore_errors=True)
    if directory.parent.name == RUN_DIRECTORY.name:
        with contextlib.suppress(OSError):  # it isn't empty
            directory.parent.rmdir()


def refuse(command: str, text: str) -> int:
    print(f"pointsman {command}: {text}", file=sys.stderr, flush=True)
    return BAD


@contextlib.contextmanager
def _logs(path: Path) -> Iterator[None]:
    """Log to a file: the screen belongs to the session."""
    with path.open("a", encoding="utf-8") as file:
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(file))
        try:
            yield
        finally:
            structlog.reset_defaults()


@contextlib.contextmanager
def _signals(session: Session) -> Iterator[None]:
    """The first signal ends the session in order, the second one kills everything."""
    loop = asyncio.get_running_loop()
    seen = 0

    def on_signal(number: int) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            session.screen.line("Interrupted; stopping in order. A second interrupt kills everything.")
            session.stop()
            return
        session.kill()
        session.screen.close()
        session.screen.line(f"Killed everything; files and logs are in {session.directory}")
        os._exit(128 + number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
