"""How a survey, and an explained decision, look in a terminal."""

import json

import pytest

from pointsman.docs import DOCS
from pointsman.explain import read_headers
from pointsman.explain import text as explained
from pointsman.status import age, text
from services.picker.reports.explain import in_full
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.config.problems import Invalid
from shared.service.configured import Configured
from shared.service.status import (
    BusStatus,
    FactsStatus,
    LoadStatus,
    MemberStatus,
    PeerLoad,
    PickerStatus,
    WatcherStatus,
)
from shared.service.survey import Survey
from tests.unit.services.picker.handler import PickerUnderTest
from tests.unit.services.picker.reports.test_rehearsal import ready
from tests.unit.services.picker.world import NOW, pool, report

FACTS = FactsStatus(synced=True, age=0.25, epoch=1, sequence=7, count=3, digest="0123456789abcdef", differs_for=1.0)
MEMBERS = (
    MemberStatus(
        id="w",
        tier="watcher",
        version="0.1.0",
        uptime=7300.0,
        ready=True,
        bus=BusStatus(connected_for=90.0),
        facts=FACTS,
        configurations=(Configured("default/default", "file", "1234"),),
        watcher=WatcherStatus(leads=True, epoch=1, source_age=0.004),
    ),
    MemberStatus(id="p", tier="picker", version="0.1.0", picker=PickerStatus(endpoints=3)),
)


def test_a_survey_is_a_table_a_tier_with_the_problems_below() -> None:
    survey = Survey(pool="default/default", at=0.0, leader="w", members=MEMBERS, problems=("bad",), notes=("so",))
    assert text(survey) == [
        "pool default/default",
        "",
        "watcher  version  up  ready  connected  facts          heard  configuration  leads  epoch  source",
        "w        0.1.0    2h  yes    90.0s      3 @ 01234567*  250ms  1234           yes    1      4ms",
        "",
        "picker  version  up   ready  connected  facts  heard  configuration  endpoints  metrics  in flight  peers"
        "  waiting  prefixes",
        "p       0.1.0    0ms  no     –          –      –      –              3          –        0 of 0     0    "
        "  0        –",
        "",
        "note: so",
        "",
        "1 problem:",
        "  bad",
    ]


def test_a_number_that_cannot_be_printed_does_not_hide_the_others() -> None:
    huge = 9 * 10**4299
    load = LoadStatus(requests=huge, peers=(PeerLoad(id="q", requests=huge),))
    member = MemberStatus(id="p", tier="picker", version="0.1.0", picker=PickerStatus(endpoints=3, load=load))
    *_, row, _, _ = text(Survey(pool="default/default", at=0.0, leader="", members=(member,)))
    assert "  3          –        ? of ?     1" in row


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, ""), (0.0, "0ms"), (0.25, "250ms"), (2.14, "2.1s"), (150.0, "2m"), (9000.0, "2h"), (900_000.0, "10d")],
)
def test_an_age_is_short(seconds: float | None, expected: str) -> None:
    assert age(seconds) == expected


def test_a_decision_shows_candidates_scores_and_what_would_change_it() -> None:
    view = pool("a", "b")
    report(view, {WAITING_QUEUE_SIZE: [0.0, 4.0], KV_CACHE_USAGE: [0.0, 0.5]}, ages=[0.0, 60.0])
    picker = PickerUnderTest(view, (DOCS / "profiles" / "weighted-sum.yaml").read_text(encoding="utf-8"))
    decision = picker.handler.schedule(picker.handler.prepare(ready(1), NOW), NOW)
    lines = explained({"picker_id": "p", **json.loads(b"".join(in_full(decision)))})
    assert lines[0].startswith("picker p, configuration ")
    assert lines[1:3] == ["model m", "goes to a (10.0.0.0:8000)"]
    assert "profile default (decides): 2 candidates" in lines
    (row,) = [line for line in lines if line.startswith("  1  a ")]
    assert row.split()[:3] == ["1", "a", "4"]
    (other,) = [line.split() for line in lines if line.split()[:1] == ["b"]]
    assert other[-1] == "60.0s*"
    assert "what would change it:" in lines


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["X-A=1", "b=2"], [("x-a", "1"), ("b", "2")]),
        (["accept=text/html", "text/plain"], [("accept", "text/html,text/plain")]),
        (["a=b=c"], [("a", "b=c")]),
    ],
)
def test_headers_are_read(texts: list[str], expected: list[tuple[str, str]]) -> None:
    assert read_headers(texts) == expected


def test_a_header_without_a_name_is_refused() -> None:
    with pytest.raises(Invalid, match="no NAME=VALUE"):
        read_headers(["text"])
