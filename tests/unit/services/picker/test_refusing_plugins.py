"""Plugins that declare that no request goes on without them."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from services.picker.request import Refusal, Request
from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle, PrefixMatch
from services.picker.scheduling.interfaces import Admitter, PreRequest, Producer
from services.picker.scheduling.scorers.prefix_cache import PrefixCacheScorer
from services.picker.state.layout import Rows
from shared.plugin import Plugin
from tests.unit.services.picker.extproc.proxy import read
from tests.unit.services.picker.handler import refused
from tests.unit.services.picker.hooked import World, boom
from tests.waiting import eventually

Does = Callable[..., Any]


class Blocks(Producer):
    TYPE = "blocks"
    PRODUCES = (PREFIX_MATCH,)
    ON_FAILURE = "refuse"
    does: ClassVar[Does]

    def produce(self, cycle: Cycle) -> None:
        cycle.put(PREFIX_MATCH, type(self).does())


class Tokenizer(Blocks):
    """One that needs time first."""

    TYPE = "slow-tokenizer"
    BUDGET = 0.01
    prepares: ClassVar[Does]

    def prepare(self, request: Request) -> Awaitable[Any] | None:
        return type(self).prepares()  # type: ignore[no-any-return]


class Doorman(Admitter):
    TYPE = "doorman"
    ON_FAILURE = "refuse"
    does: ClassVar[Does]

    def admit(self, cycle: Cycle, rows: Rows) -> Refusal | None:
        return type(self).does()  # type: ignore[no-any-return]


class Marker(PreRequest):
    TYPE = "marker"
    ON_FAILURE = "refuse"
    does: ClassVar[Does]

    def pre_request(self, cycle: Cycle, picked: tuple[int, ...]) -> Mapping[str, str] | Refusal:
        return type(self).does()  # type: ignore[no-any-return]


class Witness(Admitter):
    """Whether admitters were asked."""

    TYPE = "witness"
    asked: ClassVar[int]

    def admit(self, cycle: Cycle, rows: Rows) -> Refusal | None:
        type(self).asked += 1
        return None


async def never() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise KeyError("vocabulary")


def too_short() -> PrefixMatch:
    return PrefixMatch(np.zeros(1), 4, 64)


def check_refused(world: World, answers: list[Any], plugin: str, role: str) -> None:
    answer = refused(answers)
    message = f"the {role} '{plugin}' failed; no request goes on without it"
    assert (answer.status, json.loads(answer.body)["error"]["message"]) == (503, message)
    assert answer.set_headers["retry-after"] == "1"
    assert answer.set_headers["x-llm-d-request-dropped-reason"] == "rejected-plugin-failure"
    assert (world.failures, world.counted) == ([(plugin, role)], [plugin])
    assert world.load == {}


@pytest.mark.parametrize(
    ("kind", "role", "does"),
    [
        (Blocks, "data producer", boom),
        (Blocks, "data producer", too_short),
        (Doorman, "admitter", boom),
        (Doorman, "admitter", lambda: True),
        (Marker, "pre-request plugin", boom),
        (Marker, "pre-request plugin", lambda: {"x-split": "a\r\nb: c"}),
    ],
)
def test_a_request_is_refused_when_a_plugin_fails_without_which_none_goes_on(kind: Any, role: str, does: Does) -> None:
    kind.does = does
    world = World(kind, PrefixCacheScorer)
    stream, answers = world.ask()
    check_refused(world, answers, kind.TYPE, role)
    stream.end()


@pytest.mark.parametrize("prepares", [never, fails, boom], ids=["late", "fails", "raises"])
async def test_a_request_is_refused_when_such_a_producer_is_late_or_fails_to_prepare(prepares: Does) -> None:
    Tokenizer.prepares, Witness.asked = prepares, 0
    world = World(Tokenizer, Witness, PrefixCacheScorer)
    woken = asyncio.Event()
    stream, _ = world.ask()
    stream.wake = woken.set
    await eventually(woken.is_set, "the preparation ends")
    check_refused(world, [read(answer) for answer in stream.outbox() if answer], "slow-tokenizer", "data producer")
    assert Witness.asked == 0
    stream.end()


@pytest.mark.parametrize(
    ("kind", "does"),
    [(Blocks, lambda: PrefixMatch(np.zeros(2), 4, 64)), (Doorman, lambda: None), (Marker, dict)],
)
def test_a_plugin_that_works_refuses_nothing(kind: type[Plugin], does: Does) -> None:
    kind.does = does  # type: ignore[attr-defined]
    world = World(kind, PrefixCacheScorer)
    world.ask()
    assert world.load == {"a1": 1}
