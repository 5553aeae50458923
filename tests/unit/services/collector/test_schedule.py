"""When a target is due: spread, in a rhythm, one at a time, and less often while it fails."""

import weakref
from itertools import pairwise

import pytest

from services.collector.schedule import FIRST_WITHIN, Schedule, phase


def run(
    schedule: Schedule[str], start: float, end: float, *, takes: float = 0.0, ok: bool = True
) -> dict[str, list[float]]:
    """Drive a schedule through fake time; each scrape takes `takes` seconds. The starts, by key."""
    starts: dict[str, list[float]] = {}
    ends: list[tuple[float, str]] = []
    now = start
    while now < end:
        for key in schedule.due(now):
            starts.setdefault(key, []).append(now)
            ends.append((now + takes, key))
        for ended, key in [each_end for each_end in ends if each_end[0] <= now]:
            ends.remove((ended, key))
            schedule.finished(key, ok, now)
        nexts = [moment for moment in (schedule.next_at(), *(ended for ended, _ in ends)) if moment is not None]
        if not nexts:
            break
        now = max(now, min(nexts))
    return starts


def gaps(starts: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(starts)]


def test_a_target_is_due_once_an_interval() -> None:
    schedule: Schedule[str] = Schedule(1.0)
    schedule.add("a", 0.1, 0.3, 1000.0)
    starts = run(schedule, 1000.0, 1010.0)["a"]
    assert 98 <= len(starts) <= 100
    assert all(gap == pytest.approx(0.1) for gap in gaps(starts)[1:])


def test_there_is_never_less_than_an_interval_between_two_scrapes() -> None:
    for number in range(50):
        schedule: Schedule[str] = Schedule(1.0)
        schedule.add("a", 1.0, phase(str(number)), 5000.123)
        starts = run(schedule, 5000.123, 5010.0)["a"]
        assert all(0.999 <= gap <= 2.0 for gap in gaps(starts))


def test_a_new_target_is_scraped_soon_however_long_its_interval() -> None:
    schedule: Schedule[str] = Schedule(1.0)
    schedule.add("a", 60.0, 0.9, 1000.0)
    due = schedule.next_at()
    assert due is not None
    assert due <= 1000.0 + FIRST_WITHIN


def test_targets_are_spread_over_the_interval() -> None:
    schedule: Schedule[str] = Schedule(1.0)
    for number in range(1000):
        schedule.add(f"t{number}", 1.0, phase(f"t{number}"), 100.0)
    run(schedule, 100.0, 103.0)
    tenths = [0] * 10
    for starts in run(schedule, 103.0, 104.0).values():
        for start in starts:
            tenths[int((start - 103.0) * 10)] += 1
    assert sum(tenths) == pytest.approx(1000, abs=2)
    assert all(60 < tenth < 140 for tenth in tenths)


def test_a_phase_is_the_same_for_everybody() -> None:
    assert phase("default/a|metrics-data-source") == phase("default/a|metrics-data-source")
    assert 0 <= phase("a") < 1


def test_a_target_that_is_being_scraped_is_not_due_again() -> None:
    schedule: Schedule[str] = Schedule(1.0)
    schedule.add("a", 0.1, 0.0, 1000.0)
    assert schedule.due(1000.0) == ["a"]
    assert schedule.due(1005.0) == []
    assert schedule.next_at() is None


def test_slots_that_pass_during_a_scrape_are_left_out() -> None:
    schedule: Schedule[str] = Schedule(1.0)
    schedule.add("a", 0.1, 0.0, 1000.0)
    starts = run(schedule, 1000.0, 1003.0, takes=0.25)["a"]
    assert all(gap == pytest.approx(0.3) for gap in gaps(starts)[1:])


def test_a_target_that_fails_is_asked_less_and_less_often() -> None:
    schedule: Schedule[str] = Schedule(1.0)
    schedule.add("a", 0.1, 0.0, 1000.0)
    starts = run(schedule, 1000.0, 1008.0, ok=False)["a"]
    assert [round(gap, 3) for gap in gaps(starts)[:7]] == [0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0]


def test_after_a_success_the_rhythm_is_back() -> None:
    schedule: Schedule[str] = Schedule(1.0)
    schedule.add("a", 0.1, 0.0, 1000.0)
    run(schedule, 1000.0, 1005.0, ok=False)
    starts = run(schedule, 1005.0, 1009.0)["a"]
    assert all(gap == pytest.approx(0.1) for gap in gaps(starts))


def test_the_back_off_never_makes_an_interval_shorter() -> None:
    schedule: Schedule[str] = Schedule(1.0)
    schedule.add("a", 5.0, 0.0, 1000.0)
    starts = run(schedule, 1000.0, 1060.0, ok=False)["a"]
    assert all(gap == pytest.approx(5.0) for gap in gaps(starts)[1:])


def test_after_a_pause_of_the_process_there_is_no_burst() -> None:
    schedule: Schedule[str] = Schedule(1.0)
    for number in range(100):
        schedule.add(f"t{number}", 0.1, phase(f"t{number}"), 1000.0)
    run(schedule, 1000.0, 1001.0)
    assert len(schedule.due(1006.0)) == 0
    starts = run(schedule, 1006.0, 1006.099)
    assert 90 <= sum(map(len, starts.values())) <= 100
    assert len({start for each_start in starts.values() for start in each_start}) > 50


def test_a_target_that_was_removed_is_never_due() -> None:
    schedule: Schedule[str] = Schedule(1.0)
    schedule.add("a", 0.1, 0.0, 1000.0)
    schedule.remove("a")
    assert schedule.next_at() is None
    assert schedule.due(1005.0) == []
    assert len(schedule) == 0


def test_of_targets_that_were_removed_nothing_is_kept() -> None:
    class Target:
        """An object of some size."""

    schedule: Schedule[Target] = Schedule(1.0)
    targets = [Target() for _ in range(10)]
    for at, target in enumerate(targets):
        schedule.add(target, 3600.0, at / 10, 1000.0)
    kept = weakref.WeakSet(targets)
    for target in targets[1::2]:
        schedule.remove(target)
    del targets[1::2], target
    assert len(kept) == len(schedule) == 5
    assert schedule.due(1000.1) == targets


def test_a_target_that_was_removed_and_added_during_its_scrape_begins_anew() -> None:
    schedule: Schedule[str] = Schedule(1.0)
    schedule.add("a", 0.1, 0.0, 1000.0)
    schedule.due(1000.0)
    schedule.remove("a")
    schedule.add("a", 0.1, 0.0, 1000.05)
    assert schedule.due(1000.05) == ["a"]


def test_an_interval_is_positive() -> None:
    with pytest.raises(ValueError, match="isn't positive"):
        Schedule[str](1.0).add("a", 0.0, 0.0, 0.0)
