"""When a supervisor starts the process of a worker again, and what it takes for an answer of it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.picker.settings.picker import PickerSettings
from services.picker.workers import worker
from services.picker.workers.worker import Unanswered, Worker
from tests.protocol.picker.stub_worker import ANSWERS
from tests.waiting import eventually


@asynccontextmanager
async def worker_that_is(id: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Worker, list[Any]]]:
    """Such a stub, and what is logged."""
    monkeypatch.setattr(worker, "MODULE", "tests.protocol.picker.stub_worker")
    made = Worker(0, PickerSettings(id=id), time.monotonic, lambda _: None)
    with capture_logs() as lines:
        running = asyncio.create_task(made.run())
        try:
            yield made, lines
        finally:
            made.stop()
            made.kill()
            await running


async def test_the_pauses_between_restarts_grow_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "INITIAL_PAUSE", 0.001)
    monkeypatch.setattr(worker, "MAX_PAUSE", 0.004)
    async with worker_that_is("hasty", monkeypatch) as (made, lines):
        await eventually(lambda: made.restarts >= 4, lambda: made)
    ended = [line for line in lines if line["event"] == "worker.ended"][:4]
    assert [line["restart_after"] for line in ended] == [0.001, 0.002, 0.004, 0.004]
    assert {line["exit_code"] for line in ended} == {3}


async def test_the_pauses_begin_anew_after_a_worker_that_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "INITIAL_PAUSE", 0.001)
    monkeypatch.setattr(worker, "LASTING", 0.0)
    async with worker_that_is("hasty", monkeypatch) as (made, lines):
        await eventually(lambda: made.restarts >= 3, lambda: made)
    assert {line["restart_after"] for line in lines if line["event"] == "worker.ended"} == {0.001}


async def test_a_worker_that_never_reports_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LOOK", 0.001)
    async with worker_that_is("silent", monkeypatch) as (made, lines):
        await eventually(lambda: made.restarts >= 1, lambda: made)
    assert [line["event"] for line in lines][:3] == ["worker.starting", "worker.hung", "worker.ended"]
    assert lines[2]["exit_code"] == -9


async def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(worker, "INITIAL_PAUSE", 0.001)
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "create_subprocess_exec", full)
        async with worker_that_is("hasty", monkeypatch) as (made, lines):
            await eventually(lambda: made.restarts >= 2, lambda: made)
    assert "Resource temporarily unavailable" in lines[0]["error"]


@pytest.mark.parametrize("id", ANSWERS)
async def test_an_answer_that_a_killed_worker_cut_short_is_none(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with worker_that_is(id, monkeypatch) as (made, _):
        await made.started()
        getting = made.get("/metrics", 60.0)
        if whole := {"length": b"a 1\n", "chunks": b"a 1\nb 2\n"}.get(id):
            assert await getting == (200, whole)
        else:
            with pytest.raises(Unanswered):
                await getting
