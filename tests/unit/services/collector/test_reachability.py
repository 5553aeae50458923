"""When a model server counts as unreachable."""

import pytest

from services.collector.http.client import Failure
from services.collector.reachability import Reachability


def after(*events: str, threshold: int = 3) -> bool:
    """Whether a server is unreachable after these scrapes, a second apart: `source:page`, `source:kind of failure`."""
    made = Reachability(threshold)
    for at, event in enumerate(events):
        source, _, what = event.partition(":")
        if what == "page":
            made.answered(source, at)
        else:
            made.failed(source, Failure(what), at)
    return made.unreachable


REFUSED, SLOW, ERROR, PAGE = "m:connect", "m:timeout", "m:status", "m:page"


@pytest.mark.parametrize(
    ("events", "unreachable"),
    [
        ([PAGE, REFUSED, REFUSED], False),
        ([PAGE, REFUSED, REFUSED, REFUSED], True),
        ([SLOW, REFUSED, SLOW], True),
        ([REFUSED, REFUSED, PAGE, REFUSED], False),
        ([REFUSED, REFUSED, REFUSED, PAGE], False),
        ([REFUSED, REFUSED, ERROR, REFUSED], False),
        ([REFUSED, REFUSED, REFUSED, ERROR], True),
        ([f"m:{kind}" for kind in Failure if kind not in ("connect", "timeout")] * 3, False),
    ],
)
def test_so_many_refusals_and_time_outs_in_a_row_and_until_the_next_page(events: list[str], unreachable: bool) -> None:
    assert after(*events) is unreachable


def test_the_threshold_is_the_settings() -> None:
    assert after(REFUSED, threshold=1)
    assert not after(*[REFUSED] * 9, threshold=10)


@pytest.mark.parametrize(
    ("events", "unreachable"),
    [
        (["m:timeout", "models:page"] * 5, False),
        (["m:timeout", "m:timeout", "models:page", "m:timeout", "m:timeout"], False),
        (["m:connect", "models:page", "models:connect", "models:connect", "models:connect"], True),
        (["m:connect", "models:connect", "m:connect", "models:connect"], False),
    ],
)
def test_a_server_with_several_sources_is_reachable_while_one_brings_pages(
    events: list[str], unreachable: bool
) -> None:
    assert after(*events) is unreachable


def test_an_error_confirms_that_a_server_is_unreachable_and_never_begins_it() -> None:
    made = Reachability(2)
    kinds = [Failure.STATUS, Failure.CONNECT, Failure.CONNECT, Failure.STATUS, Failure.STATUS]
    assert [made.failed("m", kind, at) for at, kind in enumerate(kinds)] == [False, False, True, True, True]
    made.answered("m", 5)
    assert not made.failed("m", Failure.STATUS, 6)
