"""docs/deploy-compose.md, followed literally: its commands in its order, from this folder."""

import json
import os
import re
import shlex
import time

from tests.deploy.compose import PATIENCE, PROJECT, Compose
from tests.deploy.compose_scenarios import ENDPOINTS
from tests.deploy.images import ROOT, SERVICES
from tests.deploy.results import Result
from tests.deploy.shell import Failed, need, run
from tests.waiting import eventually

SCENARIO = "the commands of docs/deploy-compose.md, as they stand"
PAGE = ROOT / "docs/deploy-compose.md"
NOT_RUN = ("make ",)
"""It would run this."""
FOLLOWS = 10
"""Seconds for a command that goes on until it is interrupted."""


def commands() -> list[str]:
    """As they stand."""
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [re.sub(r"\s+# .*", "", line) for block in blocks for line in block.replace("\\\n", "").splitlines()]
    return [line for line in lines if line.strip() and not line.startswith(NOT_RUN)]


async def follow(compose: Compose) -> Result:
    """Runs the page's commands for a project of this machine, and looks at what they say and do. What another project
    may have is given by the environment: the project's name and ports."""
    need("curl", "script", package="curl bsdutils")
    began, played = time.monotonic(), []
    endpoints, owner = (ROOT / ENDPOINTS).read_bytes(), ROOT.stat()
    try:
        for command in commands():
            await _one(compose, command)
            played.append(command)
    except (AssertionError, Failed) as error:
        problem = f"{commands()[len(played)]}: {error}"
    else:
        problem = ""
    finally:
        await compose("down", "--volumes", "--timeout", "1")
        for file in ((folder := (ROOT / ENDPOINTS).parent), *folder.iterdir()):
            os.chown(file, owner.st_uid, owner.st_gid)
        (ROOT / ENDPOINTS).write_bytes(endpoints)
    return Result(
        scenario=SCENARIO,
        seconds=time.monotonic() - began,
        note=f"{len(played)} commands",
        error=problem,
    )


async def _one(compose: Compose, command: str) -> None:
    if command.startswith("curl "):

        async def answered() -> bool:
            try:
                said = json.loads(await _shell(compose, f"{command} --silent --fail --noproxy '*'"))
            except Failed as error:
                raise AssertionError(str(error)) from error
            assert said["data"], said
            return True

        await eventually(answered, "an answer", timeout=PATIENCE, step=1)
    elif " logs -f " in command:
        assert "picker" in await _shell(compose, f"timeout {FOLLOWS} {command} || [ $? = 124 ]")
    elif "docker ps" in command and not compose.engine.own:
        return  # it names the pickers of every project of the engine
    elif "--profile monitoring" in command:
        there = [name for name in ("prometheus", "grafana") if await compose.engine.has(SERVICES[name]["image"])]
        if there:
            await _shell(compose, " ".join([command, *there]))
    else:
        said = await _shell(compose, command)
        if command.endswith(" status"):
            assert "picker" in said, said
        elif "actions.yml" in command:
            (compose.token,) = re.findall(r"CONSOLE_TOKEN=(\w+)", command)
            await compose.settled()
            await compose.drains("default/vllm-1")
        elif (scales := dict(re.findall(r"--scale (\w+)=(\d+)", command))) or command.endswith("up -d"):
            compose.scales = {"picker": 2, "collector": 2} | {name: int(number) for name, number in scales.items()}
            await compose.settled()


async def _shell(compose: Compose, command: str) -> str:
    here = {"COMPOSE_PROJECT_NAME": PROJECT, **compose.engine.environment, **compose.ports}
    literal = command.replace("localhost:8080", compose.url.removeprefix("http://"))
    shell = shlex.join(["bash", "-c", f"set -o pipefail; {literal}"])
    # With a terminal, as people have it: without one, `docker-compose run` says nothing.
    return await run(
        ["script", "--quiet", "--return", "--command", shell, "/dev/null"], cwd=ROOT, env=here, timeout=1800
    )
