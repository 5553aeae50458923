"""Another process with our id: told when it is certain, once, for as long as it is there."""

from structlog.testing import capture_logs

from shared.bus.namesake import Namesake

PROBLEM = "another picker has the id 'p1' too; each needs an --id of its own"


def test_who_goes_on_sending_under_our_id_is_told_once_and_counted() -> None:
    namesake = Namesake("picker", "p1")
    assert namesake.problem(10.0) is None
    with capture_logs() as lines:
        for number in range(10):
            namesake.heard(10.0 + number / 2)
    assert [(line["event"], line["problem"]) for line in lines] == [("id.taken", PROBLEM)]
    assert namesake.problem(15.0) == PROBLEM
    assert namesake.messages == 10


def test_messages_of_one_moment_are_our_own_of_the_connection_before() -> None:
    namesake = Namesake("picker", "p1")
    with capture_logs() as lines:
        for number in range(40):
            namesake.heard(10.0 + number / 1000)
        assert namesake.problem(10.5) is None
        namesake.heard(20.0)
        assert namesake.problem(20.0) is None
    assert not lines


def test_it_is_over_when_nothing_comes_any_more_or_the_other_leaves_and_the_next_one_is_told_again() -> None:
    namesake = Namesake("picker", "p1")
    with capture_logs() as lines:
        for now in (10.0, 10.5, 11.0):
            namesake.heard(now)
        assert namesake.problem(11.0) == namesake.problem(12.4) == PROBLEM
        assert namesake.problem(12.5) is None
        for now in (20.0, 20.5, 21.0):
            namesake.heard(now)
    assert (namesake.problem(21.1), len(lines)) == (PROBLEM, 2)
    namesake.heard(21.2, leaving=True)
    assert namesake.problem(21.3) is None
