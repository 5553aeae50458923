"""Members are asked while somebody looks."""

import asyncio
from typing import Any

import pytest

from services.console import members
from shared.service.survey import Survey
from shared.tasks import cancel


class Pool:
    pool_token = "default_pool"


@pytest.mark.parametrize("answers", [("a", "b"), ()])
async def test_the_first_page_waits_for_the_first_answers(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[Any, ...]
) -> None:
    surveys = 0

    async def survey(*_: object) -> Survey:
        nonlocal surveys
        surveys += 1
        await asyncio.sleep(0)
        return Survey(pool="default/pool", at=0.0, leader="", members=answers)

    monkeypatch.setattr(members, "survey", survey)
    console = members.Members(None, None, Pool())  # type: ignore[arg-type]
    running = asyncio.create_task(console.run())
    assert console.statuses() == ()
    assert await console.answered() == answers
    assert await console.answered() == answers
    assert surveys == 1
    await cancel(running)
