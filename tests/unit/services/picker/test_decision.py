import json
import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from services.picker.decision import SHOWN, SHOWN_SUBSET, Decision, RequestSummary
from services.picker.request import Headers, Refusal, Request, Route
from services.picker.scheduling.cycle import Samples
from services.picker.scheduling.record import FilterStep, ProfileRun, ScoreStep
from shared.service.admin import encoded
from shared.service.pages import json_tree
from tests.unit.services.picker.world import pool, request

ANY = st.floats(allow_nan=True, allow_infinity=True)


def decision(totals: list[float], **fields: Any) -> Decision:
    layout = pool("a1", "a2").layout
    values = np.array(totals)
    run = ProfileRun(
        "p", layout.all_rows, (), layout.all_rows, (ScoreStep("scorer", 2.0, values),), values, "picker", (1, 0)
    )
    return Decision(
        request=RequestSummary.of(request(b"prompt")),
        outcome=Route(destinations=("10.0.0.2:8000", "10.0.0.1:8000")),
        layout=layout,
        candidates=layout.all_rows,
        runs={"p": run},
        primary="p",
        monotonic=100.0,
        **fields,
    )


@given(totals=st.tuples(ANY, ANY), values=st.tuples(ANY, ANY), saturation=st.one_of(st.none(), ANY))
def test_an_explanation_is_strict_json_whatever_the_numbers(
    totals: tuple[float, float], values: tuple[float, float], saturation: float | None
) -> None:
    rows = np.arange(2)
    samples = {
        "scraped": Samples(rows, np.array(values), np.array([-math.inf, 99.5]), np.array([False, True])),
        "noted": Samples(rows, np.array(values)),
    }
    explained = decision(list(totals), samples=samples, saturation=saturation).explain()
    assert json.loads(json.dumps(explained, allow_nan=False)) == explained


def test_what_has_a_member_for_each_endpoint_is_made_while_it_is_written() -> None:
    """Thousands of endpoints are too many for one step."""
    rows = np.arange(2)
    made = decision([0.0, 1.0], samples={"queue": Samples(rows, np.array([1.0, 2.0]))})
    explanation, whole = made.explanation(), made.explain()
    for lazy, done in (
        (explanation["profiles"]["p"]["endpoints"], whole["profiles"]["p"]["endpoints"]),
        (explanation["inputs"]["queue"], whole["inputs"]["queue"]),
    ):
        assert next(lazy) == ("a1", done["a1"])
    assert json.loads(b"".join(json_tree(made.explanation(), encoded))) == json.loads(encoded(whole))


def test_what_isnt_a_finite_number_is_none() -> None:
    rows = np.arange(2)
    samples = Samples(rows, np.array([math.nan, 3.0]), np.array([-math.inf, 99.5]), np.array([False, True]))
    explained = decision([math.inf, 0.5], samples={"queue": samples}).explain()
    assert explained["profiles"]["p"]["endpoints"]["a1"]["total"] is None
    assert explained["inputs"]["queue"] == {
        "a1": {"value": None, "age": None, "fresh": False},
        "a2": {"value": 3.0, "age": 0.5, "fresh": True},
    }


def test_a_routed_request_in_one_line() -> None:
    assert decision([1, 2], at=1_790_000_000.25, seconds=0.00004, target_model="other").summary() == {
        "request_id": "request-1",
        "at": "2026-09-21T14:13:20.250Z",
        "state": "under way",
        "model": "model",
        "target_model": "other",
        "objective": "",
        "priority": 0,
        "waited_seconds": 0.0,
        "microseconds": 40.0,
        "destinations": ["10.0.0.2:8000", "10.0.0.1:8000"],
        "endpoint": "a2",
        "served_by": None,
        "served_endpoint": None,
        "status": None,
        "duration_seconds": None,
    }


def test_a_record_says_which_endpoints_were_ranked_last_and_why() -> None:
    made = decision([1, 2])
    run = structs.replace(made.runs["p"], ranked_last={0: "why", 7: "no candidate"})
    assert made.explain()["profiles"]["p"]["ranked_last"] == {}
    explained = structs.replace(made, runs={"p": run}).explain()
    assert explained["profiles"]["p"]["ranked_last"] == {"a1": "why"}


def test_a_refused_request_in_one_line() -> None:
    refusal = Refusal(status=503, message="no endpoints", reason="rejected-no-endpoints")
    made = Decision(request=RequestSummary.of(request()), outcome=refusal, layout=pool().layout)
    assert made.summary()["refused"] == {"status": 503, "message": "no endpoints", "reason": "rejected-no-endpoints"}
    assert made.summary()["state"] == "refused"
    assert made.picked == ()
    assert made.explain()["profiles"] == {}


def test_each_filter_says_whom_it_removed() -> None:
    layout = pool("a1", "a2", "a3").layout
    rows = layout.all_rows
    run = ProfileRun(
        "p",
        rows,
        (FilterStep("first", rows[1:]), FilterStep("second", rows[1:]), FilterStep("third", rows[2:])),
        rows[2:],
        (),
        np.zeros(1),
        "picker",
        (2,),
    )
    made = Decision(
        request=RequestSummary.of(request()),
        outcome=Route(destinations=("x:1",)),
        layout=layout,
        runs={"p": run},
        primary="p",
    )
    assert made.explain()["profiles"]["p"]["filters"] == [
        {"plugin": "first", "kept": 2, "removed": ["a1"]},
        {"plugin": "second", "kept": 2, "removed": []},
        {"plugin": "third", "kept": 1, "removed": ["a2"]},
    ]


def test_of_a_request_little_is_kept_however_large_it_is() -> None:
    large = "x" * 100_000
    made = request(
        b"p" * 100_000,
        id=large,
        model=large,
        headers=[("x-large", large)],
        subset=tuple(f"{large}{number}" for number in range(1000)),
    )
    asked = RequestSummary.of(structs.replace(made, path=f"/{large}"))
    assert (asked.prompt_bytes, asked.body_bytes, asked.subset_entries) == (100_000, 100_000, 1000)
    assert (len(asked.id), len(asked.path), len(asked.model)) == (SHOWN, SHOWN, SHOWN)
    assert asked.subset is not None
    assert [len(entry) for entry in asked.subset] == [SHOWN] * SHOWN_SUBSET
    explained = Decision(request=asked, outcome=Refusal(status=503, message=""), layout=pool().layout).explain()
    assert len(json.dumps(explained)) < 8 * 1024 + SHOWN_SUBSET * SHOWN


def test_no_hint_is_told_from_an_empty_one() -> None:
    assert decision([1, 2]).explain()["subset"] is None
    empty = RequestSummary.of(request(subset=()))
    made = Decision(request=empty, outcome=Refusal(status=503, message=""), layout=pool().layout)
    assert made.explain()["subset"] == {"entries": 0, "first": []}


def test_a_query_is_not_kept_because_it_can_hold_a_key() -> None:
    request = Request(id="one", headers=Headers(), path="/v1/chat/completions?api_key=secret")
    assert RequestSummary.of(request).path == "/v1/chat/completions"
