"""Commands that start a whole system, as users run them: as processes that leave nothing running."""

import asyncio
import contextlib
import os
import re
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import yaml

from tests.waiting import eventually

MARK = "RUN_TEST_MARK"
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 200.0
"""Seconds for anything that a command does that starts eleven processes."""


class Run:
    """A command that runs below `directory`. Everything that it starts carries its mark in the environment."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path, mark: str) -> None:
        self.process = process
        self.directory = directory
        self._mark = f"{MARK}={mark}".encode()
        self.lines: list[str] = []

    async def until(self, pattern: str) -> str:
        """Read on until a line matches; fails at the end of the output."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while line := (await self.process.stdout.readline()).decode():
                self.lines.append(line.rstrip("\n"))
                if re.search(pattern, line):
                    return line
        pytest.fail(f"it ended without a line like {pattern!r}:\n{self.output}")

    async def end(self) -> int:
        """Its exit code, once it has ended."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            self.lines += (await self.process.stdout.read()).decode().splitlines()
            return await self.process.wait()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def alive(self) -> dict[int, str]:
        """The commands of all processes that it has started and that still run, by process id, itself included."""
        found = {}
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                with contextlib.suppress(OSError):
                    if self._mark in (path / "environ").read_bytes().split(b"\0"):
                        command = (path / "cmdline").read_bytes()
                        found[int(path.name)] = command.replace(b"\0", b" ").decode()
        return found

    async def servers(self) -> list[str]:
        """URLs of the model servers, from the endpoints file."""
        [file] = self.directory.glob(".run/*/endpoints.yaml")
        entries = yaml.safe_load(file.read_text(encoding="utf-8"))["endpoints"]
        return [f"http://{entry['address']}:{entry['port']}" for entry in entries]


Start: TypeAlias = Callable[..., Awaitable[Run]]


@contextlib.asynccontextmanager
async def commands(directory: Path) -> AsyncIterator[Start]:
    """Starts programs in the directory, and ends those that a test left. None leaves a process behind, whatever the
    test was about."""
    runs: list[Run] = []

    async def start(*command: str, **environment: str) -> Run:
        mark = uuid.uuid4().hex
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=directory,
            env=os.environ | {MARK: mark, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | environment,
        )
        runs.append(Run(process, directory, mark))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.returncode is None:
            run.process.kill()
            await run.end()
    await eventually(lambda: not any(run.alive for run in runs), lambda: [run.alive for run in runs], step=0.05)


def pointsman(*arguments: str) -> tuple[str, ...]:
    """The words of the command `pointsman …`."""
    return (sys.executable, "-m", "pointsman", *arguments)
