"""Programs that the deployments need, run without blocking the load."""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
"""The control groups; those of version 1 have a folder for each controller."""


class Missing(Exception):
    """What this machine lacks, and how it is had."""


class Failed(Exception):
    """A program ended with an error; the message has the command and the end of what it said."""


def need(*programs: str, package: str) -> None:
    """Raises Missing unless all programs are on PATH, the folders of the administrator included."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    absent = [program for program in programs if shutil.which(program, path=path) is None]
    if absent:
        raise Missing(f"{', '.join(absent)}: apt-get install {package}")


def weigh(group: str) -> None:
    """Let a control group weigh as much as twenty processes of the machine. All containers are in one, which by default
    weighs as much as one process, whatever else the machine does."""
    if (GROUPS / "cpu").exists():
        (folder := GROUPS / "cpu" / group).mkdir(exist_ok=True)
        (folder / "cpu.shares").write_text(str(20 * 1024))


async def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float = 600.0,
) -> str:
    """What the program wrote to stdout. `env` adds to the environment. Raises Failed."""
    words = [os.fspath(word) for word in command]
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout):
            out, err = await process.communicate(stdin)
    except TimeoutError as error:
        raise Failed(f"{' '.join(words)}: not ended after {timeout:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = "\n".join(
            [*out.decode(errors="replace").splitlines()[-10:], *err.decode(errors="replace").splitlines()[-20:]]
        )
        raise Failed(f"{' '.join(words)} ended with {process.returncode}:\n{said}")
    return out.decode(errors="replace")
