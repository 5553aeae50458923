"""docker-compose.yml, running: a copy of it and of what it mounts, so that scenarios may change the files."""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.deploy.engine import Engine
from tests.deploy.images import ROOT
from tests.deploy.scenario import answers, assert_settled
from tests.deploy.shell import Failed
from tests.nats import free_port
from tests.waiting import eventually

PROJECT = "pointsman-deploy-test"
SCALES = {"picker": 2, "collector": 2}
"""Those of docker-compose.yml."""
LOGS = ROOT / ".run" / "deploy" / "containers.log"
"""What containers said when a run broke off."""
PATIENCE = 180.0
"""Seconds for what takes a tenth of it on an idle machine."""


class Compose:
    """The running project."""

    def __init__(self, engine: Engine, directory: Path, session: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.directory = directory
        self._session = session
        published = re.findall(r"\$\{(\w+_PORT):-", (ROOT / "docker-compose.yml").read_text())
        self.ports = {name: str(free_port()) for name in published}
        self.environment: dict[str, str] = {}
        """What users set for `docker-compose`."""
        self.profiles: tuple[str, ...] = ()
        self.files: tuple[str, ...] = ()
        """Instead of docker-compose.yml alone."""
        self.token = ""
        """What the console asks for, if anything."""
        shutil.copy(ROOT / "docker-compose.yml", directory)
        shutil.copytree(ROOT / "deploy", directory / "deploy")
        self.scales = dict(SCALES)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['POINTSMAN_PORT']}"

    async def __call__(self, *arguments: str) -> str:
        """`docker-compose …`. Raises Failed."""
        profiles = [f"--profile={name}" for name in self.profiles]
        files = [f"--file={name}" for name in self.files]
        return await self.engine.compose(
            self.directory, PROJECT, *files, *profiles, *arguments, env=self.ports | self.environment
        )

    async def up(self, *arguments: str, **scales: int) -> None:
        """`docker-compose up`, with the scales of the last call and these."""
        self.scales |= scales
        scale = [f"--scale={name}={number}" for name, number in self.scales.items()]
        await self("up", "--detach", "--no-build", *scale, *arguments)

    async def mend(self) -> None:
        """As docker-compose.yml has it, settled."""
        await self.up(**SCALES)
        await self.settled()

    async def recreate(self, *services: str) -> None:
        """New containers instead of these services', as after a change of the file."""
        await self.up("--force-recreate", "--no-deps", *services)

    # ---- containers

    async def containers(self, service: str) -> list[str]:
        """The ids of those that run."""
        found = await self.engine(
            *("ps", "--quiet", "--no-trunc"),
            *("--filter", f"label=com.docker.compose.project={PROJECT}"),
            *("--filter", f"label=com.docker.compose.service={service}"),
        )
        return found.split()

    async def kill(self, container: str, number: signal.Signals = signal.SIGKILL) -> None:
        """A signal that the engine knows nothing of, as the kernel's when memory is short: the policy restarts it."""
        pid = int(await self.engine.inspect(container, "{{.State.Pid}}"))
        os.kill(pid, number)

        async def restarted() -> bool:
            return await self.engine.inspect(container, "{{.State.Pid}}") not in ("0", str(pid))

        await eventually(restarted, "the container is restarted", timeout=PATIENCE, step=0.1)

    async def address(self, container: str) -> str:
        return await self.engine.inspect(container, "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")

    # ---- what the processes say

    async def get(self, url: str, body: object = None) -> str:
        """The text of a page, or the answer to `body`. Raises AssertionError, so that one can wait for it."""
        method = "GET" if body is None else "POST"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        timeout = aiohttp.ClientTimeout(total=5)
        try:
            async with self._session.request(method, url, json=body, headers=headers, timeout=timeout) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AssertionError(f"{url}: {type(error).__name__}: {error}") from error
        assert response.status == 200, f"{url}: {response.status} {text[:300]}"
        return text

    async def states(self, service: str) -> list[dict[str, Any]]:
        """`/debug/state` of every running container of a tier. Raises AssertionError unless each is ready."""
        pages = []
        for container in await self.containers(service):
            try:
                address = await self.address(container)
            except Failed as error:
                raise AssertionError(str(error)) from error
            await self.get(f"http://{address}:9090/readyz")
            pages.append(yaml.safe_load(await self.get(f"http://{address}:9090/debug/state")))
        return pages

    async def healthy_pickers(self) -> int:
        """How many pickers get requests, as Envoy sees it."""
        page = await self.get(f"http://127.0.0.1:{self.ports['POINTSMAN_STATS_PORT']}/stats/prometheus")
        series = 'envoy_cluster_membership_healthy{envoy_cluster_name="pickers"}'
        (value,) = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(series)]
        return int(float(value))

    async def shown(self) -> int:
        """How many endpoints the console shows. Raises AssertionError as long as it doesn't know the pool."""
        page = yaml.safe_load(await self.get(f"{self._console}/api/pool"))
        assert page["about"]["synced"], page["about"]["problem"]
        return len(page["endpoints"])

    async def drains(self, endpoint: str) -> None:
        """Drain an endpoint from the console, and take it back."""
        for drain in (True, False):
            await self.get(f"{self._console}/api/pool/drain", {"endpoint": endpoint, "drain": drain})

            async def is_so(drain: bool = drain) -> bool:
                for state in await self.states("picker"):
                    (known,) = [known for known in state["endpoints"] if known["id"] == endpoint]
                    assert known["draining"] is drain, known
                return True

            await eventually(is_so, "pickers know that it drains", timeout=PATIENCE, step=0.2)

    @property
    def _console(self) -> str:
        return f"http://127.0.0.1:{self.ports['POINTSMAN_CONSOLE_PORT']}"

    # ---- waiting

    async def settled(self, *, endpoints: int = 3) -> None:
        """Wait until Envoy knows as many pickers as run, which know each other and all endpoints with fresh metrics, as
        the console does."""

        async def is_so() -> bool:
            states = await self.states("picker")
            assert len(states) == self.scales["picker"], f"{len(states)} pickers run"
            assert_settled(states, await self.states("collector"), endpoints=endpoints)
            healthy = await self.healthy_pickers()
            assert healthy == len(states), f"Envoy sees {healthy} healthy pickers"
            shown = await self.shown()
            assert shown == endpoints, f"the console shows {shown} endpoints"
            return True

        await eventually(is_so, "settled", timeout=PATIENCE, step=0.2)

    async def answers(self) -> None:
        """Wait for the first request that is answered."""
        await eventually(partial(answers, self._session, self.url), "an answer", timeout=PATIENCE, step=0.05)

    # ---- files

    def read(self, path: str) -> str:
        return (self.directory / path).read_text()

    def write(self, path: str, text: str) -> None:
        """Replace a file by rename, as editors and deployment tools do."""
        target = self.directory / path
        draft = target.with_name(f".{target.name}.new")
        draft.write_text(text)
        draft.replace(target)

    async def notes(self) -> Mapping[str, str]:
        """Of the watcher's readiness."""
        (container,) = await self.containers("watcher")
        page = await self.get(f"http://{await self.address(container)}:9090/readyz")
        notes: Mapping[str, str] = yaml.safe_load(page)["notes"]
        return notes


@asynccontextmanager
async def compose(engine: Engine, directory: Path) -> AsyncIterator[Compose]:
    """The project, before its first `up`; nothing of it is left behind."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        running = Compose(engine, directory, session)
        await running("down", "--volumes", "--timeout", "1")  # what a killed run has left
        try:
            yield running
        except Exception:
            with suppress(Failed):
                LOGS.write_text(await running("logs", "--no-color", "--tail", "300"))
            raise
        finally:
            await asyncio.shield(running("down", "--volumes", "--timeout", "1"))
