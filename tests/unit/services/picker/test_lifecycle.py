"""Requests that wait before they are scheduled, and the plugins that act before and after scheduling."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from services.picker.admin.decisions import DecisionRing
from services.picker.decision import Decision
from services.picker.extproc.messages import BodyMode
from services.picker.metadata import DESTINATION
from services.picker.pipeline import build
from services.picker.request import Refusal, Request
from services.picker.request_stream import RequestStream
from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle, PrefixMatch
from services.picker.scheduling.interfaces import Admitter, PreRequest, Producer, ProfileHandler
from services.picker.scheduling.record import Plan, ProfileRun, RolePlan
from services.picker.state.layout import Rows
from shared.attributes import WAITING_QUEUE_SIZE
from shared.config import load
from shared.plugin import Registry
from tests.unit.services.picker.extproc.proxy import (
    FULL_DUPLEX,
    LEAN,
    Answer,
    body,
    headers,
    read,
    response_headers,
)
from tests.unit.services.picker.handler import PickerUnderTest, destinations, refused
from tests.unit.services.picker.world import pool, report
from tests.waiting import eventually

PATH = [(":method", "POST"), (":path", "/v1/completions"), ("x-request-id", "mine")]
BOTH = pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX])


class Tokenizer(Producer):
    """Waits for a future of the test, and says that the third endpoint has as many blocks as it gives."""

    TYPE = "slow-tokenizer"
    PRODUCES = (PREFIX_MATCH,)
    prepares: ClassVar[Callable[[Request], Awaitable[Any] | None]]

    def prepare(self, request: Request) -> Awaitable[Any] | None:
        return type(self).prepares(request)

    def produce(self, cycle: Cycle) -> None:
        cycle.put(PREFIX_MATCH, PrefixMatch(np.array([0.0, 0.0, cycle.prepared.get(self, 0.0)]), 4, 64))


class Hasty(Tokenizer):
    TYPE = "hasty"
    BUDGET = 0.01


class Doorman(Admitter):
    TYPE = "doorman"
    admits: ClassVar[Callable[[Cycle, Rows], Refusal | None]]

    def admit(self, cycle: Cycle, rows: Rows) -> Refusal | None:
        return type(self).admits(cycle, rows)


class Marker(PreRequest):
    TYPE = "marker"
    marks: ClassVar[Callable[[Cycle, tuple[int, ...]], Any]]

    def pre_request(self, cycle: Cycle, picked: tuple[int, ...]) -> Mapping[str, str] | Refusal:
        return type(self).marks(cycle, picked)  # type: ignore[no-any-return]


REGISTRY = Registry([*Registry.installed(), Tokenizer, Hasty, Doorman, Marker])


class World(PickerUnderTest):
    """A picker of three endpoints, of which a1 has the shortest queue, with other plugins."""

    def __init__(self, *plugins: str, scorers: str = "queue-scorer prefix-cache-scorer") -> None:
        view = pool("a1", "a2", "a3")
        report(view, {WAITING_QUEUE_SIZE: [0, 1, 2]})
        super().__init__(view)
        types = "".join(f"- type: {each}\n" for each in (*scorers.split(), *plugins))
        document = f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n{types}"
        document += "schedulingProfiles:\n- name: default\n  plugins:\n"
        document += "  - {pluginRef: queue-scorer, weight: 1}\n  - {pluginRef: prefix-cache-scorer, weight: 3}\n"
        self.handler.pipeline = build(load(document, REGISTRY), np.random.default_rng(1), lambda: 0.0)
        self.ring: DecisionRing
        self.woken = 0

    def ask(self, modes: tuple[BodyMode, BodyMode] = LEAN, size: int = 100) -> tuple[RequestStream, list[Answer]]:
        """A request up to the end of its body, and what is answered by then."""
        text = b'{"model": "m", "prompt": "%s"}' % (b"x" * size)
        stream = RequestStream(self.handler)
        stream.wake = self._wake
        return stream, self.say(stream, headers(PATH, modes=modes), body(text, end=True))

    def _wake(self) -> None:
        self.woken += 1

    @property
    def decision(self) -> Decision:
        (found,) = self.ring.of_request("mine", 10)
        return found

    def is_calm(self) -> bool:
        return (self.handler.open, self.handler.budget.used, self.load) == (0, 0, {})


def outbox(stream: RequestStream) -> list[Answer]:
    return [read(answer) for answer in stream.outbox() if answer]


async def resumed(world: World, times: int = 1) -> None:
    await eventually(lambda: world.woken == times, "woken")


@BOTH
@pytest.mark.parametrize("size", [100, 2**21], ids=["small", "large"])
async def test_a_request_waits_for_what_producers_prepare(modes: tuple[BodyMode, BodyMode], size: int) -> None:
    world, blocks = World("slow-tokenizer"), asyncio.get_running_loop().create_future()
    world.handler.limits = world.handler.limits.__class__(request_body=2**22)
    Tokenizer.prepares = lambda _: blocks
    stream, answers = world.ask(modes, size)
    assert stream.waiting
    assert not outbox(stream)
    assert not any(answer.set_headers for answer in answers)
    assert (world.load, world.ring.of_request("mine", 10)) == ({}, [])
    world.now += 0.25
    blocks.set_result(4.0)
    await resumed(world)
    assert destinations(outbox(stream)) == "10.0.0.3:8000"
    assert world.load == {"a3": 1}
    assert world.decision.summary()["waited_seconds"] == 0.25
    world.say(stream, response_headers())
    stream.end()
    assert world.is_calm()


async def test_endpoints_and_metrics_are_those_of_the_moment_when_it_is_scheduled() -> None:
    world, blocks = World("slow-tokenizer"), asyncio.get_running_loop().create_future()
    Tokenizer.prepares = lambda _: blocks
    stream, _ = world.ask()
    world.now += 0.1
    report(world.view, {WAITING_QUEUE_SIZE: [9, 0, 9]}, now=world.now)
    blocks.set_result(0.0)
    await resumed(world)
    assert destinations(outbox(stream)) == "10.0.0.2:8000"


async def test_a_request_that_will_be_refused_waits_for_nobody() -> None:
    world = World("slow-tokenizer")
    Tokenizer.prepares = lambda _: never()
    stream = RequestStream(world.handler)
    answers = world.say(stream, headers(PATH, modes=LEAN), body(b'{"prompt": "no model"}', end=True))
    assert refused(answers).status == 400
    assert not stream.waiting


async def test_the_prompt_of_a_waiting_request_counts_as_its_body_does() -> None:
    world = World("slow-tokenizer")
    Tokenizer.prepares = lambda _: never()
    stream, _ = world.ask(size=1000)
    assert world.handler.budget.used > 2000
    stream.end()
    assert world.is_calm()


async def never() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise KeyError("vocabulary")


def raises(_: Request) -> None:
    raise KeyError("vocabulary")


@pytest.mark.parametrize(
    ("producer", "prepares", "error"),
    [
        ("hasty", lambda _: never(), "TimeoutError: it wasn't ready within 0.01 s"),
        ("slow-tokenizer", lambda _: fails(), "KeyError: 'vocabulary'"),
        ("slow-tokenizer", raises, "KeyError: 'vocabulary'"),
    ],
    ids=["late", "fails", "raises"],
)
async def test_a_preparation_that_fails_costs_only_its_products(producer: str, prepares: Any, error: str) -> None:
    world = World(producer)
    Tokenizer.prepares = prepares
    stream, _ = world.ask()
    await resumed(world)
    assert destinations(outbox(stream)) == "10.0.0.1:8000"
    assert world.decision.summary()["plugin_failures"] == [
        {"plugin": producer, "role": "data producer", "error": error}
    ]


async def test_a_producer_that_needs_no_time_for_a_request_delays_it_by_a_turn_only() -> None:
    world = World("slow-tokenizer")
    Tokenizer.prepares = lambda _: None
    stream, _ = world.ask()
    await resumed(world)
    assert destinations(outbox(stream)) == "10.0.0.1:8000"


@pytest.mark.parametrize("by", ["the stream's end", "an answer of the proxy"])
async def test_a_request_that_ends_while_it_waits_leaves_nothing(by: str) -> None:
    world, blocks = World("slow-tokenizer"), asyncio.get_running_loop().create_future()
    Tokenizer.prepares = lambda _: blocks
    stream, _ = world.ask()
    await asyncio.sleep(0)
    if by == "an answer of the proxy":
        world.say(stream, response_headers(504))
        assert not stream.waiting
        await eventually(blocks.cancelled, "the preparation ends")
    stream.end()
    assert not stream.waiting
    await eventually(blocks.cancelled, "the preparation ends")
    assert (world.woken, world.ring.of_request("mine", 10)) == (0, [])
    assert world.is_calm()


async def test_an_error_of_the_picker_reaches_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("slow-tokenizer")
    Tokenizer.prepares = lambda _: None
    stream, _ = world.ask()
    monkeypatch.setattr(world.handler.pipeline, "director", None)
    await resumed(world)
    with pytest.raises(AttributeError):
        outbox(stream)
    stream.end()
    assert world.is_calm()


async def test_a_configuration_that_changes_meanwhile_schedules_the_request() -> None:
    world, blocks = World("slow-tokenizer"), asyncio.get_running_loop().create_future()
    Tokenizer.prepares = lambda _: blocks
    stream, _ = world.ask()
    text = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"
    world.handler.pipeline = build(load(text, REGISTRY), np.random.default_rng(1), lambda: 0.0)
    blocks.set_result(4.0)
    await resumed(world)
    assert destinations(outbox(stream)) == "10.0.0.1:8000"


# Admitters and pre-request plugins

FULL = Refusal(status=429, message="full", reason="rejected-saturated", retry_after=3)


def boom(*_: Any) -> Any:
    raise KeyError("lists")


def test_an_admitter_refuses_with_its_own_answer() -> None:
    seen = []

    def admits(cycle: Cycle, rows: Rows) -> Refusal | None:
        seen.append((cycle.get(PREFIX_MATCH) is not None, rows.tolist()))
        return FULL

    Doorman.admits = admits
    world = World("doorman")
    _, answers = world.ask()
    assert refused(answers).status == 429
    assert seen == [(True, [0, 1, 2])], "after the producers, with all candidates"
    assert world.decision.summary()["refused"] == {"status": 429, "message": "full", "reason": "rejected-saturated"}
    assert world.load == {}


@pytest.mark.parametrize(
    ("admits", "failures"),
    [
        (lambda *_: None, []),
        (boom, ["admitter"]),
        (lambda *_: True, ["admitter"]),
        (lambda *_: Refusal(status=700, message=""), ["admitter"]),
    ],
    ids=["admits", "raises", "returns no refusal", "returns an impossible one"],
)
def test_a_request_goes_on_when_an_admitter_admits_it_or_fails(admits: Any, failures: list[str]) -> None:
    Doorman.admits = admits
    world = World("doorman")
    _, answers = world.ask()
    assert destinations(answers) == "10.0.0.1:8000"
    assert [failure.role for failure in world.decision.failures] == failures


def test_a_pre_request_plugin_sets_headers_by_the_destination() -> None:
    Marker.marks = lambda cycle, picked: {"x-server": cycle.layout.endpoints[picked[0]].id}
    _, answers = World("marker").ask()
    assert [answer.set_headers.get("x-server") for answer in answers if answer.set_headers] == ["a1"]


@pytest.mark.parametrize(
    "marks",
    [
        boom,
        lambda *_: None,
        lambda *_: {":path": "/metrics"},
        lambda *_: {"X-Upper": "case"},
        lambda *_: {"x-split": "a\r\nb: c"},
        lambda *_: {"x-number": 7},
        lambda *_: {DESTINATION: "192.0.2.1:80"},
        lambda *_: {"content-length": "7"},
        lambda *_: Refusal(status=200, message="fine"),
        lambda *_: Refusal(status=429, message="full", reason="a\r\nb: c"),
        lambda *_: Refusal(status=429, message="\ud800"),
    ],
)
def test_a_pre_request_plugin_that_fails_is_left_out(marks: Any) -> None:
    Marker.marks = marks
    world = World("marker")
    _, answers = world.ask()
    assert destinations(answers) == "10.0.0.1:8000"
    assert [(failure.plugin, failure.role) for failure in world.decision.failures] == [("marker", "pre-request plugin")]


def test_a_pre_request_plugin_can_refuse() -> None:
    Marker.marks = lambda *_: FULL
    world = World("marker")
    _, answers = world.ask()
    assert refused(answers).status == 429
    assert world.load == {}
    assert world.decision.runs, "the explanation shows what had been scheduled"


# Plans: further endpoints that work on a request

TWO_PROFILES = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: split}, {type: queue-scorer}, {type: max-score-picker}]
schedulingProfiles:
- {name: decode, plugins: [{pluginRef: queue-scorer}]}
- {name: prefill, plugins: [{pluginRef: queue-scorer, weight: -1}]}
"""
PREFILLER = "x-prefiller-host-port"


class Split(ProfileHandler):
    """The endpoint with the longest queue prefills."""

    TYPE = "split"
    plans: ClassVar[Callable[[Cycle, dict[str, ProfileRun]], Plan]]

    def next_profiles(self, cycle: Cycle, names: tuple[str, ...], results: dict[str, ProfileRun]) -> tuple[str, ...]:
        return () if results else names

    def plan(self, cycle: Cycle, results: dict[str, ProfileRun]) -> Plan:
        return type(self).plans(cycle, results)


def prefill_and_decode(cycle: Cycle, results: dict[str, ProfileRun], *, until_response: bool = True) -> Plan:
    prefiller = cycle.layout.authorities[results["prefill"].picked[0]]
    return Plan("decode", {"prefill": RolePlan("prefill", until_response)}, {PREFILLER: prefiller})


class SplitWorld(World):
    """A picker whose configuration has two profiles."""

    def __init__(self) -> None:
        super().__init__()
        config = load(TWO_PROFILES, Registry([*REGISTRY, Split]))
        self.handler.pipeline = build(config, np.random.default_rng(1), lambda: 0.0)


@pytest.mark.parametrize("until_response", [True, False])
def test_every_endpoint_that_works_on_a_request_is_charged_with_it(until_response: bool) -> None:
    Split.plans = lambda cycle, results: prefill_and_decode(cycle, results, until_response=until_response)
    world = SplitWorld()
    stream, answers = world.ask()
    assert destinations(answers) == "10.0.0.1:8000"
    assert [answer.set_headers[PREFILLER] for answer in answers if PREFILLER in answer.set_headers] == ["10.0.0.3:8000"]
    assert world.load == {"a1": 1, "a3": 1}
    assert world.decision.explain()["roles"] == {"prefill": {"endpoint": "a3", "charged_tokens": 25}}
    world.say(stream, response_headers(served="10.0.0.2:8000"))
    assert world.load == ({"a2": 1} if until_response else {"a2": 1, "a3": 1}), "only the one that serves moves"
    stream.end()
    assert world.is_calm()
    assert world.tokens == 0


def test_a_request_that_nobody_answers_releases_all_its_charges() -> None:
    Split.plans = prefill_and_decode
    world = SplitWorld()
    stream, _ = world.ask()
    stream.end()
    assert world.is_calm()
    assert world.tokens == 0


@pytest.mark.parametrize(
    "plans",
    [
        boom,
        lambda *_: Plan("nobodys"),
        lambda *_: Plan("decode", {"prefill": RolePlan("nobodys")}),
        lambda *_: Plan("decode", {}, {"x-bad": "\r\n"}),
        lambda *_: None,
    ],
)
def test_a_handler_without_a_valid_plan_is_left_out(plans: Any) -> None:
    Split.plans = plans
    world = SplitWorld()
    _, answers = world.ask()
    assert destinations(answers) == "10.0.0.1:8000"
    assert world.load == {"a1": 1}
    assert [(failure.plugin, failure.role) for failure in world.decision.failures] == [("split", "profile handler")]
