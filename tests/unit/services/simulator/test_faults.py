import pytest

from services.simulator.faults import AnyFault, Fail, Faults, Hang, Huge, Slow, Target


def test_a_fault_with_a_count_is_over_after_so_many_calls() -> None:
    faults = Faults()
    faults.set("metrics", Fail(count=2))
    assert faults.take("inference") == (None, None)
    assert [faults.take("metrics")[0] for _ in range(3)] == [Fail(count=2), Fail(count=2), None]
    assert faults.describe() == {"metrics": None, "inference": None}


def test_taking_a_fault_away_lets_go_of_what_it_holds_even_after_its_count() -> None:
    faults = Faults()
    faults.set("inference", Hang(count=1))
    _, lifted = faults.take("inference")
    assert lifted is not None
    assert not lifted.is_set()
    faults.clear("inference")
    assert lifted.is_set()


def test_a_fault_that_is_taken_away_before_its_count_leaves_nothing_behind() -> None:
    faults = Faults()
    faults.set("metrics", Fail(count=1))
    faults.clear("metrics")
    assert faults.take("metrics") == (None, None)


def test_a_new_fault_lets_go_of_what_the_old_one_holds() -> None:
    faults = Faults()
    faults.set("inference", Hang())
    _, lifted = faults.take("inference")
    faults.set("inference", Fail())
    assert lifted is not None
    assert lifted.is_set()


@pytest.mark.parametrize(
    ("target", "fault", "message"),
    [
        ("inference", Huge(), "inference.kind: 'huge' is valid for metrics only"),
        ("metrics", Slow(factor=2), "metrics.factor: 2 slows the engine"),
        ("inference", Slow(factor=2, count=1), "inference.count: 1 can't go with a factor"),
    ],
)
def test_what_makes_no_sense_is_refused(target: Target, fault: AnyFault, message: str) -> None:
    faults = Faults()
    with pytest.raises(ValueError, match=message):
        faults.set(target, fault)
    assert faults.describe()[target] is None


def test_the_slowdown_is_that_of_the_fault_which_is_set() -> None:
    faults = Faults()
    assert faults.slowdown == 1
    faults.set("inference", Slow(factor=3))
    assert faults.slowdown == 3
    faults.clear("inference")
    assert faults.slowdown == 1
