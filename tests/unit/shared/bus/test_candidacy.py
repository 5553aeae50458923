"""Who of several candidates is the fittest, by what each says of itself."""

from shared.bus.candidacy import Candidates
from shared.bus.messages import Candidate


def candidate(owner: str, *fitness: int, leaving: bool = False) -> Candidate:
    return Candidate(owner=owner, fitness=fitness, leaving=leaving)


def test_nobody_is_better_than_one_who_is_alone() -> None:
    assert Candidates().better((0, 0), 0.0) is None


def test_the_first_number_counts_most_and_equals_are_no_better() -> None:
    field = Candidates()
    field.observe(candidate("a", 2, 0), 0.0)
    assert field.better((1, 5), 0.1) == "a"
    assert field.better((2, 0), 0.1) is None
    assert field.better((2, 1), 0.1) is None


def test_of_several_who_are_better_it_is_the_best() -> None:
    field = Candidates()
    field.observe(candidate("a", 1, 1), 0.0)
    field.observe(candidate("c", 2, 2), 0.0)
    field.observe(candidate("b", 2, 2), 0.0)
    assert field.better((0, 0), 0.1) == "c"


def test_the_last_word_of_a_candidate_counts() -> None:
    field = Candidates()
    field.observe(candidate("a", 2, 2), 0.0)
    field.observe(candidate("a", 1, 0), 0.5)
    assert field.better((1, 1), 0.6) is None


def test_who_is_silent_or_leaves_does_not_count() -> None:
    field = Candidates(expiry=1.5)
    field.observe(candidate("a", 2), 0.0)
    assert field.better((1,), 1.4) == "a"
    assert field.better((1,), 1.5) is None
    field.observe(candidate("b", 2), 2.0)
    field.observe(candidate("b", 2, leaving=True), 2.1)
    assert field.better((1,), 2.2) is None


def test_of_candidates_that_somebody_invents_only_some_are_kept_in_mind_until_they_are_silent() -> None:
    field = Candidates(expiry=1.5)
    field.observe(candidate("a", 2), 0.0)
    for number in range(1000):
        field.observe(candidate(f"invented {number}", 1), 0.0)
    assert len(field) <= 100
    assert field.better((1,), 0.1) == "a"
    field.observe(candidate("b", 3), 2.0)
    assert field.better((1,), 2.1) == "b"
