"""What is written when: against a fake API, in fake time."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.watcher.kubernetes import reporter as module
from services.watcher.kubernetes import reports
from services.watcher.kubernetes.client import Client
from services.watcher.kubernetes.errors import (
    ApiError,
    Conflict,
    ConnectionFailed,
    Forbidden,
    KubernetesError,
    NotFound,
    Unavailable,
)
from services.watcher.kubernetes.reporter import Reporter
from services.watcher.kubernetes.reports import PoolView
from services.watcher.kubernetes.resource import JsonObject, Resource
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.metrics import WatcherMetrics
from services.watcher.resources import PoolId
from shared.tasks import in_turns
from tests.fake_kubernetes.timing import FakeTime, until
from tests.unit.services.watcher.kubernetes.readings import objective, pool, reading, view

CONFLICT = Conflict("patch", 409, "Conflict", "Apply failed with 1 conflict")
FORBIDDEN = Forbidden("patch inferenceobjectives/status", 403, "Forbidden", "may not")
LOST = ConnectionFailed("can't reach https://10.96.0.1:443")


class FakeApi:
    """Takes what is written, and fails as it is told to."""

    def __init__(self) -> None:
        self.conditions: list[JsonObject] = []
        self.events: list[JsonObject] = []
        self.tries = 0
        self.failure: KubernetesError | None = None
        self.refused: set[str] = set()
        """Namespaces in which nothing may be written."""
        self.denied: set[str] = set()
        """Names of resources that may not."""
        self.version = 1000

    async def apply(
        self, resource: Resource, name: str, body: Mapping[str, Any], *, namespace: str = "", **how: Any
    ) -> JsonObject:
        assert how == {"field_manager": "pointsman-watcher", "subresource": "status"}
        if namespace in self.refused or name in self.denied:
            raise FORBIDDEN
        self._try()
        self.conditions.append(dict(body))
        self.version += 1
        metadata = {**body["metadata"], "generation": 1, "resourceVersion": str(self.version)}
        fields = {"manager": how["field_manager"], "subresource": "status"}
        return {**body, "metadata": {**metadata, "managedFields": [fields]}}

    async def create(self, resource: Resource, body: Mapping[str, Any], namespace: str = "") -> JsonObject:
        assert (str(resource), namespace) == ("events.events.k8s.io", "default")
        self._try()
        self.events.append(dict(body))
        return dict(body)

    def _try(self) -> None:
        self.tries += 1
        if self.failure is not None:
            raise self.failure

    @property
    def names(self) -> list[str]:
        return [condition["metadata"]["name"] for condition in self.conditions]


class World:
    """A reporter with everything that it depends on."""

    def __init__(self, *views: PoolView, **settings: Any) -> None:
        self.time = FakeTime()
        self.api = FakeApi()
        self.views: Sequence[PoolView] = views
        self.revision = 1
        self.leads = True
        self.registry = CollectorRegistry()
        self.reporter = Reporter(
            KubernetesSettings(**settings),
            "watcher-1",
            WatcherMetrics(self.registry),
            views=lambda: self.views,
            revision=lambda: self.revision,
            leads=lambda: self.leads,
            timing=self.time.timing,
            wall=lambda: 1_800_000_000.0 + self.time.now,
        )
        self.reporter.start(cast(Client, self.api))

    def change(self, *views: PoolView) -> None:
        self.views = views
        self.revision += 1

    async def look(self, *, after: float = 0.0) -> None:
        self.time.now += after
        await self.reporter.write_due()

    def count(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"pointsman_watcher_{name}_total")


async def test_a_condition_is_written_once() -> None:
    world = World(view(objective()))
    for _ in range(5):
        await world.look(after=100.0)
    assert world.api.names == ["premium"]
    assert world.count("conditions_written") == 1.0
    world.change(view(objective(resourceVersion="1")))  # a form from before it was written
    await world.look()
    assert world.api.names == ["premium"]


async def test_others_run_while_many_resources_are_reported_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "in_turns", partial(in_turns, turn=0.0))
    world = World(view(*(objective(f"o{number}") for number in range(50))), kubernetes_conditions_per_minute=1)
    for _ in range(2):
        world.change(*world.views)
        turns, writing = 0, asyncio.ensure_future(world.look())
        while not writing.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 200, "50 are read, compared, pruned and written"


async def test_a_condition_that_somebody_removes_each_time_is_written_more_and_more_seldom_and_that_is_said_once() -> (
    None
):
    world = World(view(objective()))
    with capture_logs() as logs:
        for turn in range(600):
            world.change(view(objective(resourceVersion=str(10_000 + turn))))
            await world.look(after=1.0)
    assert 10 <= len(world.api.conditions) <= 25
    assert [log["event"] for log in logs].count("status.contested") == 1
    state = world.reporter.state()
    assert state["contested"] == {"InferenceObjective default/premium": len(world.api.conditions)}
    written = len(world.api.conditions)
    world.change(view(objective(resourceVersion="20000", generation=2)))
    await world.look()
    assert len(world.api.conditions) == written + 1, "another generation is another matter"


async def test_who_does_not_lead_writes_nothing() -> None:
    world = World(view(objective(), selected={}), kubernetes_event_grace=1.0)
    world.leads = False
    await world.look()
    await world.look(after=10.0)
    assert world.api.tries == 0


async def test_a_conflict_is_respected_until_the_resource_or_the_condition_is_another() -> None:
    world = World(view(objective()))
    world.api.failure = CONFLICT
    for _ in range(3):
        await world.look(after=1000.0)
    world.change(view(objective(resourceVersion="7")))
    await world.look()
    assert world.api.tries == 1
    assert world.count("condition_conflicts") == 1.0
    assert world.reporter.problem() is None
    left = {"InferenceObjective default/premium": "another controller owns the condition"}
    assert world.reporter.state()["left_alone"] == left
    world.change(view(objective(generation=2)))
    await world.look()
    assert world.api.tries == 2
    theirs = {"type": "Accepted", "status": "False", "reason": "Theirs"}
    world.change(view({**objective(generation=2), "status": {"conditions": [theirs]}}))
    await world.look()
    assert world.api.tries == 3
    world.change(view())
    await world.look()
    assert world.reporter.state()["left_alone"] == {}


async def test_a_missing_right_is_told_and_tried_again_slowly_for_the_resource_as_a_whole() -> None:
    world = World(view(objective("a"), objective("b")))
    world.api.failure = FORBIDDEN
    await world.look()
    assert world.api.tries == 1
    problem = world.reporter.problem()
    assert problem is not None
    assert "403 Forbidden" in problem
    await world.look(after=10.0)
    assert world.api.tries == 1
    world.api.failure = None
    await world.look(after=30.0)
    assert sorted(world.api.names) == ["a", "b"]
    assert world.reporter.problem() is None
    assert world.count("report_failures") == 1.0


INVALID = ApiError("patch", 422, "Invalid", "status.conditions[0].reason")


@pytest.mark.parametrize(
    ("failure", "looks", "least", "most", "heals"),
    [
        (LOST, [1.0] * 300, 5, 30, True),
        (Unavailable("patch", 503), [1.0] * 300, 5, 30, True),
        (Unavailable("patch", 429, retry_after=60.0), [0.0, *[10.0] * 5], 1, 1, True),
        (INVALID, [1000.0] * 3, 1, 1, False),
        (NotFound("patch", 404, "NotFound"), [1000.0] * 3, 1, 1, False),
    ],
    ids=["unreachable", "unavailable", "the server's own pause", "what it is is refused", "deleted meanwhile"],
)
async def test_what_the_api_answers_decides_when_a_condition_is_tried_again(
    failure: KubernetesError, looks: list[float], least: int, most: int, heals: bool
) -> None:
    world = World(view(objective()))
    world.api.failure = failure
    for after in looks:
        await world.look(after=after)
    assert least <= world.api.tries <= most
    assert world.count("report_failures") == (0.0 if isinstance(failure, NotFound) else world.api.tries)
    assert bool(world.reporter.state()["left_alone"]) is not heals
    world.api.failure = None
    await world.look(after=60.0)
    assert world.api.names == (["premium"] if heals else [])


async def test_conditions_are_bounded_in_a_minute_and_the_rest_follows() -> None:
    world = World(view(*(objective(f"o-{number}") for number in range(5))), kubernetes_conditions_per_minute=2)
    written = []
    for _ in range(3):
        await world.look()
        written.append(len(world.api.conditions))
        await world.look(after=30.0)
        await world.look(after=30.0)
    assert written == [2, 4, 5]


async def test_conditions_and_events_can_be_turned_off() -> None:
    off = {"kubernetes_conditions_per_minute": 0, "kubernetes_events_per_minute": 0}
    world = World(view(objective(priority="high")), **off)
    await world.look(after=100.0)
    assert world.api.tries == 0
    assert len(world.reporter.state()["findings"]) == 1


@pytest.mark.parametrize("refused", [False, True], ids=["taken", "refused by the API"])
async def test_a_refused_resource_is_an_event_at_once_and_once(refused: bool) -> None:
    world = World(view(objective(priority="high")), kubernetes_conditions_per_minute=0)
    world.api.failure = INVALID if refused else None
    for _ in range(5):
        await world.look(after=60.0)
    assert world.api.tries == 1
    if refused:
        return
    [made] = world.api.events
    assert made["reason"] == "ResourceRefused"
    assert made["eventTime"].startswith("2027-01-15T")
    assert made["eventTime"].endswith("Z")
    assert world.count("events_created") == 1.0


async def test_what_may_be_over_in_a_moment_is_waited_for() -> None:
    world = World(view(pool(x="1"), selected={}), kubernetes_event_grace=10.0)
    await world.look()
    world.change(view(pool(x="1")))
    await world.look(after=9.0)
    world.change(view(pool(x="1"), selected={}))
    await world.look()
    await world.look(after=6.0)
    world.change(view(pool(x="1"), objective(), selected={}))  # which doesn't begin the wait anew
    await world.look(after=3.0)
    assert world.api.events == []
    await world.look(after=1.0)
    assert [event["reason"] for event in world.api.events] == ["NoEndpoints"]


async def test_what_is_still_wrong_is_said_again_and_an_event_that_is_there_is_enough() -> None:
    world = World(view(objective(priority="high")), kubernetes_event_interval=60.0)
    world.api.failure = Conflict("create", 409, "AlreadyExists")
    await world.look()
    events = world.api.tries
    world.api.failure = None
    await world.look(after=59.0)
    assert world.api.events == []
    await world.look(after=1.0)
    assert len(world.api.events) == 1
    assert events == 2  # the condition, and the Event
    assert world.reporter.problem() is None


async def test_events_are_bounded_in_a_minute_and_what_is_over_by_then_is_never_said() -> None:
    bad = [objective(f"o-{number}", priority="high") for number in range(5)]
    world = World(view(*bad), kubernetes_events_per_minute=2)
    await world.look()
    await world.look(after=59.0)
    assert len(world.api.events) == 2
    world.change(view(*bad[:3]))
    await world.look(after=1.0)
    await world.look(after=100.0)
    assert [event["regarding"]["name"] for event in world.api.events] == ["o-0", "o-1", "o-2"]


async def test_who_leads_anew_begins_from_what_is_there() -> None:
    world = World(view(objective()))

    async def lead(writes: int) -> None:
        leading = asyncio.create_task(world.reporter.run())
        await until(lambda: len(world.api.conditions) == writes)
        leading.cancel()
        await asyncio.wait({leading})
        assert leading.cancelled()

    await lead(1)
    await lead(2)


async def test_a_defect_ends_neither_the_reporter_nor_who_leads() -> None:
    world = World(view(objective()))
    views = world.views
    world.views = (None,)  # type: ignore[assignment]
    leading = asyncio.create_task(world.reporter.run())
    await until(lambda: world.count("report_failures") == 1.0)
    world.change(*views)
    await until(lambda: world.api.names == ["premium"])
    assert not leading.done()
    world.views = (None,)  # type: ignore[assignment]
    world.revision += 1
    await until(lambda: world.count("report_failures") == 2.0)
    world.views = (view(objective("second")),)
    await until(lambda: world.api.names == ["premium", "second"])  # though nothing has changed since
    leading.cancel()
    await asyncio.wait({leading})


@pytest.mark.parametrize(
    ("where", "step", "events"),
    [
        ("reports", "_hold_name", 2),
        ("reports", "_resource_report", 1),
        ("reporter", "event_name", 1),
        ("reporter", "body_of", 2),
        ("reporter", "event_of", 1),
    ],
)
async def test_a_defect_in_what_one_resource_needs_affects_no_other(
    where: str, step: str, events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"reports": reports, "reporter": module}[where]
    sound = getattr(place, step)

    def fails(about: Any, *more: Any) -> Any:
        item = about if isinstance(about, dict) else about.item
        if item["metadata"]["name"] == "a":
            raise ZeroDivisionError("division by zero")
        return sound(about, *more)

    monkeypatch.setattr(place, step, fails)
    world = World(view(objective("a", priority="x"), objective("b", priority="x")))
    with capture_logs() as logs:
        for _ in range(3):
            await world.look()
            world.change(*world.views)
    assert "b" in world.api.names
    assert len(world.api.events) == events
    assert {event["regarding"]["name"] for event in world.api.events} >= {"b"}
    crashes = [log for log in logs if log["event"] == "report.crashed"]
    assert [log["resource"] for log in crashes] == ["InferenceObjective default/a"], "once"
    assert (world.count("report_failures") or 0.0) >= 3.0
    world.change(view(objective("a", priority="y"), objective("b", priority="x")))
    with capture_logs() as logs:
        await world.look()
    assert [log["resource"] for log in logs if log["event"] == "report.crashed"] == ["InferenceObjective default/a"]


@pytest.mark.parametrize(("place", "name"), [(module, "body_of"), (reports, "_rejection")], ids=["writing", "reading"])
async def test_what_a_defect_has_stopped_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, place: ModuleType, name: str
) -> None:
    world = World(view(objective()), kubernetes_max_backoff=30.0)
    with monkeypatch.context() as patched:
        patched.setattr(place, name, lambda *_: 1 / 0)
        await world.look()
    await world.look(after=29.0)
    assert world.api.names == []
    await world.look(after=1.0)
    assert world.api.names == ["premium"]


async def test_where_one_namespace_refuses_another_is_written_to() -> None:
    other = PoolId("elsewhere", "llama")
    elsewhere = [reading(objective("a", namespace="elsewhere"), other)]
    world = World(PoolView(pool=other, results=elsewhere, pools={"llama"}), view(objective("b")))
    world.api.refused = {"elsewhere"}
    await world.look()
    assert world.api.names == ["b"]
    assert list(world.reporter.state()["problems"]) == [
        "inferenceobjectives.inference.networking.x-k8s.io/status in namespace elsewhere"
    ]


async def test_one_that_a_webhook_denies_does_not_keep_the_others_waiting() -> None:
    world = World(view(objective("a"), objective("b"), objective("c")))
    world.api.denied = {"a"}
    await world.look()
    assert world.api.names == []
    await world.look(after=60.0)
    assert world.api.names == ["b", "c"]
    world.api.denied = set()
    await world.look(after=60.0)
    assert world.api.names == ["b", "c", "a"]


async def test_failures_from_before_a_success_keep_nobody_waiting() -> None:
    world = World(view(objective("a"), objective("b")))
    for denied in ({"a"}, {"a"}, set[str]()):
        world.api.denied = denied
        await world.look(after=60.0)
    world.api.denied = {"b"}
    world.change(view(objective("a"), objective("b", generation=2)))
    await world.look(after=60.0)
    world.api.denied = set()
    world.change(view(objective("b", generation=2), objective("a", generation=2)))
    await world.look(after=60.0)
    assert world.api.names[-2:] == ["a", "b"], "what failed last comes last"


async def test_a_problem_is_over_when_there_is_nothing_left_to_be_said_and_is_the_leaders() -> None:
    world = World(view(objective()))
    world.api.failure = LOST
    await world.look()
    world.leads = False
    assert world.reporter.problem() is None
    world.leads = True
    assert world.reporter.problem() == str(LOST)
    world.change(view())
    await world.look()
    assert world.reporter.problem() is None
