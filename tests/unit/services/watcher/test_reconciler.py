"""What a reconciler publishes: changes only, and all of them."""

import asyncio
from functools import partial
from math import inf
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.watcher.documents import Documents
from services.watcher.few import LISTED, few
from services.watcher.lookup import Lookups
from services.watcher.metrics import WatcherMetrics
from services.watcher.reconciler import PoolReconciler, Publications
from services.watcher.resources import PoolId
from services.watcher.sources import Delete, Event, Rejected, Removed, Reset, Upsert
from shared.bus import facts
from shared.config.problems import Problem
from shared.datalayer.events import EventCounts
from shared.model import Configuration, Endpoint, Fact, Objective, Pool
from shared.plugin_failures import PluginFailures
from tests.waiting import eventually
from tests.work import counted, longest_turn

TEN = [str(number) for number in range(10)]
POOL = PoolId("default", "llama")
KEY = "default_llama.endpoint.default/"


@pytest.mark.parametrize(
    ("texts", "shown"),
    [([], []), (TEN, TEN), ([*TEN, "x"], [*TEN, "… and 1 more"]), (TEN * 3, [*TEN, "… and 20 more"])],
    ids=["none", "ten", "eleven", "thirty"],
)
def test_ten_are_named_and_the_others_counted(texts: list[str], shown: list[str]) -> None:
    assert few(texts) == shown


def endpoint(name: str, port: int = 80, host: str = "", label: str = "") -> Endpoint:
    address = "" if host else "10.0.0.1"
    return Endpoint(id=f"default/{name}", name=name, address=address, host=host, port=port, labels={"a": label})


async def look_up(host: str) -> list[str]:
    return ["10.0.0.7"]


class Bus:
    """What was published, and what each change was."""

    def __init__(self, preferred: str = "") -> None:
        self.facts: dict[str, Fact] = {}
        self.changes: list[str] = []
        self.sizes: list[int] = []
        """How many facts there were after each publication."""
        self.limit = 1000
        self.reconciler = PoolReconciler(
            POOL,
            (),
            preferred=preferred,
            lookups=Lookups(look_up, 5.0, 64),
            resolve_interval=30.0,
            frames=cast(Any, None),
            leads=lambda: True,
            eds=None,
            event_counts=EventCounts(PluginFailures(lambda: 0.0)),
            metrics=WatcherMetrics(CollectorRegistry()),
            fact_limit=lambda: self.limit,
            published=lambda key: None,
            fact_entries=10_000,
            on_accepted=lambda _: None,
            on_change=self._publish,
        )

    async def start(self) -> "Bus":
        await self.reconciler.apply([Reset("a", Documents(endpoints=())), Reset("b", Documents(endpoints=()))])
        self.reconciler.accept()
        await self.reconciler.refresh()
        return self

    def _publish(self, _: PoolReconciler, events: Publications) -> None:
        for event in events:
            self.changes.append(f"{'+' if isinstance(event, facts.Upsert) else '-'}{event.key.removeprefix(KEY)}")
            if isinstance(event, facts.Upsert):
                self.facts[event.key] = event.fact
            else:
                del self.facts[event.key]
        self.sizes.append(len(self.facts))

    def is_last(self, name: str) -> bool:
        """Whether this endpoint was published last, alone."""
        return self.changes == [f"+{name}"]

    async def take(self, *events: Event) -> list[str]:
        self.changes = []
        await self.reconciler.take(events)
        return self.changes


async def test_one_endpoint_is_published_alone_and_what_did_not_change_is_not() -> None:
    pool = await Bus().start()
    assert pool.facts == {"default_llama.pool": Pool(name="llama", namespace="default")}
    assert await pool.take(Reset("a", Documents(endpoints=(endpoint("x"), endpoint("y"))))) != []
    assert await pool.take(Upsert("a", endpoint("x"))) == []
    assert await pool.take(Upsert("a", endpoint("x", 81))) == ["+x"]
    assert await pool.take(Delete("a", "default/y")) == ["-y"]
    assert await pool.take(Reset("a", Documents(endpoints=(endpoint("x", 81),)))) == []
    objective = Objective(name="o", priority=1)
    assert await pool.take(Reset("o", Documents(resources=(objective,)))) == ["+default_llama.objective.o"]
    assert await pool.take(Removed("o")) == ["-default_llama.objective.o"]


@pytest.mark.parametrize("start", [0, 1000], ids=["the same with other ports", "others"])
async def test_others_run_while_a_thousand_endpoints_change_and_the_pool_never_gets_emptier(start: int) -> None:
    pool = await Bus().start()
    await pool.take(Reset("a", Documents(endpoints=tuple(endpoint(str(number)) for number in range(1000)))))
    pool.sizes.clear()
    changed = tuple(endpoint(str(number), 81) for number in range(start, start + 1000))
    assert await longest_turn(pool.take(Reset("a", Documents(endpoints=changed)))) < 0.25
    assert len(pool.facts) == 1001
    assert min(pool.sizes) == 1001


async def test_an_endpoint_of_a_host_name_is_published_once_the_name_has_an_address() -> None:
    pool = await Bus().start()
    assert await pool.take(Upsert("a", endpoint("x", host="x.example"))) == []
    assert await pool.reconciler.resolver.look_up_due()
    await pool.reconciler.refresh()
    assert pool.changes == ["+x"]
    assert cast(Endpoint, pool.facts[f"{KEY}x"]).address == "10.0.0.7"
    assert await pool.take(Delete("a", "default/x")) == ["-x"]
    await pool.reconciler.resolver.look_up_due()
    assert pool.reconciler.names.names == {}


async def test_a_changed_address_costs_the_same_beside_any_number_of_other_names() -> None:
    async def work(others: int) -> float:
        pool = await Bus().start()
        hosts = [f"h{number}" for number in range(others)]
        await pool.take(*(Upsert("a", endpoint(host, host=host)) for host in hosts))
        running = asyncio.create_task(pool.reconciler.resolver.run())
        await eventually(lambda: len(pool.facts) == others + 1, step=0)
        least = inf
        for name in "uvwxyz":  # what the resolver does from time to time isn't part of it
            pool.changes = []
            with counted() as work:
                await pool.take(Upsert("b", endpoint(name, host=f"{name}.example")))
                await eventually(partial(pool.is_last, name), step=0.01)
            least = min(least, work.instructions)
        running.cancel()
        return least

    assert await work(400) < 2 * await work(40)


async def test_what_cannot_be_published_is_withdrawn_and_left_as_it_is_on_the_bus() -> None:
    pool = await Bus().start()
    await pool.take(Upsert("a", endpoint("x", label="l" * 500)))
    with capture_logs():
        assert await pool.take(Upsert("a", endpoint("x", label="l" * 2000))) == ["-x"]
    assert pool.reconciler.unmanaged == [f"{KEY}x"]
    pool.limit, pool.changes = 5000, []
    await pool.reconciler.refresh()
    assert (pool.changes, pool.reconciler.unmanaged) == (["+x"], [])


class Texts:
    """Counts the problems that become text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        as_text = Problem.__str__

        def counting(problem: Problem) -> str:
            self.made += 1
            return as_text(problem)

        monkeypatch.setattr(Problem, "__str__", counting)


HUNDRED = tuple(Problem(f"rules[{number}]", "bad") for number in range(100))


async def test_of_many_origins_with_problems_the_first_are_named_and_the_others_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, texts, origins = await Bus().start(), Texts(monkeypatch), [f"o{number:03}" for number in range(300)]
    warned = [Reset(f"w{origin}", Documents(warnings=HUNDRED)) for origin in origins]
    with capture_logs():
        await pool.take(*(Rejected(origin, HUNDRED) for origin in origins), *warned)
    texts.made = 0
    named = [f"o000: rules[{number}]: bad" for number in range(10)]
    assert pool.reconciler.invalid_origins() == "; ".join([*named, "… and 29990 more"])
    assert pool.reconciler.warnings(10) == [f"w{text}" for text in named]
    assert (pool.reconciler.desired.problematic_count, pool.reconciler.desired.warning_count) == (300, 30_000)
    assert texts.made <= 20
    state = pool.reconciler.state()
    for name, first in (("problems", "o000"), ("warnings", "wo000")):
        assert len(state[name]) == LISTED + 1
        assert state[name][first] == [f"rules[{number}]: bad" for number in range(100)]
        assert state[name]["…"] == f"and {300 - LISTED} more"
    with capture_logs():
        await pool.take(*map(Removed, origins[1:]), *(Removed(reset.origin) for reset in warned))
    assert pool.reconciler.invalid_origins() == "; ".join([*named, "… and 90 more"])
    assert pool.reconciler.desired.warning_count == 0
    assert "…" not in pool.reconciler.state()["problems"]


async def test_each_origin_has_one_log_line_which_names_the_first_problems() -> None:
    pool, first = await Bus().start(), [f"rules[{number}]: bad" for number in range(10)]
    with capture_logs() as logs:
        await pool.take(Rejected("x", HUNDRED), Reset("y", Documents(warnings=HUNDRED)))
    assert [(line["event"], line["problems"]) for line in logs[:2]] == [
        ("facts.rejected", [*first, "… and 90 more"]),
        ("facts.warning", [*first, "… and 90 more"]),
    ]
    with capture_logs() as logs:
        await pool.take(Rejected("x", HUNDRED), Reset("y", Documents(warnings=(*HUNDRED[:50], Problem("", "new")))))
    assert [(line["event"], line["problems"]) for line in logs if "problems" in line] == [
        ("facts.warning", ["document: new"])
    ], "what was logged before isn't logged again"


@pytest.mark.parametrize("at", ["a change", "the start"])
async def test_others_run_while_the_warnings_and_problems_of_many_origins_are_logged(at: str) -> None:
    pool, events = await Bus().start(), list[Event]()
    for number in range(200):
        events += [Reset(f"w{number}", Documents(warnings=HUNDRED)), Rejected(f"o{number}", HUNDRED)]
    with capture_logs() as logs:
        if at == "a change":
            assert await longest_turn(pool.take(*events)) < 0.25
        else:
            await pool.reconciler.apply(events)
            assert await longest_turn(pool.reconciler.log_remarks()) < 0.25
    assert len([line for line in logs if line["event"] == "facts.warning"]) == 200


async def test_what_is_said_of_other_configurations_is_logged_once_the_preferred_one_is_there() -> None:
    pool = await Bus("z").start()

    def configured(origin: str) -> Reset:
        return Reset(origin, Documents(configuration=Configuration(text="", origin=origin)))

    with capture_logs() as logs:
        await pool.take(configured("x"))
        await pool.take(configured("z"))
        await pool.take(configured("z"))
    assert [line["documents"] for line in logs if line["event"] == "facts.ignored"] == [
        ["EndpointPickerConfig: z takes precedence"]
    ]


async def test_a_fact_that_was_never_valid_is_left_as_it_is_on_the_bus() -> None:
    pool = await Bus().start()
    with capture_logs():
        await pool.take(Rejected("o", (Problem("", "bad"),), ("objective", "o")))
    assert pool.reconciler.unmanaged == ["default_llama.objective.o"]
    assert await pool.take(Reset("o", Documents(resources=(Objective(name="o", priority=1),)))) != []
    assert pool.reconciler.unmanaged == []


NAMES, ORIGINS, PORTS = st.sampled_from("xyz"), st.sampled_from("ab"), st.sampled_from([80, 81])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(lambda origin, name, port: Upsert(origin, endpoint(name, port)), ORIGINS, NAMES, PORTS),
    st.builds(lambda origin, name: Delete(origin, f"default/{name}"), ORIGINS, NAMES),
    st.builds(
        lambda origin, names: Reset(origin, Documents(endpoints=tuple(map(endpoint, sorted(names))))),
        ORIGINS,
        st.sets(NAMES),
    ),
    st.builds(lambda priority: Reset("o", Documents(resources=(Objective(name="o", priority=priority),))), PORTS),
    st.just(Removed("o")),
)


@given(st.lists(st.lists(EVENTS, max_size=3), max_size=8))
async def test_the_changes_lead_to_what_is_in_force(bursts: list[list[Event]]) -> None:
    pool = await Bus().start()
    with capture_logs():
        for burst in bursts:
            await pool.take(*burst)
            merged = pool.reconciler.desired.merged
            assert merged is not None
            in_force = [*merged.endpoints.values(), *merged.other_facts(POOL)]
            assert sorted(map(repr, pool.facts.values())) == sorted(map(repr, in_force))
            assert pool.facts == pool.reconciler.facts


@pytest.mark.parametrize(
    "change",
    [
        Reset("changed", Documents(resources=(Objective(name="o", priority=1),))),
        Rejected("changed", (Problem("", "bad"),)),
        Upsert("a", endpoint("x")),
    ],
    ids=["a resource", "a resource that is rejected", "an endpoint"],
)
async def test_a_change_costs_the_same_beside_any_number_of_other_origins(change: Event) -> None:
    async def work(others: int) -> int:
        pool = await Bus().start()
        warnings, problems = (Problem("", "odd"),), (Problem("", "bad"),)
        good = [Objective(name=f"o{number}", priority=1) for number in range(others)]
        with capture_logs():
            await pool.take(
                *(Reset(document.name, Documents(resources=(document,), warnings=warnings)) for document in good),
                *(Rejected(f"bad{number}", problems, ("objective", f"bad{number}")) for number in range(others)),
                Rejected("changed", (Problem("", "worse"),)),
            )
            assert len(pool.reconciler.unmanaged) == others
            with counted() as work:
                await pool.take(change)
        return work.instructions

    assert await work(400) < 1.2 * await work(40)
