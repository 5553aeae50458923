"""The Docker engine: the one that runs on this machine, or else one of the test's own.

The test's own engine keeps its images below `.run`, so that the next run builds little. It ends with the test.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pointsman.local.process import NotReady, Process, ProcessError
from tests.deploy.shell import Failed, Missing, need, run, weigh

PACKAGES = "docker.io docker-compose debootstrap"
"""Of Debian."""
DATA = Path(__file__).parents[2] / ".run" / "deploy" / "docker"


class Engine:
    """A Docker engine at a socket; `own`: nobody else uses it."""

    def __init__(self, host: str, *, own: bool) -> None:
        self.own = own
        self.environment = {"DOCKER_HOST": host, "DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0"}

    async def __call__(self, *arguments: str | Path, stdin: bytes | None = None, timeout: float = 600.0) -> str:
        """`docker …`. Raises Failed."""
        return await run(["docker", *arguments], env=self.environment, stdin=stdin, timeout=timeout)

    async def inspect(self, what: str, form: str) -> str:
        return (await self("inspect", "--format", form, what)).strip()

    async def has(self, image: str) -> bool:
        try:
            await self("image", "inspect", image)
        except Failed:
            return False
        return True

    async def compose(self, project: Path, name: str, *arguments: str, env: dict[str, str] | None = None) -> str:
        """`docker-compose …` in the folder of a project. Raises Failed."""
        command: Sequence[str] = ["docker-compose", "--no-ansi", "--project-name", name, *arguments]
        return await run(command, cwd=project, env=self.environment | (env or {}), timeout=900)

    def __repr__(self) -> str:
        return f"<Engine {self.environment['DOCKER_HOST']}>"


@asynccontextmanager
async def engine(directory: Path) -> AsyncIterator[Engine]:
    """The engine, for the time of the context. Raises Missing with what this machine lacks."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise Missing("containers are started as root on Linux")
    need("docker", "docker-compose", "debootstrap", package=PACKAGES)
    running = Engine(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"), own=False)
    if await _answers(running):
        yield running
        return
    need("dockerd", "containerd", "iptables", package=PACKAGES)
    own = Engine(f"unix://{directory / 'docker.sock'}", own=True)

    async def ready() -> None:
        if not await _answers(own):
            raise NotReady("docker info fails")

    DATA.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(weigh, "docker")
    daemon = Process(
        "dockerd",
        [
            "dockerd",
            *("--host", own.environment["DOCKER_HOST"]),
            *("--data-root", DATA),
            *("--exec-root", directory / "exec"),
            *("--pidfile", directory / "docker.pid"),
        ],
        directory / "dockerd.log",
        ready=ready,
        ready_timeout=60,
        stop_timeout=60,
    )
    try:
        await daemon.start()
    except ProcessError as error:
        raise Missing(f"Docker's engine doesn't start: {error}") from error
    try:
        yield own
    finally:
        await daemon.stop()
        for left in (directory / "exec" / "netns").glob("*"):  # a mount that outlives the engine
            await run(["umount", "--lazy", left])


async def _answers(candidate: Engine) -> bool:
    try:
        await candidate("version", "--format", "{{.Server.Version}}", timeout=20)
    except Failed:
        return False
    return True
