"""Which endpoints the view takes for down, by what collectors report, what fallbacks had to do and what they answer."""

from collections.abc import Callable, Sequence

import pytest

from services.picker.state import failed_pairs
from services.picker.state.health import FAILING, NO_HELP, REPLACED, SHOWN, UNREACHABLE
from services.picker.state.view import View
from shared.attributes import REACHABLE
from shared.model import ROLE
from tests.unit.services.picker.world import NOW, endpoint, frame, pool

EXPIRY = 30.0


def reported(view: View, id: str, answered: bool, *, at: float, now: float | None = None) -> None:
    """A collector's report of a server as of `at`, which arrives at `now`, by default at once."""
    now = at if now is None else now
    view.apply_frame(frame([id], {REACHABLE: [float(answered)]}, now - at), now, 0.0)


def replaced(view: View, id: str, now: float) -> None:
    """A fallback has served in the endpoint's place."""
    view.health.suspect(view.layout.endpoints[view.layout.index[id]], now)


def answered(view: View, id: str, *statuses: int, now: float = NOW, helpers: str = "") -> None:
    """Responses of an endpoint, whose requests these were to prefill or encode."""
    endpoints, index = view.layout.endpoints, view.layout.index
    for status in statuses:
        view.health.answered(
            endpoints[index[id]], status, now, [endpoints[index[helper]] for helper in helpers.split()]
        )


def unhealthy(view: View) -> dict[str, str]:
    endpoints = view.layout.endpoints
    return {endpoints[row].id: why for row, why in view.health.unhealthy.items()}


FOUR, FIVE = [500] * 4, [500] * 5
SIGNS: dict[str, Callable[[View], None]] = {
    "fallback": lambda view: replaced(view, "a1", NOW),
    "scrapes": lambda view: reported(view, "a1", False, at=NOW),
    "errors": lambda view: answered(view, "a1", *FIVE),
}
"""Of a1 being down, now."""


def test_an_unreachable_endpoint_is_unhealthy_until_its_next_good_scrape() -> None:
    view = pool("a1", "a2")
    reported(view, "a2", True, at=NOW)
    assert unhealthy(view) == {}
    reported(view, "a2", False, at=NOW + 1)
    assert unhealthy(view) == {"a2": UNREACHABLE}
    reported(view, "a2", True, at=NOW + 2)
    assert unhealthy(view) == {}


def test_a_good_scrape_ends_a_fallbacks_mark_when_it_began_after_it() -> None:
    view = pool("a1", "a2")
    replaced(view, "a1", NOW)
    reported(view, "a1", True, at=NOW - 0.5, now=NOW + 0.5)
    assert unhealthy(view) == {"a1": REPLACED}
    reported(view, "a1", True, at=NOW + 0.25, now=NOW + 0.5)
    assert unhealthy(view) == {}


def test_a_mark_that_scrapes_confirm_lasts_as_long_as_they_do() -> None:
    view = pool("a1")
    replaced(view, "a1", NOW)
    for second in range(0, 2 * int(EXPIRY), 2):
        reported(view, "a1", False, at=NOW + second)
    assert unhealthy(view) == {"a1": UNREACHABLE}


@pytest.mark.parametrize("sign", SIGNS)
def test_without_news_a_sign_holds_until_it_expires(sign: str) -> None:
    """Nobody scrapes, or NATS is away."""
    view = pool("a1", "a2")
    SIGNS[sign](view)
    view.health.refresh(NOW + EXPIRY - 0.5)
    assert list(unhealthy(view)) == ["a1"]
    view.health.refresh(NOW + EXPIRY + 0.5)
    assert unhealthy(view) == {}


def test_a_report_that_was_long_on_its_way_counts_by_its_age() -> None:
    """A picker that starts finds reports of an unknown age."""
    view = pool("a1")
    reported(view, "a1", False, at=NOW - EXPIRY - 1, now=NOW)
    assert unhealthy(view) == {}


@pytest.mark.parametrize("sign", SIGNS)
def test_another_server_under_the_same_id_has_none_of_the_former_ones_signs(sign: str) -> None:
    view = pool("a1", "a2")
    SIGNS[sign](view)
    view.upsert("pool.endpoint.a0", endpoint("a0"))
    assert list(unhealthy(view)) == ["a1"], "other endpoints come"
    view.upsert("pool.endpoint.a1", endpoint("a1", "10.0.9.9"))
    assert unhealthy(view) == {}


def test_a_sign_that_comes_too_late_says_nothing_of_the_server_that_is_there_now() -> None:
    view = pool("a1", "a2")
    former = view.layout.endpoints[0]
    view.upsert("pool.endpoint.a1", endpoint("a1", "10.0.9.9"))
    _ = view.layout
    view.health.suspect(former, NOW)
    view.health.suspect(endpoint("gone"), NOW)
    for status in FIVE:
        view.health.answered(former, status, NOW)
        view.health.answered(endpoint("gone"), status, NOW)
    assert unhealthy(view) == {}
    assert view.health.failures == {}


@pytest.mark.parametrize(
    ("statuses", "failing"),
    [
        (FOUR, False),
        (FIVE, True),
        ([500, 502, 503, 504, 599], True),
        ([501, 505] * 5, False),
        ([*FOUR, 501, 505, 500], True),
        ([499] * 9, False),
        ([*FOUR, 200, *FOUR], False),
        ([*FOUR, 404, 500], False),
        ([*FIVE, 200], False),
        ([*FIVE, 429], False),
        ([*FIVE, 200, *FOUR], False),
        ([*FIVE, 200, *FIVE], True),
    ],
)
def test_five_errors_in_a_row_are_a_sign_that_any_other_answer_ends(statuses: Sequence[int], failing: bool) -> None:
    view = pool("a1", "a2")
    for status in statuses:
        answered(view, "a1", status)
        answered(view, "a2", 200)
    assert unhealthy(view) == ({"a1": FAILING} if failing else {})


def test_a_good_scrape_doesnt_end_the_sign_of_errors() -> None:
    view = pool("a1", "a2")
    answered(view, "a1", *FIVE)
    reported(view, "a1", False, at=NOW + 1)
    assert unhealthy(view) == {"a1": UNREACHABLE}
    reported(view, "a1", True, at=NOW + 2)
    assert unhealthy(view) == {"a1": FAILING}


def test_after_its_sign_of_errors_has_expired_one_more_gives_it_again() -> None:
    view = pool("a1", "a2")
    answered(view, "a1", *FIVE)
    answered(view, "a1", 500, now=NOW + 10)
    view.health.refresh(NOW + 10 + EXPIRY - 0.5)
    assert unhealthy(view) == {"a1": FAILING}, "of a request that was under way"
    now = NOW + 10 + EXPIRY + 0.5
    view.health.refresh(now)
    assert unhealthy(view) == {}
    answered(view, "a1", 503, now=now)
    assert unhealthy(view) == {"a1": FAILING}


def of_roles(**numbers: int) -> View:
    """A pool of so many endpoints of each role, named in this order; those of no role come under "none"."""
    roles = [role for role, number in numbers.items() for _ in range(number)]
    labels = [{} if role == "none" else {ROLE: role} for role in roles]
    return pool(*(endpoint(f"a{number}", "", 8000, **own) for number, own in enumerate(labels)))


@pytest.mark.parametrize(
    ("roles", "most"),
    [
        ({"none": 1}, 0),
        ({"none": 2}, 1),
        ({"none": 3}, 1),
        ({"none": 8}, 4),
        ({"decode": 4, "prefill": 4}, 2),
        ({"decode": 1, "both": 5, "prefill": 2, "encode": 2, "encode-prefill": 2}, 3),
    ],
)
def test_errors_take_at_most_half_of_the_servers_that_answer_clients(roles: dict[str, int], most: int) -> None:
    """A client may provoke them anywhere."""
    view = of_roles(**roles)
    failing = [f"a{number}" for number in range(sum(roles.values()))]
    for name in failing:
        answered(view, name, *FIVE, 500)
    assert list(unhealthy(view)) == failing[:most], "who comes first"
    if most:
        answered(view, "a0", 200)
        answered(view, failing[-1], 500)
        assert list(unhealthy(view)) == [*failing[1:most], failing[-1]], "another one has room"


def test_errors_still_take_at_most_half_when_others_have_left() -> None:
    view = pool("a1", "a2", "a3", "a4")
    for name in ("a3", "a1"):
        answered(view, name, *FIVE)
    assert sorted(unhealthy(view)) == ["a1", "a3"]
    view.delete("pool.endpoint.a2")
    assert list(unhealthy(view)) == ["a3"], "who came first"
    view.delete("pool.endpoint.a3")
    assert unhealthy(view) == {}
    answered(view, "a1", 500)
    assert list(unhealthy(view)) == ["a1"]


def test_another_server_under_the_same_id_has_none_of_the_former_ones_errors() -> None:
    view = pool("a1", "a2", "a3", "a4")
    for name in ("a1", "a2"):
        answered(view, name, *FOUR)
    view.upsert("pool.endpoint.a1", endpoint("a1", "10.0.9.9"))
    for name in ("a1", "a2"):
        answered(view, name, 500)
    assert unhealthy(view) == {"a2": FAILING}


@pytest.mark.parametrize(
    ("before", "status", "marked"),
    [
        ([], 502, True),
        ([500], 502, True),
        ([500, 500], 502, False),
        (FIVE, 502, False),
        ([*FIVE, 200], 502, True),
        ([], 500, True),
        ([], 503, False),
    ],
)
def test_a_502_of_a_server_that_fails_anyway_says_nothing_of_its_prefill_server(
    before: Sequence[int], status: int, marked: bool
) -> None:
    view = of_roles(decode=2, helpers=2)
    answered(view, "a0", *before)
    answered(view, "a0", status, helpers="a2")
    assert (unhealthy(view).get("a2") == NO_HELP) is marked


def test_a_failing_decode_server_makes_two_prefill_servers_suspect_and_is_the_next_itself() -> None:
    view = of_roles(decode=2, helpers=4)
    for prefill in ("a2", "a3", "a4", "a5", ""):
        reported(view, "a2", True, at=NOW + 1)
        answered(view, "a0", 502, helpers=prefill)
    assert unhealthy(view) == {"a0": FAILING, "a3": NO_HELP}


def accuse(view: View, decode: str, prefill: str, now: float, *scrapes: bool) -> None:
    """A decode server answers 502 and then 200, and these scrapes follow."""
    answered(view, decode, 502, now=now, helpers=prefill)
    answered(view, decode, 200, now=now)
    for later, good in enumerate(scrapes, 1):
        reported(view, prefill, good, at=now + later / 10)


def apart(view: View) -> dict[str, list[str]]:
    """The prefill servers that decode servers don't use, by these."""
    ids = [endpoint.id for endpoint in view.layout.endpoints]
    found = {id: sorted(ids[other] for other in view.health.apart_from(row)) for row, id in enumerate(ids)}
    return {id: others for id, others in found.items() if others}


def test_a_decode_server_and_a_prefill_server_that_failed_it_stay_apart_though_scrapes_are_good() -> None:
    """Nobody knows which of them is the cause. What is under way to it says nothing new."""
    view = of_roles(decode=2, helpers=2)
    accuse(view, "a0", "a2", NOW, True)
    assert (unhealthy(view), apart(view)) == ({}, {"a0": ["a2"]})
    answered(view, "a0", *[502] * 9, now=NOW + 1, helpers="a2")
    assert (unhealthy(view), view.health.failures) == ({}, {})
    accuse(view, "a1", "a3", NOW + 2, True)
    assert (unhealthy(view), apart(view)) == ({}, {"a0": ["a2"], "a1": ["a3"]})


def test_a_prefill_server_that_refuses_everything_takes_no_decode_server_away() -> None:
    view = of_roles(decode=4, helpers=2)
    for decode in ("a0", "a1", "a2", "a3"):
        answered(view, decode, *[503] * 9, helpers="a4")
    assert unhealthy(view) == {"a4": NO_HELP}
    assert apart(view) == {decode: ["a4"] for decode in ("a0", "a1", "a2", "a3")}


@pytest.mark.parametrize("prefill", [("a4", "a5"), ("", "")], ids=str)
def test_a_decode_server_that_refuses_everything_ranks_last_and_takes_no_prefill_server_away(
    prefill: Sequence[str],
) -> None:
    view = of_roles(decode=4, helpers=2)
    for _ in range(4):
        for other in prefill:
            answered(view, "a0", 503, helpers=other)
    assert (unhealthy(view), apart(view)) == ({"a0": FAILING}, {})


@pytest.mark.parametrize(("between", "failed"), [(None, True), (200, False), (500, True)])
def test_a_server_that_is_full_now_and_then_stays_with_the_others(between: int | None, failed: bool) -> None:
    """Only one that refuses five requests more than it answers keeps away."""
    view = of_roles(decode=2, helpers=2)
    for _ in range(4):
        answered(view, "a0", 503, now=NOW, helpers="a2")
        answered(view, "a0", 200, now=NOW, helpers="a3")
    assert (unhealthy(view), apart(view)) == ({}, {})
    if between is not None:
        answered(view, "a0", between, now=NOW, helpers="a2")
    answered(view, "a0", 503, now=NOW, helpers="a2")
    assert apart(view) == ({"a0": ["a2"]} if failed else {})


def test_refusals_of_long_ago_dont_add_up() -> None:
    view = of_roles(decode=2, helpers=3)
    answered(view, "a0", *[503] * 4, helpers="a2")
    reported(view, "a2", True, at=NOW + EXPIRY + 1)
    answered(view, "a0", 503, now=NOW + EXPIRY + 1, helpers="a2")
    assert (unhealthy(view), apart(view), view.health.failures) == ({}, {}, {})
    answered(view, "a0", *[503] * 4, now=NOW + EXPIRY + 1, helpers="a2")
    assert apart(view) == {"a0": ["a2"]}
    assert view.health.listens
    reported(view, "a2", True, at=NOW + 3 * EXPIRY)
    answered(view, "a0", 200, now=NOW + 3 * EXPIRY, helpers="a3")
    assert (apart(view), view.health.listens) == ({}, False)


def test_refusals_add_up_while_other_servers_come_and_go() -> None:
    view = of_roles(decode=2, helpers=2)
    answered(view, "a0", *[503] * 4, helpers="a2")
    answered(view, "a1", 503, helpers="a2")
    view.delete("pool.endpoint.a1")
    answered(view, "a0", 503, helpers="a2")
    assert apart(view) == {"a0": ["a2"]}


def test_of_too_many_pairs_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_pairs, "MAX_PAIRS", 2)
    view = of_roles(decode=3, helpers=1)
    for decode in ("a0", "a1", "a2"):
        answered(view, decode, 500, helpers="a3")
    assert apart(view) == {"a1": ["a3"], "a2": ["a3"]}
    for decode in ("a0", "a1", "a2", "a0"):
        answered(view, decode, *[503] * 4, helpers="a3")
    assert apart(view) == {"a1": ["a3"], "a2": ["a3"]}


def test_before_the_decode_server_is_known_prefill_servers_that_failed_several_rank_last() -> None:
    view = of_roles(decode=3, helpers=2)
    accuse(view, "a0", "a3", NOW, True)
    assert view.health.apart_from(None) == {}
    answered(view, "a2", 200, now=NOW + 1, helpers="a3")
    accuse(view, "a1", "a3", NOW + 1, True)
    assert list(view.health.apart_from(None)) == [view.layout.index["a3"]]


@pytest.mark.parametrize("works", [False, True])
def test_of_a_prefill_server_that_fails_several_decode_servers_good_scrapes_say_nothing(works: bool) -> None:
    """Unless it works for another."""
    view = of_roles(decode=3, helpers=2)
    accuse(view, "a0", "a3", NOW, True)
    if works:
        answered(view, "a2", 200, now=NOW + 0.5, helpers="a3")
    accuse(view, "a1", "a3", NOW + 1, True, True)
    assert unhealthy(view) == ({} if works else {"a3": NO_HELP})
    view.health.refresh(NOW + EXPIRY + 2)
    assert (unhealthy(view), apart(view)) == ({}, {})


@pytest.mark.parametrize(("ended", "left"), [("by a bad scrape", {}), ("with the server", {"a1": ["a5"]})])
def test_what_keeps_servers_apart_ends(ended: str, left: dict[str, list[str]]) -> None:
    view = of_roles(decode=3, helpers=3)
    for now, decode in ((NOW, "a0"), (NOW + 1, "a1")):
        accuse(view, decode, "a5", now, ended != "by a bad scrape", True)
    if ended == "with the server":
        view.upsert("pool.endpoint.a0", endpoint("a0", "10.0.9.9", 8000, **{ROLE: "decode"}))
    view.health.refresh(NOW + 2)
    assert apart(view) == left


def test_requests_under_way_to_a_dead_prefill_server_dont_take_decode_servers_away() -> None:
    view = of_roles(decode=4, helpers=2)
    for decode in ("a0", "a1", "a2", "a3"):
        answered(view, decode, *[502] * 9, helpers="a4")
    assert unhealthy(view) == {"a4": NO_HELP}
    view.health.answered(None, 502, NOW, view.layout.endpoints[5:6])
    assert unhealthy(view) == {"a4": NO_HELP, "a5": NO_HELP}, "also if the decode server isn't known"


THREE = {"decode": 3, "prefill": 3, "encode": 3}
"""a0 to a2, a3 to a5, a6 to a8."""


@pytest.mark.parametrize(
    ("answers", "signs", "pairs"),
    [
        ([("a0", 502, "a6")], {"a6": NO_HELP}, {"a0": ["a6"]}),
        ([("a0", 502, "a3 a6")], {}, {"a0": ["a3", "a6"]}),
        ([("a0", 502, "a3 a6")] * 9, {}, {"a0": ["a3", "a6"]}),
        # with several decode servers only the encode server fails
        (
            [("a0", 502, "a3 a6"), ("a1", 502, "a4 a6")],
            {"a6": NO_HELP},
            {"a0": ["a3", "a6"], "a1": ["a6"]},
        ),
        # one with the same works meanwhile
        (
            [("a0", 502, "a3 a6"), ("a2", 200, "a3 a7"), ("a1", 502, "a3 a6")],
            {"a6": NO_HELP},
            {"a0": ["a3", "a6"], "a1": ["a6"]},
        ),
        # or only the prefill server does
        (
            [("a0", 500, "a3 a6"), ("a1", 500, "a3 a7")],
            {"a3": NO_HELP},
            {"a0": ["a3", "a6"], "a1": ["a3"]},
        ),
        # nobody knows which
        (
            [("a0", 502, "a3 a6"), ("a1", 502, "a3 a6")],
            {},
            {"a0": ["a3", "a6"], "a1": ["a3", "a6"]},
        ),
        # requests under way to a server with a sign keep away no other
        (
            [("a0", 502, "a6"), *[("a1", 502, "a3 a6"), ("a2", 502, "a4 a6")] * 9],
            {"a6": NO_HELP},
            {"a0": ["a6"], "a1": ["a6"], "a2": ["a6"]},
        ),
        # several encode servers share the pictures
        (
            [("a0", 502, "a6 a7"), ("a1", 502, "a6 a8")],
            {"a6": NO_HELP},
            {"a0": ["a6", "a7"], "a1": ["a6"]},
        ),
        # the decode server fails whoever helps
        (
            [("a0", 502, helpers) for helpers in ("a3 a6", "a4 a7", "a5 a8", "", "")],
            {"a0": FAILING},
            {"a0": ["a3", "a4", "a5", "a6", "a7", "a8"]},
        ),
        # full servers
        ([("a0", 503, "a3 a6"), ("a0", 503, "a4 a6")] * 2, {}, {}),
        ([("a0", 503, "a3 a6"), ("a0", 503, "a4 a6")] * 5, {"a6": NO_HELP}, {"a0": ["a6"]}),
        ([("a0", 503, "a3 a6"), ("a0", 503, "a4 a7")] * 3, {"a0": FAILING}, {}),
        # a decode server that encodes for itself, too
        ([("a0", 502, "a0")] * 5, {"a0": FAILING}, {}),
    ],
)
def test_of_several_helpers_the_one_that_fails_others_as_well_is_the_cause(
    answers: Sequence[tuple[str, int, str]], signs: dict[str, str], pairs: dict[str, list[str]]
) -> None:
    view = of_roles(**THREE)
    for decode, status, helpers in answers:
        answered(view, decode, status, helpers=helpers)
    assert (unhealthy(view), apart(view)) == (signs, pairs)


def test_of_several_helpers_none_is_the_cause_if_it_isnt_known_who_answered() -> None:
    view = of_roles(**THREE)
    view.health.answered(None, 502, NOW, [view.layout.endpoints[row] for row in (3, 6)])
    assert unhealthy(view) == {}


def test_that_a_server_is_unreachable_is_no_fresh_metric_of_it() -> None:
    view = pool("a1")
    reported(view, "a1", False, at=NOW)
    assert view.columns.newest().tolist() == [-float("inf")]


def test_a_note_says_which_endpoints_rank_last_and_why() -> None:
    view = pool("a1", "a2", "a3")
    assert len(view.layout) == 3
    assert view.health.note() is None
    replaced(view, "a1", NOW)
    reported(view, "a3", False, at=NOW)
    assert view.health.note() == f"2 of 3 endpoints rank last: a1 ({REPLACED}), a3 ({UNREACHABLE})"
    replaced(view, "a2", NOW)
    assert str(view.health.note()).startswith("3 of 3 endpoints seem to be down, so all stay candidates: a1 (")


def test_a_note_says_that_there_are_no_endpoints() -> None:
    assert pool().health.note() == "the pool has no endpoints"


def test_a_note_names_a_few_of_many() -> None:
    names = [f"a{number}" for number in range(10, 20 + SHOWN)]
    view = pool(*names)
    for name in names[:-1]:
        replaced(view, name, NOW)
    assert str(view.health.note()).endswith(f", {len(names) - 1 - SHOWN} more")
