"""A draining endpoint gets no new requests, keeps those that it has, and decisions say so."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from services.picker.admin.metrics import PickerMetrics
from services.picker.flow_control.stages import Stages
from services.picker.metadata import REJECTED_NO_ENDPOINTS
from services.picker.request import Route
from services.picker.state.view import View
from shared.model import ROLE, Endpoint
from tests.unit.services.picker.test_director import decide, director, refusal
from tests.unit.services.picker.world import NOW, endpoint, facts, load, pool, request

RANDOM = "plugins:\n- {type: random-picker, parameters: {maxNumOfEndpoints: 9}}\n"
STICKY = """
plugins:
- {type: session-affinity-filter, parameters: {strategy: session_id}}
- {type: random-picker}
"""


def drained(*members: Endpoint | str, drain: tuple[str, ...]) -> View:
    view = pool(*members)
    for id in drain:
        view.upsert(f"pool.endpoint.{id}", replace(view.endpoints[id], draining=True))
    return view


def destinations(view: View, **options: Any) -> set[str]:
    made = decide(view, request(**options), RANDOM)
    assert isinstance(made.outcome, Route), made.outcome
    return set(made.outcome.destinations)


def test_no_new_request_goes_to_a_draining_endpoint_nor_is_it_a_fallback() -> None:
    view = drained("a1", "a2", "a3", drain=("a2",))
    assert destinations(view) == {"10.0.0.1:8000", "10.0.0.3:8000"}
    view.upsert("pool.endpoint.a2", endpoint("a2"))
    assert len(destinations(view)) == 3


def test_a_subset_hint_doesnt_bring_requests_to_it() -> None:
    view = drained("a1", "a2", "a3", drain=("a2",))
    assert destinations(view, subset=("10.0.0.2", "10.0.0.3:8000")) == {"10.0.0.3:8000"}
    text = refusal(decide(view, request(subset=("10.0.0.2:8000",))))
    assert (text.status, text.reason) == (503, REJECTED_NO_ENDPOINTS)


def test_a_pool_that_drains_as_a_whole_refuses_and_says_why() -> None:
    text = refusal(decide(drained("a1", "a2", drain=("a1", "a2"))))
    assert (text.status, text.message) == (503, "no endpoints: every model server of the pool is draining")


def test_the_explanation_names_it_with_the_reason() -> None:
    explained = decide(drained("a1", "a2", drain=("a2",))).explain()
    assert explained["candidates"] == ["a1"]
    assert explained["excluded"] == {"a2": "draining"}
    assert decide(pool("a1")).explain()["excluded"] == {}


def test_a_session_moves_to_another_endpoint_and_stays_there() -> None:
    view, made = pool("a1", "a2", "a3"), director(STICKY)
    asked = request(headers=[("x-session-id", "s")])

    def served() -> str:
        found = made.decide(asked, view, NOW)
        return found.layout.endpoints[found.picked[0]].id

    first = served()
    assert {served() for _ in range(10)} == {first}
    view.upsert(f"pool.endpoint.{first}", replace(view.endpoints[first], draining=True))
    second = served()
    assert second != first
    view.upsert(f"pool.endpoint.{first}", replace(view.endpoints[first], draining=False))
    assert {served() for _ in range(10)} == {second}


def test_what_is_in_flight_there_still_counts() -> None:
    view = pool("a1", "a2")
    charge = view.in_flight.charge("a2", 70)
    view.apply_load(load("peer", {"a2": (3, 30)}), NOW)
    view.upsert("pool.endpoint.a2", replace(view.endpoints["a2"], draining=True))
    registry = CollectorRegistry()
    PickerMetrics(registry, view, clock=lambda: NOW)

    def metric(name: str) -> float | None:
        return registry.get_sample_value(f"pointsman_picker_{name}")

    assert (metric("endpoints"), metric("draining_endpoints"), metric("draining_requests")) == (2, 1, 4)
    charge.release()
    assert metric("draining_requests") == 3
    (_, state) = view.state(NOW)
    assert (state["draining"], state["inflight"]["tokens"]) == (True, 30)


@pytest.mark.parametrize(("drain", "prefill", "decode"), [((), 2, 3), (("p1",), 1, 3), (("d3", "p4"), 1, 2)])
def test_it_is_no_part_of_the_pools_capacity(drain: tuple[str, ...], prefill: int, decode: int) -> None:
    roles = {"p1": "prefill", "d2": "decode", "d3": "decode", "p4": "prefill", "d5": ""}
    members = [replace(endpoint(name), labels={ROLE: role} if role else {}) for name, role in roles.items()]
    layout = drained(*members, drain=drain).layout
    stages = Stages.of(layout)
    assert (len(stages.prefill), len(stages.decode), len(stages.every)) == (prefill, decode, 5 - len(drain))
    assert not np.isin(stages.every, np.flatnonzero(layout.draining)).any()


def test_what_is_known_of_it_outlives_the_drain() -> None:
    view = pool("a1", "a2")
    assert len(view.layout) == 2
    view.health.suspect(endpoint("a2"), NOW)
    drain = {**facts(endpoint("a1")), "pool.endpoint.a2": replace(endpoint("a2"), draining=True)}
    view.reset(drain)
    assert view.layout.endpoints[1].draining
    assert list(view.health.unhealthy) == [1]
