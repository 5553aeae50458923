"""Turns of tests at the machine: beside each other, or alone."""

import fcntl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.turns import Turns

SOON = 10.0


class Taker:
    """A test that takes its turn in a thread, and keeps it until it is told to end."""

    def __init__(self, directory: Path, *, alone: bool) -> None:
        self.runs = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(Turns(directory), alone), daemon=True)
        self._thread.start()

    def _run(self, turns: Turns, alone: bool) -> None:
        with turns.turn(alone=alone):
            self.runs.set()
            self._end.wait(SOON)

    def end(self) -> None:
        self._end.set()
        self._thread.join(SOON)


@pytest.fixture
def take(tmp_path: Path) -> Callable[..., Taker]:
    return lambda alone=False: Taker(tmp_path, alone=alone)


def until_somebody_stands_in_the_door(directory: Path) -> None:
    deadline = time.monotonic() + SOON
    while True:
        with (directory / "tests.door").open("ab") as door:
            try:
                fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_tests_run_beside_each_other(take: Callable[..., Taker]) -> None:
    one, other = take(), take()
    assert one.runs.wait(SOON)
    assert other.runs.wait(SOON)
    one.end()
    other.end()


def test_one_that_is_alone_waits_for_the_others_and_keeps_later_ones_waiting(
    take: Callable[..., Taker], tmp_path: Path
) -> None:
    one = take()
    assert one.runs.wait(SOON)
    alone = take(alone=True)
    until_somebody_stands_in_the_door(tmp_path)
    assert not alone.runs.wait(0.2)
    later = take()
    assert not later.runs.wait(0.2)
    one.end()
    assert alone.runs.wait(SOON)
    assert not later.runs.wait(0.2)
    alone.end()
    assert later.runs.wait(SOON)
    later.end()
