"""The demo as users run it, as a process: how it ends, what it says, and that it leaves nothing running."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest_asyncio

from tests.protocol.commands import ROOT, Start, commands, pointsman
from tests.waiting import TIMEOUT, eventually


@pytest_asyncio.fixture
async def demo(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts demos."""
    async with commands(tmp_path) as start:
        yield lambda *flags: start(*pointsman("demo", "--plain", *flags))


async def test_everything_happens_and_no_request_fails(demo: Start, tmp_path: Path) -> None:
    run = await demo("--seconds", "10")
    assert await run.end() == 0, run.output
    assert not run.alive
    assert run.lines[-1].endswith("nothing is left running.")
    assert "No request failed." in run.lines
    assert "curl http://127.0.0.1:" in run.output
    found = re.search(r"requests +(\d+) sent, (\d+) succeeded, 0 failed$", run.output, re.MULTILINE)
    assert found, run.output
    assert found[1] == found[2]
    assert int(found[1]) > 0
    for happened in (
        r"SIGTERM to picker-1",
        r"picker-1 stopped after .* exit code 0; picker-2 decides alone",
        r"picker-1 is back",
        r"SIGKILL to collector-\d, which scrapes",
        r"collector-\d has taken over",
        r"collector-\d is back",
        r"SIGKILL to model-\d, with \d+ requests? in flight",
        r"model-\d is back after .* the pickers know its metrics",
        r"the pickers agree that nothing is in flight",
    ):
        assert re.search(happened, run.output), f"{happened} in\n{run.output}"
    assert not re.search(r"^\d\d:\d\d !", run.output, re.MULTILINE)
    assert not (tmp_path / ".run").exists()


async def test_a_pool_of_prefill_and_decode_servers_outlives_them_one_by_one(demo: Start) -> None:
    run = await demo("--pd", "--seconds", "10", "--rate", "8")
    assert await run.end() == 0, run.output
    assert not run.alive
    for happened in (
        r"SIGKILL to prefill-1",
        r"SIGKILL to prefill-2",
        r"Without prefill-1 and prefill-2, decode servers compute the prompts",
        r"prefill-1 and prefill-2 are back and compute prompts again",
        r"SIGKILL to decode-\d, with \d+ requests? in flight. Pickers name 2 servers",
        r"No request failed\.$",
    ):
        assert re.search(happened, run.output, re.MULTILINE), f"{happened} in\n{run.output}"


async def test_a_system_that_answers_wrongly_makes_it_fail(demo: Start) -> None:
    """Interrupted, also while a process is stopping, it ends with the summary."""
    run = await demo("--rate", "10")
    await run.until(r"Everything is up\.")
    async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client:
        for url in await run.servers():
            answer = await client.put(f"{url}/control/faults", json={"inference": {"kind": "fail", "status": 500}})
            answer.raise_for_status()
    await run.until(r"A request failed: status 500 from model-\d")
    await run.until(r"SIGTERM to picker-1")
    run.process.send_signal(signal.SIGINT)
    assert await run.end() == 1, run.output
    assert not run.alive
    assert any(line.startswith("Summary of ") for line in run.lines)
    assert "Traceback" not in run.output
    assert re.search(r"\d+ requests FAILED\.", run.output)
    [kept] = run.directory.glob(".run/demo-*")
    assert run.lines[-1] == f"Files and logs are in {kept}"
    assert (kept / "envoy.log").exists()


async def test_a_process_that_ends_by_itself_ends_it_with_that_process_s_log(demo: Start) -> None:
    run = await demo("--rate", "5")
    await run.until(r"Everything is up\.")
    [envoy] = [pid for pid, command in run.alive.items() if "--disable-hot-restart" in command]
    os.kill(envoy, signal.SIGKILL)
    assert await run.end() == 1
    assert not run.alive
    assert "pointsman demo: envoy ended by itself" in run.output


async def test_an_interrupt_during_the_start_ends_it(demo: Start, tmp_path: Path) -> None:
    run = await demo()
    await run.until(r"  nats ")
    run.process.send_signal(signal.SIGINT)
    assert await run.end() == 130, run.output
    assert not run.alive
    assert "Interrupted during the start. Everything is stopped again." in run.lines
    assert "Traceback" not in run.output
    assert not (tmp_path / ".run").exists()


async def test_when_it_is_killed_itself_nothing_is_left(demo: Start) -> None:
    run = await demo()
    await run.until(r"  envoy ")
    assert len(run.alive) >= 11
    run.process.kill()
    await run.end()
    await eventually(lambda: not run.alive, lambda: run.alive)


async def test_it_takes_another_port_than_a_taken_one_and_a_second_interrupt_kills_everything(demo: Start) -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # taken already is as good
            stack.enter_context(socket.create_server(("127.0.0.1", 8080)))
        run = await demo()
        line = await run.until(r"another port than usual")
        assert "port 8080 of 127.0.0.1, wanted for Envoy's listener, is taken by" in line
        await run.until(r"Everything is up\.")
    run.process.send_signal(signal.SIGINT)
    await run.until(r"Interrupted; stopping in order")
    run.process.send_signal(signal.SIGINT)
    assert await run.end() == 130
    assert "Killed everything" in run.output
    await eventually(lambda: not run.alive, lambda: run.alive)


async def test_a_program_that_is_missing_is_named_with_what_installs_it(demo: Start, tmp_path: Path) -> None:
    """A Python without the programs beside it, and none on PATH."""
    code = """
import sys
from pointsman.local import binaries
binaries.shutil.which = lambda name: None
sys.executable = "/nowhere/python"
from pointsman.demo.app import main
sys.exit(main(["--plain"]))
"""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    output, _ = await process.communicate()
    assert process.returncode == 1
    assert b"pip install 'pointsman[local]'" in output
    assert b"Traceback" not in output
