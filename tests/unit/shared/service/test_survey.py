"""What is wrong with the members of a pool, from what they say."""

import time
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from shared import tasks
from shared.bus import jetstream
from shared.bus.connection import Bus
from shared.bus.errors import Malformed
from shared.bus.query_client import Answer
from shared.bus.subjects import Subjects
from shared.limits import BusLimits
from shared.service import survey as module
from shared.service.configured import Configured
from shared.service.status import (
    CollectorStatus,
    FactsStatus,
    LoadStatus,
    MemberStatus,
    PeerLoad,
    PickerStatus,
    PrefixOriginStatus,
    PrefixStatus,
    Repairs,
    WatcherStatus,
)
from shared.service.survey import (
    GROUPS,
    MAX_OF_MEMBER,
    MAX_SEEN,
    MAX_TEXT,
    MAX_TEXTS,
    Failed,
    Survey,
    Texts,
    notes,
    problems,
    read_status,
    survey,
)
from tests.work import counted, longest_turn

FACTS = FactsStatus(synced=True, age=0.5, epoch=1, sequence=7, count=3, digest="aa", announced_sequence=7)
REVISION = (Configured("default/default", "a file", "1234"),)


def member(tier: str, id: str, **details: Any) -> MemberStatus:
    common = {"version": "1", "ready": True, "pools": ("default/default",), "facts": FACTS, "configurations": REVISION}
    return MemberStatus(tier=tier, id=id, **{**common, **details})


def said(texts: Texts) -> list[str]:
    return list(filter(None, texts))


WATCHER = member("watcher", "w", watcher=WatcherStatus(leads=True))
COLLECTOR = member("collector", "c", collector=CollectorStatus(endpoints=1, assigned=1))
PICKER = member("picker", "p", picker=PickerStatus(endpoints=1))
OTHER = replace(PICKER, id="q")
WELL = [WATCHER, COLLECTOR, PICKER]


def load(**peer: Any) -> MemberStatus:
    """A picker that has a peer's load."""
    return replace(PICKER, picker=PickerStatus(load=LoadStatus(peers=(PeerLoad(id="q", run="1", sequence=5, **peer),))))


def prefixes(**origin: Any) -> MemberStatus:
    known = PrefixOriginStatus(id="q", run="1", **origin)
    return replace(PICKER, picker=PickerStatus(prefixes=PrefixStatus(hashing="x", origins=(known,))))


LOADED = replace(OTHER, picker=PickerStatus(load=LoadStatus(run="1", sequence=5, digest="aa")))
PLACED = replace(OTHER, picker=PickerStatus(prefixes=PrefixStatus(hashing="x", run="1", sequence=5, digest="aa")))

CASES: list[tuple[str, Sequence[MemberStatus], list[str]]] = [
    ("all is well", WELL, []),
    ("a peer's load is older than it says", [WATCHER, COLLECTOR, load(digest="bb"), replace(LOADED, id="r")], []),
    ("a tier is missing", [WATCHER, PICKER], ["no collector answers"]),
    (
        "nobody leads",
        [replace(WATCHER, id="v"), COLLECTOR, PICKER],
        ["watcher w holds the lease and doesn't answer"],
    ),
    ("two lead", [*WELL, replace(WATCHER, id="v")], ["2 watchers lead: w, v"]),
    (
        "one id twice",
        [*WELL, replace(PICKER, pid=2, host="b")],
        ["2 processes are picker p: process 0 on , process 2 on b"],
    ),
    (
        "a member that others see is silent",
        [WATCHER, COLLECTOR, replace(PICKER, sees={"picker": ("q",), "collector": ("c",)})],
        ["picker q doesn't answer, and is seen by p"],
    ),
    (
        "a member isn't ready",
        [WATCHER, COLLECTOR, replace(PICKER, ready=False, reasons={"view": "no endpoints yet"})],
        ["picker p: not ready: view: no endpoints yet"],
    ),
    (
        "several say the same",
        [WATCHER, COLLECTOR, *(replace(PICKER, id=id, configuration_problem="line 3") for id in "pqr")],
        ["picker p, q, r: the last configuration was refused: line 3"],
    ),
    (
        "a configuration was refused",
        [WATCHER, COLLECTOR, replace(PICKER, configuration_problem="line 3")],
        ["picker p: the last configuration was refused: line 3"],
    ),
    (
        "configurations differ",
        [WATCHER, COLLECTOR, replace(PICKER, configurations=(Configured("default/default", "x", "5678"),))],
        ["default/default: configurations differ: 1234: watcher w, collector c; 5678: picker p"],
    ),
    (
        "a member hears nothing",
        [WATCHER, COLLECTOR, replace(PICKER, facts=replace(FACTS, age=60.0))],
        ["picker p: it has had no message of the leading watcher for 60 s"],
    ),
    (
        "a copy differs from what is announced",
        [WATCHER, COLLECTOR, replace(PICKER, facts=replace(FACTS, announced_sequence=8, differs_for=9.0))],
        ["picker p: its facts have differed from the leading watcher's for 9 s"],
    ),
    (
        "copies of one sequence differ",
        [WATCHER, COLLECTOR, replace(PICKER, facts=replace(FACTS, digest="bb"))],
        ["copies of the facts differ: aa: watcher w, collector c; bb: picker p"],
    ),
    (
        "a copy is one message behind",
        [WATCHER, COLLECTOR, replace(PICKER, facts=replace(FACTS, digest="bb", announced_sequence=8))],
        [],
    ),
    (
        "a part of the view differs",
        [WATCHER, COLLECTOR, replace(PICKER, convergence={"prefixes": Repairs(differs_for=8.0)})],
        ["picker p: prefixes: different from what its owners announce for 8 s"],
    ),
    (
        "endpoints are down",
        [
            WATCHER,
            replace(COLLECTOR, collector=CollectorStatus(down=("a", "b"), down_count=9)),
            replace(
                PICKER, picker=PickerStatus(stale=("a",), stale_count=1, unhealthy={"a": "why"}, unhealthy_count=1)
            ),
        ],
        [
            "collector c: no pages of 9 endpoints: a, b, 7 more",
            "picker p: no fresh metrics of 1 endpoint: a",
            "picker p: ranked last: 1 endpoint: a (why)",
        ],
    ),
    (
        "a peer's load is another than it published",
        [WATCHER, COLLECTOR, load(digest="bb"), LOADED],
        ["picker p has another load of picker q than that one published"],
    ),
    ("a peer's load is that which it published", [WATCHER, COLLECTOR, load(digest="aa"), LOADED], []),
    (
        "prefix placements differ",
        [WATCHER, COLLECTOR, prefixes(applied=5, digest="bb"), PLACED],
        ["picker p has other prefix placements of picker q than that one announced"],
    ),
    ("prefix placements are behind", [WATCHER, COLLECTOR, prefixes(applied=4, digest="bb"), PLACED], []),
    ("an older picker has no digest", [WATCHER, COLLECTOR, prefixes(applied=5), PLACED], []),
    (
        "pickers hash differently",
        [WATCHER, COLLECTOR, prefixes(), replace(PLACED, picker=PickerStatus(prefixes=PrefixStatus(hashing="y")))],
        ["pickers hash prompts differently, and don't share placements: x: p; y: q"],
    ),
]


@pytest.mark.parametrize(("members", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_is_wrong_is_named(members: Sequence[MemberStatus], expected: list[str]) -> None:
    assert said(problems(members, (), "w")) == expected


def test_a_lease_that_nobody_holds_and_an_answer_that_failed_are_problems() -> None:
    assert said(problems(WELL, [Failed("picker", "q", "too large")], "")) == [
        "picker q: too large",
        "no watcher holds the lease",
    ]
    assert said(problems(WELL, (), None)) == []


@pytest.mark.parametrize(
    ("tier", "silent"),
    [("watcher", []), ("picker", ["no watcher answers", "watcher w holds the lease and doesn't answer"])],
)
def test_a_leader_whose_answer_failed_has_answered(tier: str, silent: list[str]) -> None:
    found = said(problems([COLLECTOR, PICKER], [Failed(tier, "w", "too large")], "w"))
    assert sorted(found) == sorted([f"{tier} w: too large", *silent])


def test_what_may_be_in_order_is_a_note() -> None:
    newer = replace(PICKER, version="2", notes={"metrics": "gone"}, longest_pause=2.0, configuration_warnings=("old",))
    assert said(notes([WATCHER, newer])) == [
        "versions differ: 1: watcher w; 2: picker p",
        "configuration: old",
        "picker p: metrics: gone",
        "picker p: its event loop once stood still for 2.0 s",
    ]


@pytest.mark.parametrize("says", [WATCHER, OTHER], ids=["another tier's", "another picker's"])
def test_a_member_that_gives_the_status_of_another_one_has_failed(says: MemberStatus) -> None:
    content = msgspec.json.encode(PICKER)
    assert read_status(Answer("p", "picker", 1, content)) == PICKER
    with pytest.raises(Malformed, match=f"picker p answers as {says.tier} {says.id}"):
        read_status(Answer("p", "picker", 1, msgspec.json.encode(says)))


async def surveyed(monkeypatch: pytest.MonkeyPatch, members: Sequence[MemberStatus], **limits: int) -> Survey:
    """A survey of members that answer so."""

    async def query_members(
        _: object, __: object, ___: object, tier: str, *____: object, **_____: object
    ) -> list[Answer]:
        return [Answer(one.id, tier, 1, msgspec.json.encode(one)) for one in members if one.tier == tier]

    async def last(*_: object) -> None:
        return None

    monkeypatch.setattr(module, "query_members", query_members)
    monkeypatch.setattr(jetstream, "last", last)
    bus = Bus("nats://127.0.0.1:1", name="asker", limits=BusLimits(**limits))
    return await survey(bus, Subjects(), "default_default")


async def test_however_much_members_say_a_survey_says_a_bounded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"n{number}": "x" * 2 * MAX_TEXT for number in range(500)}
    chatty = [
        member(
            "picker", id, reasons=many, notes=many, sees={"picker": tuple(f"{id}{number}" for number in range(20_000))}
        )
        for id in "pq"
    ]
    found = await surveyed(monkeypatch, chatty)
    assert [len(one.reasons) for one in found.members] == [MAX_OF_MEMBER] * len(found.members)
    assert len(found.problems) == MAX_TEXTS + 1
    assert found.problems[-1] == "and more of that"
    assert len(found.notes) == MAX_OF_MEMBER
    assert {len(note) for note in found.notes} == {MAX_TEXT}


def test_lists_of_a_status_are_cut_when_it_is_read() -> None:
    names = tuple(str(number) for number in range(MAX_OF_MEMBER + 1))
    texts, parts = dict.fromkeys(names, "x"), dict.fromkeys(names, Repairs())
    chatty = member(
        "picker",
        "p",
        reasons=texts,
        notes=texts,
        convergence=parts,
        configurations=REVISION * len(names),
        configuration_warnings=names,
        sees={"picker": tuple(str(number) for number in range(MAX_SEEN + 1)), **dict.fromkeys(names, ())},
        picker=PickerStatus(unhealthy=texts, stale=names),
        collector=CollectorStatus(down=names),
    )
    read = read_status(Answer("p", "picker", 1, msgspec.json.encode(chatty)))
    assert read.picker is not None
    assert read.collector is not None
    lists: list[Collection[object]] = [
        *(read.reasons, read.notes, read.convergence, read.configurations, read.configuration_warnings),
        *(read.sees, read.picker.unhealthy, read.picker.stale, read.collector.down),
    ]
    assert [len(found) for found in lists] == [MAX_OF_MEMBER] * len(lists)
    assert len(read.sees["picker"]) == MAX_SEEN


def differing(count: int, seen: int = 1) -> list[MemberStatus]:
    """Pickers that agree in nothing. Each sees so many others."""
    return [
        member(
            "picker",
            f"p{number:05}",
            version=str(number),
            facts=replace(FACTS, digest=str(number)),
            reasons={"view": str(number)},
            notes={"bus": str(number)},
            configurations=(Configured("default/default", "a file", str(number)),),
            configuration_warnings=(str(number),),
            sees={"picker": tuple(f"q{number}.{other}" for other in range(seen))},
        )
        for number in range(count)
    ]


async def test_of_members_beyond_the_limit_of_senders_only_the_number_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await surveyed(monkeypatch, [WATCHER, *differing(12)], max_senders=5)
    assert len(found.members) == 6
    assert found.problems[0] == "7 answers of pickers are ignored: there are more than 5"


def test_what_a_survey_costs_grows_with_its_members() -> None:
    def cost(count: int) -> int:
        members = differing(count)
        with counted() as work:
            said(problems(members, (), "")), said(notes(members))
        return work.instructions

    assert cost(400) < 6 * cost(100)


@pytest.mark.parametrize("seen", [1, 30])
async def test_members_are_judged_in_turns_with_other_work(seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.in_turns, "__defaults__", (0.0, time.monotonic))  # others run after each part
    assert await longest_turn(surveyed(monkeypatch, differing(300, seen))) < 0.15


def test_a_list_of_values_ends_early() -> None:
    (versions, *_) = said(notes(differing(GROUPS + 3)))
    assert versions.startswith("versions differ: 0: picker p00000; 1: picker p00001; ")
    assert versions.endswith("; 3 more")
