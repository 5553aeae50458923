"""What is kept of the problems of all origins: their number and their size are limited."""

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from services.watcher.configuration import installed
from services.watcher.documents import Documents
from services.watcher.problem_budget import MAX_TEXT, OVERHEAD, ProblemBudget
from services.watcher.sources import Rejected, Reset
from shared.config.loader import load
from shared.config.problems import MAX_PROBLEMS, Problem

LOADED = load("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: []\n", installed(), "x")
FORMS: dict[str, Callable[[tuple[Problem, ...]], Rejected | Reset]] = {
    "problems": lambda found: Rejected("x", found),
    "warnings": lambda found: Reset("x", Documents(warnings=found)),
    "ignored documents": lambda found: Reset("x", Documents(ignored=tuple(problem.message for problem in found))),
    "warnings of a configuration": lambda found: Reset("x", Documents(), replace(LOADED, warnings=found)),
}
in_each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def problems(number: int, text: str = "wrong") -> tuple[Problem, ...]:
    return tuple(Problem("", text) for _ in range(number))


def kept(event: Rejected | Reset) -> Sequence[str]:
    """As texts, the last of which may be the number of the others."""
    if isinstance(event, Rejected):
        return [str(problem) for problem in event.problems]
    documents, loaded = event.documents, event.loaded
    found = (*documents.warnings, *documents.ignored, *(loaded.warnings if loaded else ()))
    return list(map(str, found))


@in_each_form
def test_of_an_origin_with_a_problem_in_every_line_the_first_are_kept_and_the_others_counted(
    form: Callable[[tuple[Problem, ...]], Rejected | Reset],
) -> None:
    *first, last = kept(ProblemBudget().fit("x", form(problems(5000))))
    assert (len(first), last) == (MAX_PROBLEMS, f"… and {5000 - MAX_PROBLEMS} more")
    assert len(kept(ProblemBudget().fit("x", form(problems(MAX_PROBLEMS))))) == MAX_PROBLEMS
    assert kept(ProblemBudget().fit("x", form(()))) == []


@in_each_form
def test_of_very_many_origins_the_first_problem_is_kept_and_the_others_counted(
    form: Callable[[tuple[Problem, ...]], Rejected | Reset],
) -> None:
    budget, origins = ProblemBudget(size=40 * (OVERHEAD + len("wrong"))), 1000
    found = [kept(budget.fit(number, form(problems(30)))) for number in range(origins)]
    assert [len(each) for each in found[:3]] == [30, 11, 2], "and how many more"
    assert found[0] == kept(form(problems(30)))
    assert found[1][-1] == "… and 20 more"
    assert all(each == [*kept(form(problems(1))), "… and 29 more"] for each in found[2:])


def test_further_problems_are_counted_over_all_steps_that_leave_some_out() -> None:
    once = ProblemBudget(size=0).fit("x", Rejected("x", problems(500)))
    assert kept(ProblemBudget(size=0).fit("x", once))[-1] == "… and 499 more"


def test_what_isnt_kept_any_more_makes_room() -> None:
    budget, many = ProblemBudget(size=30 * (OVERHEAD + len("wrong"))), Rejected("x", problems(30))
    for _ in range(3):
        assert len(budget.fit("a", many).problems) == 30, "it takes the former one's place"
    assert len(budget.fit("b", many).problems) == 2
    budget.drop("a")
    assert len(budget.fit("c", many).problems) == 30


def test_while_an_origin_is_rejected_its_last_valid_content_counts_too() -> None:
    budget = ProblemBudget(size=30 * (OVERHEAD + len("wrong")))
    budget.fit("a", Reset("a", Documents(warnings=problems(30))))
    assert len(budget.fit("a", Rejected("a", problems(30))).problems) == 2
    budget.fit("a", Reset("a", Documents()))
    assert len(budget.fit("a", Rejected("a", problems(30))).problems) == 30


@in_each_form
def test_a_text_is_cut(form: Callable[[tuple[Problem, ...]], Rejected | Reset]) -> None:
    [text] = kept(ProblemBudget().fit("x", form(problems(1, "x" * 10**6))))
    assert len(text) < 2 * MAX_TEXT
    assert text.endswith("x…")
