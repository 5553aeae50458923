"""What the design promises in seconds, and where tests note what they measured.

A test notes a time with `measured` and asserts nothing of it: on a busy machine any bound breaks by chance. `make soak`
runs the tests marked `soak` repeatedly on a machine that does nothing else, and holds what they noted to the promise.
"""

import json
import os
from pathlib import Path

from msgspec import Struct

MEASURED = "POINTSMAN_SOAK"
"""The environment variable that names the file for the measured times, a JSON line each."""


class Promise(Struct, frozen=True):
    """A time that the documentation states."""

    name: str
    seconds: float
    source: str
    """The document that promises it."""


def measured(promise: Promise, seconds: float) -> None:
    """Note that it took so long. Does nothing outside `make soak`."""
    if path := os.environ.get(MEASURED):
        line = json.dumps({"name": promise.name, "promise": promise.seconds, "seconds": seconds})
        with Path(path).open("a") as file:
            file.write(f"{line}\n")


def soaking() -> bool:
    """Whether tests run in full length."""
    return MEASURED in os.environ


HOW_IT_WORKS = "docs/how-it-works.md"
WATCHER_TAKEN_OVER = Promise("a standby takes over from a dead watcher", 3.0, HOW_IT_WORKS)
COLLECTOR_TAKEN_OVER = Promise("a dead collector's endpoints go to the others", 2.0, HOW_IT_WORKS)
VIEW_RIGHT_AGAIN = Promise("the view is right again after NATS is back", 2.0, HOW_IT_WORKS)
FRESH_BESIDE_ODD = Promise("age of metrics beside servers that misbehave", 1.0, "architecture: two intervals")
SHOWN_AS_DOWN = Promise("the console shows a killed model server as down", 2.0, "docs/console.md")
