import pytest

from services.watcher.documents import Documents
from services.watcher.keeper import few
from services.watcher.sources import Rejected, Reset, bounded
from services.watcher.state import State
from shared.config.problems import Problem
from shared.model import Endpoint

TEN = [str(number) for number in range(10)]


@pytest.mark.parametrize(
    ("texts", "shown"),
    [([], []), (TEN, TEN), ([*TEN, "x"], [*TEN, "… and 1 more"]), (TEN * 3, [*TEN, "… and 20 more"])],
    ids=["none", "ten", "eleven", "thirty"],
)
def test_ten_are_named_and_the_others_counted(texts: list[str], shown: list[str]) -> None:
    assert few(texts) == shown


def test_of_an_origin_with_a_problem_in_every_line_the_first_are_kept_and_the_others_counted() -> None:
    problems = tuple(Problem(f"endpoints[{number}]", "wrong") for number in range(5000))
    rejected = bounded(Rejected("x", problems))
    assert isinstance(rejected, Rejected)
    assert len(rejected.problems) <= 200
    assert "… and 4900 more" in str(rejected.problems[-1])
    ignored = tuple(map(str, range(5000)))
    reset = bounded(Reset("x", Documents(warnings=problems, ignored=ignored)))
    assert isinstance(reset, Reset)
    assert max(len(reset.documents.warnings), len(reset.documents.ignored)) <= 200


def test_of_endpoints_that_two_files_give_the_first_are_named_and_the_others_counted() -> None:
    endpoints = tuple(Endpoint(id=str(number), name=str(number), address="10.0.0.1", port=1) for number in range(5000))
    state = State()
    state.apply([Reset(origin, Documents(endpoints=endpoints)) for origin in ("a", "b")], 0.0)
    assert len(state.problems()["b"]) <= 200
    assert "4900 more" in str(state.problems()["b"][-1])
