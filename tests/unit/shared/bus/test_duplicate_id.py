"""Another process with our id: told when it is certain, once, for as long as it is there."""

from structlog.testing import capture_logs

from shared.bus.duplicate_id import DuplicateId

PROBLEM = "another picker has the id 'p1' too; each needs an --id of its own"


def test_who_goes_on_sending_under_our_id_is_told_once_and_counted() -> None:
    duplicate_id = DuplicateId("picker", "p1")
    assert duplicate_id.problem(10.0) is None
    with capture_logs() as lines:
        for number in range(10):
            duplicate_id.observe(10.0 + number / 2)
    assert [(line["event"], line["problem"]) for line in lines] == [("id.duplicate", PROBLEM)]
    assert duplicate_id.problem(15.0) == PROBLEM
    assert duplicate_id.messages == 10


def test_messages_of_one_moment_are_our_own_of_the_connection_before() -> None:
    duplicate_id = DuplicateId("picker", "p1")
    with capture_logs() as lines:
        for number in range(40):
            duplicate_id.observe(10.0 + number / 1000)
        assert duplicate_id.problem(10.5) is None
        duplicate_id.observe(20.0)
        assert duplicate_id.problem(20.0) is None
    assert not lines


def test_it_is_over_when_nothing_comes_any_more_or_the_other_leaves_and_the_next_one_is_told_again() -> None:
    duplicate_id = DuplicateId("picker", "p1")
    with capture_logs() as lines:
        for now in (10.0, 10.5, 11.0):
            duplicate_id.observe(now)
        assert duplicate_id.problem(11.0) == duplicate_id.problem(12.4) == PROBLEM
        assert duplicate_id.problem(12.5) is None
        for now in (20.0, 20.5, 21.0):
            duplicate_id.observe(now)
    assert (duplicate_id.problem(21.1), len(lines)) == (PROBLEM, 2)
    duplicate_id.observe(21.2, leaving=True)
    assert duplicate_id.problem(21.3) is None
