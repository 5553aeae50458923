"""Turns at the machine, for tests that run in several processes.

Most tests wait for servers nearly all the time, and run beside each other. One that holds something to a bound of
seconds is `alone`: it waits until the others' present tests are over and keeps the next ones waiting. What they have
started for a whole module stays up, idle.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """Locks on two files in `directory`, which is made; all processes that name it take turns."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._door = directory / "tests.door"
        self._machine = directory / "tests.machine"

    @contextmanager
    def turn(self, *, alone: bool) -> Iterator[None]:
        """Wait for a turn and keep it. Whoever waits stands in the door, so that nobody who comes later gets past."""
        with self._machine.open("ab") as machine:
            with self._door.open("ab") as door:
                fcntl.flock(door, fcntl.LOCK_EX)
                fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
