"""`pointsman up` as users run it, in front of two model servers."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from pointsman.local.services import Address, Simulator
from tests.nats import free_port
from tests.protocol.commands import Run, Start, commands, pointsman
from tests.waiting import eventually

USUAL_PORTS = (4222, 8090, 9901, 9902, 9002, 9003, 9004, 9005, 9090, 9091, 9092, 9093, 9094)


@pytest_asyncio.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with commands(tmp_path) as start:
        yield start


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[str]]:
    """URLs of model servers that run already."""
    async with AsyncExitStack() as stack:
        urls = []
        for number in (1, 2):
            server = Simulator(f"gpu-{number}", tmp_path / "servers", Address(free_port()), {}, {"models": "base"})
            urls.append((await stack.enter_async_context(server)).url)
        yield urls


async def answers(port: int, within: float = 5.0) -> str:
    """Which server answers a request to that port; empty for none, or for another answer."""
    async with httpx.AsyncClient(timeout=within, trust_env=False) as client:
        try:
            body = {"model": "base", "prompt": "Hello", "max_tokens": 2}
            response = await client.post(f"http://127.0.0.1:{port}/v1/completions", json=body)
        except httpx.HTTPError:
            return ""
    return response.headers.get("x-simulator-endpoint", "") if response.status_code == 200 else ""


def pid_of(run: Run, words: str) -> int:
    """Of the process that the command has started with these words; the others don't have them."""
    [pid] = [pid for pid, command in run.alive.items() if words in command]
    return pid


async def test_requests_reach_the_servers_and_what_dies_starts_again(
    start: Start, servers: list[str], tmp_path: Path
) -> None:
    port = free_port()
    run = await start(*pointsman("up", *servers, "--port", str(port), "--plain"))
    await run.until(rf"Send requests to http://127\.0\.0\.1:{port}")
    assert await eventually(lambda: answers(port)) in ("gpu-1", "gpu-2")
    for name, words in (("picker-1", "--id picker-1"), ("nats", "nats-server"), ("envoy", "envoy --config")):
        killed = pid_of(run, words)
        os.kill(killed, signal.SIGKILL)
        await run.until(rf"^{name} ended with signal 9")
        await run.until(rf"^{name} is up again")
        assert pid_of(run, words) != killed
        assert await eventually(lambda: answers(port))
    run.process.send_signal(signal.SIGTERM)
    assert await run.end() == 0, run.output
    assert not run.alive
    assert run.lines[-1].endswith("nothing is left running.")
    assert "Traceback" not in run.output
    assert not [line for line in run.lines if "| {" in line], "a process logs JSON"
    assert not (tmp_path / ".run").exists()


async def test_an_endpoints_file_is_followed_and_files_stay_where_they_were_asked_for(
    start: Start, servers: list[str], tmp_path: Path
) -> None:
    first, second = (url.rpartition(":")[2] for url in servers)
    (tmp_path / "pool.yaml").write_text(f"endpoints: [{{name: a, address: 127.0.0.1, port: {first}}}]")
    port = free_port()
    flags = ("--endpoints-file", "pool.yaml", "--port", str(port), "--pickers", "1", "--directory", "files")
    run = await start(*pointsman("up", *flags))
    await run.until(r"Send requests to")
    assert await eventually(lambda: answers(port)) == "gpu-1"
    (tmp_path / "pool.yaml").write_text(f"endpoints: [{{name: b, address: 127.0.0.1, port: {second}}}]")

    async def moved() -> bool:
        return await answers(port) == "gpu-2"

    await eventually(moved)
    run.process.send_signal(signal.SIGINT)
    assert await run.end() == 0, run.output
    assert not run.alive
    assert run.lines[-1] == f"Files and logs are in {tmp_path / 'files'}"
    assert (tmp_path / "files" / "envoy.log").exists()


async def test_the_console_drains_endpoints_for_those_who_have_the_token(
    start: Start, servers: list[str], tmp_path: Path
) -> None:
    command = pointsman("up", *servers, "--port", str(free_port()), "--pickers", "1", "--allow-actions")
    run = await start(*command, "--directory", "files")
    [page] = re.findall(r"in a browser: (\S+)", await run.until(r"in a browser: "))
    [token] = re.findall(r"token: (\S+)", await run.until(r"It asks for a token: "))
    id = f"default/{servers[0].removeprefix('http://')}"
    async with httpx.AsyncClient(base_url=page, timeout=60.0, trust_env=False) as client:
        assert (await client.post("/api/pool/drain", json={"endpoint": id})).status_code == 401
        client.headers["authorization"] = f"Bearer {token}"

        async def drained() -> bool:
            return (await client.post("/api/pool/drain", json={"endpoint": id})).status_code == 200

        await eventually(drained)
    assert "drain: true" in (tmp_path / "files" / "endpoints.yaml").read_text()
    assert token not in " ".join(run.alive.values())
    run.process.send_signal(signal.SIGTERM)
    assert await run.end() == 0, run.output


async def test_a_taken_port_is_named_and_nothing_runs(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = await start(*pointsman("up", "http://127.0.0.1:1", "--port", str(port)))
        assert await run.end() == 1
    assert f"pointsman up: port {port} of 127.0.0.1, wanted for Envoy's listener, is taken by" in run.output
    assert "Traceback" not in run.output
    assert not run.alive


async def test_the_script_of_a_dry_run_starts_the_same_system(start: Start, servers: list[str], tmp_path: Path) -> None:
    port, files = free_port(), tmp_path / "files"
    command = pointsman("up", *servers, "--port", str(port), "--dry-run", "--directory", str(files))
    dry = await start(*command)
    assert await dry.end() == 0, dry.output
    assert not files.exists()
    free = {str(usual): str(free_port()) for usual in USUAL_PORTS}
    script = re.sub(rf"\b({'|'.join(free)})\b", lambda found: free[found[0]], dry.output + "\n")
    (tmp_path / "up.sh").write_text(script)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = await start("sh", "up.sh", "--files", PATH=path)
    assert await run.end() == 0
    assert {file.name for file in files.iterdir()} == {"endpoints.yaml", "config.yaml", "nats.conf", "envoy.yaml"}
    run = await start("sh", "up.sh", PATH=path)
    assert await eventually(lambda: answers(port)) in ("gpu-1", "gpu-2")
    run.process.send_signal(signal.SIGTERM)
    await run.end()
    assert not run.alive


@pytest.mark.parametrize("flag", ["--help", "--pickers=0"])
def test_what_it_says_of_flags(flag: str) -> None:
    done = subprocess.run(pointsman("up", flag), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "--pickers" in done.stdout + done.stderr) == (0 if flag == "--help" else 1, True)
