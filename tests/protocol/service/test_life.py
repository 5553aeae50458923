"""A tier's process from its first to its last line: settings, readiness, signals, drain, crashes, exit codes."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.waiting import TIMEOUT

ROOT = Path(__file__).parents[3]


class TinyProcess:
    """The tiny tier as a child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.steps: list[str] = []
        """Its lines on stdout."""
        self.logs: list[dict[str, Any]] = []
        self.errors: list[str] = []
        """Lines on stderr that are no log entries."""
        self.port = 0
        self._news = asyncio.Condition()
        self._readers = [asyncio.create_task(self._read_steps()), asyncio.create_task(self._read_logs())]

    async def _read_steps(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._news:
                self.steps.append(line.decode().strip())
                self._news.notify_all()

    async def _read_logs(self) -> None:
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            line = raw.decode().rstrip("\n")
            if not line.startswith("{"):
                self.errors.append(line)
                continue
            entry = json.loads(line)
            if entry["event"] == "service.starting":
                self.port = entry["admin_port"]
            async with self._news:
                self.logs.append(entry)
                self._news.notify_all()

    async def until(self, step: str) -> None:
        async with asyncio.timeout(TIMEOUT), self._news:
            await self._news.wait_for(lambda: step in self.steps)

    async def logged(self, event: str) -> dict[str, Any]:
        """The first entry of that name."""
        async with asyncio.timeout(TIMEOUT), self._news:
            await self._news.wait_for(lambda: any(line["event"] == event for line in self.logs))
            return next(line for line in self.logs if line["event"] == event)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=TIMEOUT
        ) as client:
            return await client.get(path, headers=headers)

    async def post(self, path: str) -> None:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=TIMEOUT
        ) as client:
            (await client.post(path)).raise_for_status()

    async def ended(self) -> int:
        """The exit code, once all that was written has been read."""
        async with asyncio.timeout(TIMEOUT):
            code = await self.process.wait()
            await asyncio.gather(*self._readers)
        return code


@contextlib.asynccontextmanager
async def tiny(*flags: str, **environ: str) -> AsyncIterator[TinyProcess]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.protocol.service.tier", "--admin-host=127.0.0.1", "--admin-port=0", *flags),
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")} | environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    child = TinyProcess(process)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await child.ended()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_then_cancels_the_tasks_then_closes(number: signal.Signals) -> None:
    async with tiny() as child:
        await child.logged("service.started")
        child.signal(number)
        assert await child.ended() == 0
        assert child.steps == ["made", "start", "started", "drain", "drained", "work cancelled", "close", "closed"]
        events = [line["event"] for line in child.logs]
        assert events == [
            *("service.starting", "service.started", "service.signal", "service.draining", "service.stopped")
        ]
        assert (await child.logged("service.stopped"))["exit_code"] == 0
        assert child.errors == []


async def test_a_draining_process_is_not_ready_and_answers_until_the_end() -> None:
    async with tiny("--drain-takes", "60") as child:
        await child.logged("service.started")
        assert (await child.get("/readyz")).json() == {"ready": True, "reasons": {}, "notes": {}, "configurations": []}
        child.signal(signal.SIGTERM)
        await child.until("drain")
        answer = await child.get("/readyz")
        assert (answer.status_code, answer.json()["reasons"]) == (503, {"process": "the process is stopping"})
        assert (await child.get("/healthz")).status_code == 200
        assert (await child.get("/metrics")).status_code == 200


async def test_a_page_of_another_origin_cant_read_a_process_of_this_machine() -> None:
    async with tiny("--admin-hostnames", "metrics.example") as child:
        await child.logged("service.started")
        for host, status in (("evil.example", 403), ("metrics.example", 200), ("localhost", 200)):
            assert (await child.get("/debug/state", host=host)).status_code == status


async def test_a_drain_and_a_close_that_take_too_long_are_cut_off() -> None:
    flags = ("--drain-takes", "60", "--close-takes", "60", "--drain-timeout", "100ms", "--close-timeout", "100ms")
    async with tiny(*flags) as child:
        await child.logged("service.started")
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0
        assert [line["step"] for line in child.logs if line["event"] == "service.timeout"] == ["drain", "close"]
        assert child.steps[3:] == ["drain", "work cancelled", "close"]


@pytest.mark.parametrize(
    ("what", "late", "left"),
    [
        ("start", ["start"], ["start"]),
        ("task", ["cancel"], ["work"]),
        ("drain", ["drain"], ["drain"]),
        ("close", ["close"], ["close"]),
        ("thread", [], []),
    ],
)
async def test_what_goes_on_after_it_is_cancelled_does_not_keep_the_process(
    what: str, late: list[str], left: list[str]
) -> None:
    async with tiny("--goes-on", what, "--drain-timeout", "500ms", "--close-timeout", "500ms") as child:
        await child.until("start")
        await child.logged("service.started" if what != "start" else "service.starting")
        if what not in ("drain", "close"):
            await child.until(f"{what} goes on")
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0
        assert [line["step"] for line in child.logs if line["event"] == "service.timeout"] == late
        assert [line["tasks"] for line in child.logs if line["event"] == "tasks.left"] == [[name] for name in left]
        assert "close" in child.steps
        assert "service.stopped" in [line["event"] for line in child.logs]


async def test_steps_that_fail_are_logged_and_the_next_ones_follow() -> None:
    async with tiny("--drain-fails", "--close-fails") as child:
        await child.logged("service.started")
        child.signal(signal.SIGTERM)
        assert await child.ended() == 70
        failed = [line for line in child.logs if line["event"] == "service.failed"]
        assert [line["step"] for line in failed] == ["drain", "close"]
        assert "OSError: no drain" in failed[0]["exception"]
        assert (await child.logged("service.stopped"))["exit_code"] == 70


async def test_a_second_signal_ends_the_process_at_once() -> None:
    async with tiny("--drain-takes", "60") as child:
        await child.logged("service.started")
        child.signal(signal.SIGTERM)
        await child.until("drain")
        child.signal(signal.SIGTERM)
        assert await child.ended() == 128 + signal.SIGTERM
        assert "closed" not in child.steps


async def test_a_signal_is_heard_while_the_process_starts() -> None:
    async with tiny("--start-does", "wait") as child:
        await child.until("start")
        answer = await child.get("/readyz")
        assert (answer.status_code, answer.json()["reasons"]) == (503, {"process": "the process is starting"})
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0
        assert child.steps == ["made", "start", "start given up", "close", "closed"]


async def test_a_start_that_refuses_what_it_was_given_says_so_and_exits_with_1_however_it_closes() -> None:
    async with tiny("--start-does", "refuse", "--close-fails") as child:
        assert await child.ended() == 1
        assert child.errors == ["pool.yaml: pool: is odd", "pool.yaml: colour: is red"]
        assert child.steps == ["made", "start", "close"]
        assert (await child.logged("service.stopped"))["exit_code"] == 1


async def test_a_start_that_fails_is_logged_and_exits_with_70() -> None:
    async with tiny("--start-does", "fail") as child:
        assert await child.ended() == 70
        assert "OSError: the disk is gone" in (await child.logged("service.crashed"))["exception"]
        assert (await child.logged("service.stopped"))["exit_code"] == 70
        assert child.errors == []


async def test_a_task_that_crashes_is_counted_and_an_essential_one_stops_the_process_in_order_with_70() -> None:
    async with tiny() as child:
        await child.logged("service.started")
        page = (await child.get("/metrics")).text
        assert 'pointsman_task_crashes_total{task="work"} 0.0' in page
        assert 'pointsman_task_crashes_total{task="admin"} 0.0' in page
        await child.post("/crash/other")
        crash = await child.logged("task.crashed")
        assert (crash["task"], crash["essential"]) == ("other-work", False)
        assert "RuntimeError: a bug" in crash["exception"]
        assert 'pointsman_task_crashes_total{task="other-work"} 1.0' in (await child.get("/metrics")).text
        assert (await child.get("/readyz")).status_code == 200
        await child.post("/crash/essential")
        assert await child.ended() == 70
        assert child.steps[-2:] == ["close", "closed"]


async def test_bad_settings_are_all_told_and_nothing_is_started() -> None:
    async with tiny("--drain-timeout", "-1s", "--zebra", POINTSMAN_LOG_LEVEL="loud") as child:
        assert await child.ended() == 1
        assert child.steps == []
        assert child.logs == []
        assert [line.split(":")[0] for line in child.errors] == ["--zebra", "POINTSMAN_LOG_LEVEL", "--drain-timeout"]


async def test_a_taken_admin_port_is_named_and_nothing_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with tiny(f"--admin-port={port}") as child:
            assert await child.ended() == 1
            assert child.errors == [f"--admin-port: 127.0.0.1:{port} is taken by another process; 0 takes a free port"]
            assert child.steps == ["made"]


async def test_it_starts_with_warnings_of_odd_variables_and_an_id_that_tells_where_it_runs() -> None:
    service = {"POINTSMAN_ADMIN_PORT": "tcp://10.0.0.1:9090"}  # as Kubernetes sets for a Service "pointsman-admin"
    async with tiny(POINTSMAN_ADMIN_PROT="9091", **service) as child:
        started = await child.logged("service.started")
        unknown = await child.logged("settings.unknown_variable")
        assert (unknown["variable"], unknown["did_you_mean"]) == ("POINTSMAN_ADMIN_PROT", "POINTSMAN_ADMIN_PORT")
        ignored = await child.logged("settings.service_variable_ignored")
        assert {ignored["variable"]: ignored["value"]} == service
        assert {unknown["level"], ignored["level"]} == {"warning"}
        assert started["id"].startswith(socket.gethostname().split(".")[0] + "-")
        assert (await child.get("/debug/state")).json()["id"] == started["id"]


async def test_the_state_says_who_it_is_and_keeps_secrets() -> None:
    secrets = {"POINTSMAN_NATS_USER": "u", "POINTSMAN_NATS_PASSWORD": "hunter2"}
    async with tiny(POINTSMAN_ID="tiny-1", **secrets) as child:
        await child.logged("service.started")
        answer = await child.get("/debug/state")
        state = answer.json()
        assert (state["id"], state["tier"], state["nothing"]) == ("tiny-1", "tiny", None)
        assert "hunter" not in answer.text
        assert "hunter" not in (await child.get("/metrics")).text
        assert {(line["tier"], line["id"]) for line in child.logs} == {("tiny", "tiny-1")}
