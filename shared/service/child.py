"""Work on foreign input in a process of its own, whose time and memory are limited: Python's lock would let a thread
stall the event loop.

The process runs a module with a `main` that calls `confine` or `confined_with_plugins` first. It reads its task from
stdin, and writes its answer to stdout. It ends with the question: at the latest when its CPU time is used up, even if
nobody waits for it.
"""

import asyncio
import contextlib
import os
import resource
import sys
from pathlib import Path
from typing import TextIO

from shared.plugin import Registry

NICENESS = 10
"""The niceness of a child: it gets a tenth of a core that the requests need, too."""
MEMORY = 512 * 2**20
"""Bytes of a child's own data."""
CPU = 60
"""Seconds of CPU time that a child may use."""
UNSENT = 256 * 1024
"""Bytes for the child that wait in this process, before more is made."""
PIECE = 64 * 1024
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""NumPy's threads would each take memory."""
FIRST_TO_DIE = "1000"
"""Where the machine is out of memory, before its parent."""


class ChildFailed(Exception):
    """The child gave no answer. The text says why."""


class Child:
    """One process that runs a module. `kill` it when it is not needed any more."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False

    async def start(self) -> None:
        """Raises ChildFailed."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", self._module),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in a terminal is the parent's business
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            )
        except OSError as error:
            raise ChildFailed(str(error)) from error
        self._process = process
        if self._killed:
            self.kill()

    @property
    def ended(self) -> bool:
        """Whether it has exited already, so that it reads nothing more."""
        return self._process is not None and self._process.returncode is not None

    def write(self, data: bytes) -> bool:
        """Send it a piece of its task; returns whether to await `drain` before the next one."""
        stdin = self._stdin()
        stdin.write(data)
        return stdin.transport.get_write_buffer_size() > UNSENT

    async def drain(self) -> None:
        """Wait until it has read more. A child that has exited reads nothing; its answer says so."""
        with contextlib.suppress(ConnectionError):
            await self._stdin().drain()

    async def answer(self, timeout: float, limit: int) -> bytes:
        """The child's output after the end of its task, at most so many bytes. Raises ChildFailed."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        output = bytearray()
        try:
            async with asyncio.timeout(timeout):
                with contextlib.suppress(ConnectionError):
                    self._stdin().close()
                while piece := await process.stdout.read(PIECE):
                    output += piece
                    if len(output) > limit:
                        raise ChildFailed(f"its answer has more than {limit} bytes")
                status = await process.wait()
        except TimeoutError as error:
            raise ChildFailed(f"it takes longer than {timeout:g} s") from error
        finally:
            self.kill()
        if status:
            raise ChildFailed(f"the process exited with status {status}")
        return bytes(output)

    def kill(self) -> None:
        """Kill it if it runs, and close its pipes: unread output would keep them open."""
        self._killed = True
        if self._process is not None:
            transport: asyncio.SubprocessTransport = self._process._transport  # type: ignore[attr-defined]
            transport.close()

    def _stdin(self) -> asyncio.StreamWriter:
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin

    def __repr__(self) -> str:
        process = self._process
        return f"<Child {self._module}{'' if process is None else f' {process.pid}'}>"


async def run_child(module: str, task: bytes, timeout: float, limit: int) -> bytes:
    """A child's answer to a task that is small. Raises ChildFailed."""
    child = Child(module)
    try:
        await child.start()
        child.write(task)
        return await child.answer(timeout, limit)
    finally:
        child.kill()


def confine(memory: int = MEMORY, cpu: int = CPU) -> TextIO:
    """In the child: limit its resources, at a low priority. Returns where to write the answer; all other output goes to
    stderr."""
    os.nice(NICENESS)
    for what, limit in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, cpu), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(what)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (limit, limit))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_DIE)
    answers, sys.stdout = sys.stdout, sys.stderr
    return answers


def confined_with_plugins() -> tuple[Registry, TextIO]:
    """In the child: as `confine`, after all plugins are imported. On a busy machine, a low priority has no time for
    that."""
    with contextlib.redirect_stdout(sys.stderr):
        registry = Registry.installed()
    return registry, confine()
