"""A child process starts, becomes ready, takes signals, and never outlives what started it."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from pointsman.local.process import MAX_TAIL, NotReady, Process, ProcessError
from tests.waiting import eventually

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('up', flush=True)
time.sleep(600)
"""


def process(tmp_path: Path, command: list[str] = SLEEP, **options: object) -> Process:
    """A process that is ready once it has printed `up` as often as it was started."""

    async def up() -> None:
        if each_process.tail().count("up") < each_process.starts:
            raise NotReady("it hasn't said anything")

    each_process = Process("child", command, tmp_path / "logs" / "child.log", ready=up, **options)  # type: ignore[arg-type]
    return each_process


def state(pid: int | None) -> str:
    """The kernel's letter for it: S sleeps, T is stopped, Z has ended; X: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def alive(pid: int) -> bool:
    return state(pid) not in "XZ"


async def test_it_runs_when_it_is_ready_and_ends_with_the_context(tmp_path: Path) -> None:
    each = process(tmp_path)
    async with each:
        assert each.running
        assert each.tail() == ["up"]
        with pytest.raises(ProcessError, match="is already running"):
            await each.start()
        pid = each.pid
        assert pid is not None
    assert not alive(pid)
    assert each.exit_code == -signal.SIGTERM


@pytest.mark.parametrize(
    ("end", "reported"),
    [("exit(3)", "exit code 3"), ("exit(0)", "exit code 0"), ("os.kill(os.getpid(), 9)", r"signal 9 \(Killed\)")],
)
async def test_a_process_that_ends_early_is_reported_with_the_end_of_its_log(
    tmp_path: Path, end: str, reported: str
) -> None:
    command = [sys.executable, "-c", f"import os; print('no such file', flush=True); {end}"]
    with pytest.raises(ProcessError, match=rf"child ended with {reported} before it was ready(.|\n)*no such file"):
        await process(tmp_path, command).start()


async def test_a_program_that_isn_t_there_can_t_be_started(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="child can't be started"):
        await process(tmp_path, ["/nowhere/program"]).start()


async def test_a_process_whose_log_can_t_be_opened_can_t_be_started(tmp_path: Path) -> None:
    each = process(tmp_path)
    each.log.mkdir(parents=True)
    with pytest.raises(ProcessError, match=r"child can't be started: .*Is a directory"):
        await each.start()


async def test_a_process_that_doesn_t_become_ready_is_reported_with_the_reason_and_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; print('down', flush=True); time.sleep(600)"]
    each = process(tmp_path, command, ready_timeout=0.5)
    with pytest.raises(ProcessError, match=r"not ready after 0.5 s \(it hasn't said anything\)"):
        await each.start()
    assert not each.running


async def test_it_can_be_killed_and_started_again_with_the_same_log(tmp_path: Path) -> None:
    async with process(tmp_path) as each:
        assert await each.kill() == -signal.SIGKILL
        await each.start()
        assert each.running
        assert each.starts == 2
        assert each.tail() == ["up", "up"]
        before = each.pid
        await each.restart()
        assert each.running
        assert each.pid != before


async def test_a_paused_process_hangs_and_can_be_stopped(tmp_path: Path) -> None:
    async with process(tmp_path) as each:
        each.pause()
        assert each.paused
        await eventually(lambda: state(each.pid) == "T")
        assert await each.stop() == -signal.SIGTERM


async def test_one_that_ignores_sigterm_is_killed_after_the_time_out(tmp_path: Path) -> None:
    async with process(tmp_path, [sys.executable, "-c", STUBBORN]) as each:
        assert await each.stop(timeout=0.2) == -signal.SIGKILL


async def test_stopping_what_doesn_t_run_is_harmless(tmp_path: Path) -> None:
    each = process(tmp_path)
    assert await each.stop() is None
    assert await each.kill() is None
    async with each:
        pass
    assert await each.stop() == -signal.SIGTERM


async def test_its_own_children_are_killed_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; c = subprocess.Popen(['sleep', '600']);"
        "print(c.pid, flush=True); print('up', flush=True); time.sleep(600)"
    )
    async with process(tmp_path, [sys.executable, "-c", code]) as each:
        grandchild = int(each.tail()[0])
        await each.kill()
        await eventually(lambda: not alive(grandchild))


async def test_it_is_stopped_when_starting_it_is_cancelled(tmp_path: Path) -> None:
    each = process(tmp_path, [sys.executable, "-c", "import time; time.sleep(600)"])
    starting = asyncio.create_task(each.start())
    await eventually(lambda: bool(each.running))
    pid = each.pid
    assert pid is not None
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not alive(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_it_dies_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    code = f"""
import asyncio
from pathlib import Path
from pointsman.local.process import Process

async def main():
    child = await Process("child", ["sleep", "600"], Path({str(tmp_path)!r}) / "child.log").start()
    print(child.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    line = b""
    while not line.strip().isdigit():  # before it comes a log line
        line = await parent.stdout.readline()
        assert line, "the parent has ended"
    child = int(line)
    assert alive(child)
    os.kill(parent.pid, number)
    await parent.wait()
    await eventually(lambda: not alive(child))


def test_of_a_large_log_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 10 * MAX_TAIL + b"\n\xffone\ntwo")
    process = Process("p", ["true"], log)
    assert process.tail(2) == ["\ufffdone", "two"]
    assert len(process.tail(3)[0]) < MAX_TAIL
