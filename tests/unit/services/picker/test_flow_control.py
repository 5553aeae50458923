"""Requests that wait for room in the pool: from the proxy's messages to the endpoint, or to the refusal."""

import json
import weakref
from base64 import b64encode
from collections.abc import Mapping
from math import inf
from struct import pack
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from services.picker.admin import flow_metrics
from services.picker.admin.flow_metrics import FlowMetrics
from services.picker.decision import Decision
from services.picker.extproc.messages import BodyMode
from services.picker.flow_control.admission import FlowAdmission, grpc_timeout
from services.picker.flow_control.band import Band
from services.picker.flow_control.eviction.evictor import Evictor
from services.picker.flow_control.eviction.reclamation import PROMPT_GRACE
from services.picker.flow_control.interfaces import FairnessPolicy, FlowOrder
from services.picker.pipeline import build
from services.picker.request import Headers
from services.picker.request_stream import RequestStream
from services.picker.request_wait import PLAUSIBLE
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import PreAdmissionProcessor, SaturationDetector
from services.picker.state.layout import Rows
from shared.bus.columns import pack_counts, pack_hashes
from shared.bus.messages import Load, QueueTable
from shared.config import load
from shared.model import ROLE, Endpoint, Objective
from shared.plugin import Registry
from tests.unit.services.picker.extproc.proxy import (
    FULL_DUPLEX,
    LEAN,
    Answer,
    body,
    headers,
    read,
    response_body,
    response_headers,
    response_trailers,
)
from tests.unit.services.picker.handler import PickerUnderTest, destinations, refused
from tests.unit.services.picker.world import endpoint, facts, pool

MODES = pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX], ids=["lean", "full duplex"])


class Broken(SaturationDetector):
    TYPE = "broken-detector"

    def saturation(self, cycle: Cycle, rows: Rows) -> float:
        raise ZeroDivisionError("a bug")


class BrokenFairness(FairnessPolicy):
    TYPE = "broken-fairness"

    def flow_order(self) -> FlowOrder:
        raise ZeroDivisionError("a bug")


class BrokenIdentity(PreAdmissionProcessor):
    TYPE = "broken-identity"

    def fairness_id(self, headers: Headers) -> str:
        raise KeyError("session")


REGISTRY = Registry([*Registry.installed(), Broken, BrokenFairness, BrokenIdentity])


def document(detector: str = "concurrency-detector", parameters: str = "{maxConcurrency: 1}", **section: Any) -> str:
    """A configuration in which each endpoint takes one request at a time."""
    section = {"saturationDetector": {"pluginRef": detector}, **section}
    return (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\n"
        f"plugins:\n- {{type: {detector}, parameters: {parameters}}}\n- type: active-request-scorer\n"
        "- type: round-robin-fairness-policy\n- type: broken-fairness\n"
        "schedulingProfiles:\n- {name: default, plugins: [{pluginRef: active-request-scorer}]}\n"
        f"flowControl: {json.dumps(section)}\n"
    )


class World(PickerUnderTest):
    """A picker with flow control over a pool of these endpoints, and a clock that stands until it is moved."""

    def __init__(self, *members: Endpoint | str, configuration: str = "", max_bytes: float = inf) -> None:
        super().__init__(pool(*members))
        self.due: list[float] = []
        self.metered = FlowMetrics(self.registry, self.view, lambda: self.now)
        self.failed: list[str] = []
        self.flow = self.metered.flow = self.handler.flow = FlowAdmission(
            self.view,
            id="picker-1",
            clock=lambda: self.now,
            random=np.random.default_rng(1),
            wake=self.due.append,
            failed=lambda plugin, *_: self.failed.append(plugin),
            on_outcome=self.metered.ended,
            max_bytes=max_bytes,
        )
        self.use(configuration or document())

    def use(self, configuration: str) -> None:
        config = load(configuration, REGISTRY, allow_experimental=True)
        pipeline = build(config, np.random.default_rng(1), lambda: 0.0)
        self.flow.configure(pipeline.flow_control, pipeline.director.detector, config.stale_metrics)
        self.handler.pipeline = pipeline

    def prioritize(self, **priorities: int) -> None:
        """InferenceObjectives of these names."""
        for name, priority in priorities.items():
            self.view.upsert(f"pool.objective.{name}", Objective(name=name, priority=priority))

    def ask(
        self,
        id: str = "mine",
        modes: tuple[BodyMode, BodyMode] = LEAN,
        path: str = "/v1/completions",
        text: bytes = b'{"model": "m", "max_tokens": 1, "prompt": "x", "messages": [{"role": "user", "content": "x"}]}',
        **more: str,
    ) -> "Asked":
        """A request up to the end of its body. `more` are headers, with underscores for hyphens."""
        stream = RequestStream(self.handler)
        pairs = [(":method", "POST"), (":path", path), ("x-request-id", id)]
        pairs += [(name.replace("_", "-"), value) for name, value in more.items()]
        return Asked(self, stream, self.say(stream, headers(pairs, modes=modes), body(text, end=True)), id)

    def turn(self) -> None:
        """The event loop's next turns, until nothing is due."""
        while self.due:
            due, self.due[:] = min(self.due), []
            if due > self.now:
                self.due.append(due)
                return
            self.flow.run()

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.turn()

    def decision(self, id: str = "mine") -> Decision:
        (found,) = self.ring.of_request(id, 10)
        return found

    @property
    def is_calm(self) -> bool:
        controller = self.flow.controller
        running = 0 if controller is None else sum(band.running for band in controller.bands())
        return (
            self.handler.open,
            self.handler.budget.used,
            self.load,
            self.flow.waiting,
            running,
            self.flow.gauge.pending,
        ) == (0, 0, {}, 0, 0, 0)


class Asked:
    """A request, and what was answered so far."""

    def __init__(self, world: World, stream: RequestStream, answers: list[Answer], id: str) -> None:
        self.world, self.stream, self.answers, self.id = world, stream, answers, id

    @property
    def waits(self) -> bool:
        self.world.turn()
        return self.stream.waiting and not self.stream.ready

    def collect(self) -> list[Answer]:
        """All answers by now."""
        self.world.turn()
        self.answers += [read(answer) for answer in self.stream.outbox() if answer]
        return self.answers

    @property
    def destination(self) -> str:
        return destinations(self.collect())

    def completes(self) -> None:
        """The response comes, and the stream ends."""
        self.collect()
        self.world.say(self.stream, response_headers(200))
        self.stream.end()


@MODES
def test_a_request_waits_for_the_end_of_another(modes: tuple[BodyMode, BodyMode]) -> None:
    world = World("a1")
    first, second, third = (world.ask(id, modes) for id in ("first", "second", "third"))
    assert first.destination == "10.0.0.1:8000"
    assert second.waits
    assert third.waits
    world.passes(2.0)
    first.completes()
    assert second.destination == "10.0.0.1:8000"
    assert third.waits
    queued = world.decision("second").explain()["queue"]
    assert queued == {
        "flow": "default-flow",
        "band": 0,
        "ahead": 0,
        "seconds": 2.0,
        "released_by": "the end of another request",
    }
    assert world.decision("second").summary()["waited_seconds"] == 2.0
    second.completes()
    third.completes()
    assert world.decision("third").explain()["queue"]["ahead"] == 1
    assert world.is_calm


@pytest.mark.parametrize("waits", [False, True])
def test_a_request_that_is_over_leaves_no_circle_of_references(waits: bool) -> None:
    world = World("a1")
    request, second = world.ask("first"), world.ask("second")
    request.completes()
    if waits:
        request = second
        request.completes()
    stream = weakref.ref(request.stream)
    del request, second
    assert stream() is None


def test_a_request_that_has_room_does_not_wait() -> None:
    world = World("a1", "a2")
    first, second = world.ask("first"), world.ask("second")
    assert {destinations(first.answers), destinations(second.answers)} == {"10.0.0.1:8000", "10.0.0.2:8000"}
    assert world.decision("first").explain()["queue"]["seconds"] == 0.0
    first.completes()
    second.completes()
    assert world.is_calm


def test_requests_of_one_turn_do_not_overfill_the_pool() -> None:
    """Each that is let go counts before an endpoint is charged with it."""
    world = World("a1", "a2")
    running = [world.ask(f"running-{number}") for number in range(2)]
    waiting = [world.ask(f"waiting-{number}") for number in range(5)]
    world.turn()
    for request in running:
        request.completes()
    world.turn()
    assert sum(request.stream.ready for request in waiting) == 2


@MODES
def test_a_client_that_leaves_leaves_the_queue(modes: tuple[BodyMode, BodyMode]) -> None:
    world = World("a1")
    first, second, third = (world.ask(id, modes) for id in ("first", "second", "third"))
    world.turn()
    assert world.flow.waiting == 2
    second.stream.end()
    assert world.flow.waiting == 1
    first.completes()
    third.completes()
    assert world.sample("llm_d_epp_flow_control_requests_total", **series("EvictedContextCancelled")) == 1
    assert world.is_calm


def series(outcome: str, priority: int = 0) -> dict[str, str]:
    return {"priority": str(priority), "outcome": outcome, "inference_pool": ""}


REFUSED: Mapping[str, tuple[dict[str, Any], float, int, str, str]] = {
    "too long": ({"defaultRequestTTL": "3s"}, 3.0, 429, "rejected-ttl-expired", "EvictedTTL"),
    "too many": ({"maxRequests": 1}, 0.0, 429, "rejected-saturated", "RejectedCapacity"),
    "too many in the band": (
        {"priorityBands": [{"priority": 0, "maxRequests": 1}]},
        0.0,
        429,
        "rejected-saturated",
        "RejectedCapacity",
    ),
    "too large": ({"maxBytes": 100}, 0.0, 429, "rejected-saturated", "RejectedCapacity"),
}


@MODES
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, path: str, modes: tuple[BodyMode, BodyMode]) -> None:
    section, seconds, status, reason, outcome = REFUSED[case]
    world = World("a1", configuration=document(**section))
    running, waiting = world.ask("running", modes), world.ask("waiting", modes)
    assert waiting.waits
    last = world.ask("last", modes, path)
    world.passes(seconds)
    answer = refused(last.collect())
    assert (answer.status, answer.set_headers["x-llm-d-request-dropped-reason"]) == (status, reason)
    assert int(answer.set_headers["retry-after"]) >= 1
    error = json.loads(answer.body)["error"]
    assert error["type"] == ("rate_limit_error" if path == "/v1/messages" else "rate_limit_exceeded")
    assert world.decision("last").summary()["refused"]["reason"] == reason
    last.stream.end()
    waiting.stream.end()
    running.completes()
    assert (world.sample("llm_d_epp_flow_control_requests_total", **series(outcome)) or 0) >= 1
    assert world.is_calm


@pytest.mark.parametrize("configured", [{}, {"maxBytes": "1Gi"}, {"maxBytes": 100}])
def test_bodies_that_wait_leave_memory_for_others_whatever_is_configured(configured: dict[str, Any]) -> None:
    world = World("a1", configuration=document(**configured), max_bytes=150)
    world.ask("running")
    assert world.ask("waiting").waits
    refusal = refused(world.ask("last").collect())
    assert refusal.set_headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"


BANDS = {"low": -10, "high": 100}
ROUND_ROBIN = {"fairnessPolicyRef": "round-robin-fairness-policy"}


@MODES
@pytest.mark.parametrize("limits", [{"maxRequests": 3}, {"maxBytes": 330}], ids=["requests", "bytes"])
@pytest.mark.parametrize(
    ("comes", "displaced"),
    [(("high", "other"), True), (("", "other"), True), (("low", "other"), True), (("low", "mine"), False)],
)
def test_one_clients_requests_keep_no_others_from_waiting(
    comes: tuple[str, str], displaced: bool, limits: dict[str, Any], modes: tuple[BodyMode, BodyMode]
) -> None:
    world = World("a1", configuration=document(defaultPriorityBand=ROUND_ROBIN, **limits))
    world.prioritize(**BANDS)

    def ask(id: str, objective: str, flow: str) -> Asked:
        return world.ask(id, modes, x_llm_d_inference_objective=objective, x_llm_d_inference_fairness_id=flow)

    running = world.ask("running", modes)
    waiting = [ask(f"mine-{number}", "low", "mine") for number in range(3)]
    assert all(asked.waits for asked in waiting)
    last = ask("last", *comes)
    (out, stays) = (waiting.pop(), last) if displaced else (last, waiting.pop())
    answer = refused(out.collect())
    assert (answer.status, answer.set_headers["x-llm-d-request-dropped-reason"]) == (429, "rejected-saturated")
    assert int(answer.set_headers["retry-after"]) >= 1
    outcome = "EvictedCapacity" if displaced else "RejectedCapacity"
    assert world.sample("llm_d_epp_flow_control_requests_total", **series(outcome, -10)) == 1
    assert all(asked.waits for asked in [*waiting, stays])
    out.stream.end()
    running.completes()
    for asked in sorted([*waiting, stays], key=lambda asked: asked is not last or comes[0] == "low"):
        asked.completes()
    assert world.is_calm
    assert world.flow.controller is not None
    assert world.flow.controller.bytes == 0


def test_a_clients_deadline_ends_the_wait() -> None:
    world = World("a1")
    world.ask("running")
    hurried, patient = world.ask("hurried", grpc_timeout="250m"), world.ask("patient")
    world.passes(0.2)
    assert hurried.waits
    world.passes(0.05)
    assert refused(hurried.collect()).status == 429
    assert patient.waits


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("1H", 3600.0),
        ("2M", 120.0),
        ("3S", 3.0),
        ("4m", 0.004),
        ("5u", 5e-6),
        ("99999999n", 0.099999999),
        ("", float("inf")),
        ("5", float("inf")),
        ("S", float("inf")),
        ("-1S", float("inf")),
        ("123456789S", float("inf")),
        ("٣S", float("inf")),
    ],
)
def test_grpc_timeouts(header: str, seconds: float) -> None:
    assert grpc_timeout(header) == pytest.approx(seconds)


def test_a_pool_that_scales_from_zero_serves_its_queue() -> None:
    world = World()
    request = world.ask()
    assert request.waits
    world.view.upsert("pool.endpoint.a1", endpoint("a1"))
    world.flow.notify("a change of endpoints")
    assert request.waits, "the proxy may not know of the endpoint yet"
    world.passes(0.5)
    assert request.destination == "10.0.0.1:8000"
    assert world.decision().explain()["queue"]["released_by"] == "a change of endpoints"


def test_an_empty_pool_has_a_deadline_of_its_own() -> None:
    world = World(configuration=document(defaultRequestTTL="100s", noEndpointRequestTTL="5s"))
    request = world.ask()
    world.passes(4.9)
    assert request.waits
    world.passes(0.1)
    answer = refused(request.collect())
    assert (answer.status, answer.set_headers["x-llm-d-request-dropped-reason"]) == (503, "rejected-no-endpoints")


def test_higher_priorities_go_first() -> None:
    world = World("a1")
    world.prioritize(urgent=10, batch=-1)
    running = world.ask("running")
    objectives = ("batch", "", "urgent", "unknown")
    waiting = {name: world.ask(name, x_llm_d_inference_objective=name) for name in objectives}
    order = []
    world.turn()
    running.completes()
    for _ in objectives:
        world.turn()
        (name,) = [name for name, request in waiting.items() if request.stream.ready]
        order.append(name)
        waiting.pop(name).completes()
    assert order == ["urgent", "", "unknown", "batch"]
    assert world.is_calm


def test_a_sheddable_request_waits_and_is_not_shed() -> None:
    world = World("a1")
    world.prioritize(batch=-1)
    running = world.ask("running")
    batch = world.ask("batch", x_llm_d_inference_objective="batch")
    assert batch.waits
    running.completes()
    assert batch.destination


@MODES
def test_requests_move_to_another_configuration(modes: tuple[BodyMode, BodyMode]) -> None:
    world = World("a1")
    running = world.ask("running", modes)
    waiting = [world.ask(f"waiting-{number}", modes) for number in range(3)]
    assert all(request.waits for request in waiting)
    world.use(document(parameters="{maxConcurrency: 2}"))
    world.turn()
    assert [request.stream.ready for request in waiting] == [True, False, False]
    running.completes()
    waiting[0].completes()
    for request in waiting[1:]:
        request.completes()
    assert world.is_calm


def test_a_wait_does_not_begin_anew_with_another_configuration() -> None:
    world = World("a1", configuration=document(defaultRequestTTL="10s"))
    world.ask("running")
    waiting = world.ask("waiting")
    for _ in range(2):
        world.passes(4.0)
        assert waiting.waits
        world.use(document(defaultRequestTTL="10s"))
    world.passes(2.0)
    assert refused(waiting.collect()).status == 429


def test_a_wait_ends_before_the_proxys_patience() -> None:
    world = World("a1", configuration=document(defaultRequestTTL="10m"))
    world.ask("running")
    timed, untimed = world.ask("timed", LEAN), world.ask("untimed", FULL_DUPLEX)
    assert [answer.patience for answer in timed.answers][-1] == 120.0
    assert not untimed.answers
    world.passes(119.4)
    assert timed.waits
    world.passes(0.1)
    assert refused(timed.collect()).status == 429
    assert untimed.waits


def test_a_policy_that_cannot_begin_changes_nothing() -> None:
    world = World("a1")
    running, waiting = world.ask("running"), world.ask("waiting")
    before = world.flow.controller
    with pytest.raises(ZeroDivisionError):
        world.use(document(defaultPriorityBand={"fairnessPolicyRef": "broken-fairness"}))
    assert world.flow.controller is before
    running.completes()
    assert waiting.destination


@pytest.mark.parametrize(
    "said", [response_headers(504), response_body(b"x"), response_body(b""), response_trailers()], ids=lambda _: ""
)
def test_a_response_of_the_proxys_own_ends_the_wait(said: Any) -> None:
    world = World("a1")
    running, waiting = world.ask("running"), world.ask("waiting")
    assert waiting.waits
    world.say(waiting.stream, said)
    assert world.flow.waiting == 0
    waiting.stream.end()
    running.completes()
    assert world.is_calm


def test_peers_that_are_silent_count_no_longer_though_nothing_happens_here() -> None:
    world = World("a1")
    columns = dict.fromkeys(("requests", "tokens", "ages", "running", "dispatched", "served"), pack_counts([3]))
    table = QueueTable(priorities=b"\0\0\0\0", flows=pack_hashes([1]), **columns)
    load = Load(sender="picker-2", sent=1.0, sequence=1, ids=b"", requests=b"", tokens=b"", queue=table)
    world.flow.apply(load, world.now)
    assert world.sample("pointsman_picker_queue_requests", priority="0") == 3
    world.now += 2.0
    world.flow.maintain()
    assert world.sample("pointsman_picker_queue_requests", priority="0") == 0


def test_without_flow_control_nothing_waits() -> None:
    world = World("a1")
    running, waiting = world.ask("running"), world.ask("waiting")
    assert waiting.waits
    world.use("")
    assert waiting.destination == "10.0.0.1:8000"
    assert world.decision("waiting").explain()["queue"] is None
    running.completes()
    waiting.completes()
    assert world.is_calm


@MODES
def test_a_picker_that_stops_hands_requests_back(modes: tuple[BodyMode, BodyMode]) -> None:
    """Where the proxy has an answer to the headers already, another picker can't take the request."""
    world = World("a1")
    running, waiting = world.ask("running", modes), world.ask("waiting", modes)
    assert waiting.waits
    while world.flow.stop():
        pass
    if modes is LEAN:
        answer = refused(waiting.collect())
        assert (answer.status, answer.set_headers["x-llm-d-request-dropped-reason"]) == (503, "rejected-shutting-down")
    else:
        assert waiting.stream.handed_back
        assert not waiting.answers  # so that it may begin anew elsewhere
    waiting.stream.end()
    late = world.ask("late", modes)
    assert late.stream.closed or late.stream.handed_back
    late.stream.end()
    running.completes()
    assert world.is_calm


LESS = len(json.dumps({"usage": {"completion_tokens": 2**31 - 1, "x": ""}}))


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 300}, (100, 300)),
        ({"prompt_tokens": 2**31 - 1, "completion_tokens": 2**31 - 1}, (PLAUSIBLE, PLAUSIBLE)),
        ({"completion_tokens": 9_000, "padding": "x" * 10_000}, (1, 9_000)),
        ({"completion_tokens": 2**31 - 1, "x": "x" * (10_000 - LESS)}, (1, 10_000)),
    ],
)
def test_a_response_costs_its_flow_no_more_tokens_than_it_may_have(
    usage: dict[str, Any], counted: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = list[tuple[int, int]]()
    monkeypatch.setattr(Band, "finish", lambda band, item, prompt, completion, now: costs.append((prompt, completion)))
    asked = World("a1").ask(modes=FULL_DUPLEX)
    asked.collect()
    sent = json.dumps({"usage": usage}).encode()
    started = headers({":status": "200", "content-type": "application/json"}, phase="response_headers")
    asked.world.say(asked.stream, started, response_body(sent, end=True))
    asked.stream.end()
    assert costs == [counted]


def test_an_evictor_is_told_that_another_endpoint_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[Evictor]()
    monkeypatch.setattr(Evictor, "moved", lambda evictor: told.append(evictor))
    world = World("a1", "a2", configuration=document(enableEviction=True))
    world.prioritize(batch=-1)
    asked = world.ask(x_llm_d_inference_objective="batch")
    picked = asked.destination
    (other,) = {"10.0.0.1:8000", "10.0.0.2:8000"} - {picked}
    world.say(asked.stream, response_headers(200, served=other))
    assert len(told) == 1


def test_eviction_makes_room_for_a_higher_band() -> None:
    world = World("a1", configuration=document(enableEviction=True))
    world.prioritize(urgent=10, batch=-1)
    batch = world.ask("batch", x_llm_d_inference_objective="batch")
    assert batch.destination
    world.say(batch.stream, response_headers(200))
    urgent = world.ask("urgent", x_llm_d_inference_objective="urgent")
    assert not urgent.stream.ready
    answer = refused(batch.collect())
    assert (answer.status, answer.set_headers["x-llm-d-request-dropped-reason"]) == (429, "evicted")
    assert batch.stream.closed
    batch.stream.end()
    assert world.decision("batch").progress.aborted
    assert urgent.destination
    urgent.completes()
    assert world.is_calm


@pytest.mark.parametrize(
    "changes",
    [
        [document(enableEviction=True)],
        [document(), document(enableEviction=True)],
        [document().replace("featureGates: [flowControl]\n", ""), document(enableEviction=True)],
    ],
    ids=["another document", "eviction off and on", "flow control off and on"],
)
def test_what_runs_can_be_evicted_after_a_change_of_the_configuration(changes: list[str]) -> None:
    world = World("a1", "a2", configuration=document(enableEviction=True))
    world.prioritize(urgent=10, batch=-1)
    batches = [world.ask(f"batch-{number}", x_llm_d_inference_objective="batch") for number in range(2)]
    first = world.ask("first", x_llm_d_inference_objective="urgent")
    assert first.destination
    for configuration in changes:
        world.use(configuration)
    second = world.ask("second", x_llm_d_inference_objective="urgent")
    world.turn()
    assert second.waits  # the first eviction may not show yet
    world.passes(PROMPT_GRACE)
    assert second.destination
    assert [refused(batch.collect()).status for batch in batches] == [429, 429]
    assert world.sample("llm_d_epp_flow_control_revocations_issued_total", inference_pool="") == 2


@pytest.mark.parametrize(
    ("path", "kind", "body", "grpc_status"),
    [
        ("/v1/messages", "application/json", b'"rate_limit_error"', None),
        ("/v1/completions", "application/grpc", b"request evicted", 8),
    ],
)
def test_clients_of_evicted_requests_can_read_the_refusal(
    path: str, kind: str, body: bytes, grpc_status: int | None
) -> None:
    world = World("a1", configuration=document(enableEviction=True))
    world.prioritize(urgent=10, batch=-1)
    batch = world.ask("batch", path=path, content_type=kind, x_llm_d_inference_objective="batch")
    world.ask("urgent", x_llm_d_inference_objective="urgent")
    answer = refused(batch.collect())
    assert body in answer.body
    assert answer.grpc_status == grpc_status


def test_only_sheddable_requests_are_evicted() -> None:
    world = World("a1", configuration=document(enableEviction=True))
    world.prioritize(urgent=10)
    running = world.ask("running")
    urgent = world.ask("urgent", x_llm_d_inference_objective="urgent")
    assert urgent.waits
    assert not running.stream.closed
    assert not running.stream.waiting


DISAGGREGATED = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 2}}
- type: prefill-filter
- type: decode-filter
- type: active-request-scorer
- type: always-disagg-pd-decider
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: active-request-scorer}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}]}
flowControl: {saturationDetector: {pluginRef: concurrency-detector}, enableEviction: true}
"""


@pytest.mark.parametrize("prefilling", [0, 1, 2])
def test_only_requests_that_take_room_on_the_fullest_stage_are_evicted(prefilling: int) -> None:
    """The only prefill endpoint is full with two requests, and three decode endpoints with six aren't."""
    roles = {"p1": "prefill", "d2": "decode", "d3": "decode", "d4": "decode"}
    members = (replace(endpoint(name), labels={ROLE: role}) for name, role in roles.items())
    world = World(*members, configuration=DISAGGREGATED)
    world.prioritize(urgent=10, batch=-1)
    batch, urgent = list[Asked](), list[Asked]()
    for number in range(4):  # the first of them only decode
        batch.append(world.ask(f"batch-{number}", x_llm_d_inference_objective="batch"))
        assert batch[-1].destination
        if number < 4 - prefilling:
            world.say(batch[-1].stream, response_headers(200))
    for number in range(3):
        urgent.append(world.ask(f"urgent-{number}", x_llm_d_inference_objective="urgent"))
        urgent[-1].collect()
        world.passes(PROMPT_GRACE)
    assert [asked.stream.closed for asked in batch] == [number >= 4 - prefilling for number in range(4)]
    assert [asked.waits for asked in urgent] == [False, False, True]


def test_evictions_that_make_no_room_pause() -> None:
    """A request that can't be evicted has nearly all tokens in flight."""
    world = World(
        "a1",
        configuration=document(parameters="{concurrencyMode: tokens, maxTokenConcurrency: 1000}", enableEviction=True),
    )
    world.prioritize(batch=-1)
    batch = [world.ask(f"batch-{number}", x_llm_d_inference_objective="batch") for number in range(20)]
    assert all(asked.destination for asked in batch)
    text = b'{"model": "m", "prompt": "%s"}' % (b"x" * 8000)
    assert world.ask("long", text=text).destination
    assert world.ask("other").waits
    evicted = list[int]()
    for _ in range(4):
        for _ in range(90):
            world.passes(PROMPT_GRACE)
        world.flow.maintain()
        world.turn()
        evicted.append(sum(asked.stream.closed for asked in batch))
    assert evicted == [2, 4, 4, 4]


def test_evictions_go_on_while_they_make_room() -> None:
    world = World("a1", configuration=document(parameters="{maxConcurrency: 10}", enableEviction=True))
    world.prioritize(urgent=10, batch=-1)
    batch = [world.ask(f"batch-{number}", x_llm_d_inference_objective="batch") for number in range(10)]
    assert all(asked.destination for asked in batch)
    urgent = [world.ask(f"urgent-{number}", x_llm_d_inference_objective="urgent") for number in range(12)]
    for _ in range(12):
        for asked in urgent:
            asked.collect()
        world.passes(PROMPT_GRACE)
    assert [asked.stream.closed for asked in batch] == [True] * 10
    assert [asked.waits for asked in urgent] == [False] * 10 + [True] * 2


HUGE_PICTURE = b64encode(b"\x89PNG\r\n\x1a\n" + pack(">I4sII", 13, b"IHDR", 2**31 - 1, 2**31 - 1) + bytes(30)).decode()
IMMENSE: Mapping[str, tuple[str, list[Any], dict[str, Any], dict[str, Any]]] = {
    "a long video": (
        "token-producer",
        [{"type": "video_url", "video_url": {"url": "http://x/short.mp4"}}],
        {},
        {"x_llm_d_video_duration_seconds": "900000000"},
    ),
    "a large picture": (
        "token-producer",
        [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{HUGE_PICTURE}"}}],
        {},
        {},
    ),
    "many answers": (
        "inflight-load-producer, parameters: {addEstimatedOutputTokens: true}",
        [{"type": "text", "text": "x"}],
        {"n": 2**31 - 1},
        {},
    ),
}


@pytest.mark.parametrize("mode", ["tokens", "hybrid"])
@pytest.mark.parametrize("case", IMMENSE)
def test_one_request_cant_make_a_pool_look_full(case: str, mode: str) -> None:
    """Whatever its client claims, it fills one endpoint of the default `maxTokenConcurrency`."""
    producer, content, fields, named = IMMENSE[case]
    configuration = document(parameters=f"{{concurrencyMode: {mode}}}}}\n- {{type: {producer}")
    world = World("a1", "a2", configuration=configuration)
    text = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}], **fields}).encode()
    assert world.ask("immense", path="/v1/chat/completions", text=text, **named).destination
    assert sum(tokens for _, tokens in world.view.in_flight.own().values()) == 1_000_000
    assert world.ask("other").destination


def test_a_detector_that_fails_keeps_nothing_waiting() -> None:
    world = World("a1", configuration=document("broken-detector", "{}"))
    assert all(destinations(world.ask(f"{number}").answers) for number in range(3))
    assert set(world.failed) == {"broken-detector"}


def test_metrics_of_what_waits() -> None:
    round_robin = {"fairnessPolicyRef": "round-robin-fairness-policy"}
    world = World("a1", configuration=document(defaultPriorityBand=round_robin))
    world.prioritize(batch=-1)
    world.ask("running")
    for number in range(3):
        world.ask(f"{number}", x_llm_d_inference_objective="batch", x_llm_d_inference_fairness_id="tenant")
    world.passes(1.5)
    labels = {"fairness_id": "tenant", "priority": "-1", "inference_pool": ""}
    assert world.sample("llm_d_epp_flow_control_queue_size", **labels) == 3
    assert world.sample("inference_extension_flow_control_queue_size", **labels) == 3
    assert (world.sample("llm_d_epp_flow_control_queue_bytes", **labels) or 0) > 100
    assert world.sample("llm_d_epp_flow_control_pool_saturation", inference_pool="", stage="effective") == 1
    assert world.sample("pointsman_picker_queue_requests", priority="-1") == 3
    assert world.sample("pointsman_picker_queue_oldest_seconds", priority="-1") == 1.5
    waited = "llm_d_epp_flow_control_request_queue_duration_seconds_count"
    assert world.sample(waited, **series("Dispatched")) == 1


def test_clients_cant_make_series_of_flows_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_metrics, "MAX_NAMES", 2)
    band = {"fairnessPolicyRef": "round-robin-fairness-policy"}
    world = World("a1", configuration=document(flowWeights={"known": 2}, defaultPriorityBand=band))
    world.ask("running")
    first, second, *_ = [world.ask(id, x_llm_d_inference_fairness_id=id) for id in ("a", "b", "c", "known")]

    def named() -> set[str]:
        label = {"priority": "0", "inference_pool": ""}
        sizes = {id: world.sample("llm_d_epp_flow_control_queue_size", fairness_id=id, **label) for id in IDS}
        return {id for id, size in sizes.items() if size == 1}

    assert named() == {"a", "b", "known", "other-flows"}
    first.stream.end()
    second.stream.end()
    assert named() == {"known", "other-flows"}, "c has to wait until series of others have ended"
    world.now += 3600.0
    assert named() == {"c", "known"}


IDS = ("a", "b", "c", "known", "other-flows")


def test_facts_of_the_pool_make_bands() -> None:
    world = World("a1")
    world.view.reset({**facts(endpoint("a1"))})
    world.prioritize(urgent=7)
    running = world.ask("running", x_llm_d_inference_objective="urgent")
    assert world.flow.controller is not None
    assert [band.priority for band in world.flow.controller.bands()] == [7, 0]
    assert world.flow.note() is None
    world.prioritize(**{f"o{number}": number for number in range(10, 120)})
    world.flow.maintain()
    assert world.flow.note() == "12 priorities of objectives share the next lower band: there are more than 100"
    waiting = world.ask("shares", x_llm_d_inference_objective="o15")
    running.completes()
    assert waiting.destination
    assert world.decision("shares").explain()["queue"]["band"] == 7


@pytest.mark.parametrize(
    ("sent", "flow"),
    [
        ({}, "default-flow"),
        ({"session_id": "s1"}, "s1"),
        ({"session_id": "s1", "x_llm_d_inference_fairness_id": "tenant"}, "tenant"),
    ],
)
def test_the_session_of_an_agent_is_its_flow_unless_the_request_names_one(sent: Mapping[str, Any], flow: str) -> None:
    """The first plugin that knows decides; one that fails is named, and the next one is asked."""
    identity = "- {type: agent-identity, parameters: {additionalSessionHeaders: [session-id]}}"
    world = World(
        "a1", configuration=document().replace("plugins:\n", f"plugins:\n- type: broken-identity\n{identity}\n")
    )
    world.ask("first", **sent)
    assert world.decision("first").explain()["queue"]["flow"] == flow
    assert world.failed == ([] if flow == "tenant" else ["broken-identity"])
