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
    """A fault, and a time that the documentation states for it."""

    name: str
    """The fault."""
    effect: str
    """What users see meanwhile."""
    until: str
    """What ends the time that is measured."""
    seconds: float


def measured(promise: Promise, seconds: float) -> None:
    """Note that it took so long. Does nothing outside `make soak`."""
    if path := os.environ.get(MEASURED):
        line = json.dumps({"name": promise.name, "seconds": seconds})
        with Path(path).open("a") as file:
            file.write(f"{line}\n")


def soaking() -> bool:
    """Whether tests run in full length."""
    return MEASURED in os.environ


GOES_ON = "pickers continue with the last view"
COMPLETE = "the view is complete"
EQUAL = "all pickers know the same"
FRESH = "all metrics are fresh"

NATS_KILLED = Promise("NATS killed and restarted, its store kept or wiped", GOES_ON, COMPLETE, 2.0)
NATS_ROLLED_BACK = Promise("NATS rolled back to an older store", f"{GOES_ON}; no endpoint returns", COMPLETE, 2.0)
NATS_WIPED = Promise("NATS wiped under load", "no request fails", COMPLETE, 2.0)
NATS_GONE = Promise("NATS away for ten minutes", f"{GOES_ON}, whose age is exported", EQUAL, 2.0)
NATS_BACK_FOR_FRAMES = Promise("NATS wiped, for a collector", "scraping goes on", FRESH, 2.0)
RECONNECTING = Promise("100 clients reconnect at once", GOES_ON, "all views are complete", 2.0)
PICKER_CUT_OFF = Promise("a picker cut off from NATS, and back", "it continues with its last view", EQUAL, 2.0)
PICKER_SILENT = Promise("its connection silent instead of cut", "it continues with its last view", EQUAL, 2.0)
SLOW_CONSUMER = Promise("a picker too slow for NATS, which drops it", "it continues with its last view", EQUAL, 2.0)
PICKER_STOOD_STILL = Promise("a picker stands still for 2 s while much changes", "others take over", EQUAL, 2.0)
MEDDLED = Promise("messages come twice, in another order and 5 s late", "nothing returns that is gone", EQUAL, 2.0)
LATE_PICKER = Promise("a picker joins a pool of 80 000 prefix blocks", "it isn't ready before", EQUAL, 2.0)
PICKER_KILLED = Promise("a picker killed under load", "no request fails", "its load in flight is forgotten", 2.0)
RESTARTED = Promise(
    "all pickers, collectors and watchers and NATS restarted in turn", "no request fails", "the hit rate is back", 5.0
)
WATCHER_STOPPED = Promise("the leading watcher stopped", "nothing", "a standby leads", 0.3)
WATCHER_KILLED = Promise("the leading watcher killed or frozen", "changes wait", "a standby leads", 2.0)
COLLECTOR_KILLED = Promise("a collector killed; clocks an hour apart", "metrics age, and say so", FRESH, 2.0)
COLLECTOR_STOPPED = Promise("a collector stands still", "metrics age, and say so", FRESH, 2.0)
COLLECTOR_CUT_OFF = Promise("a collector cut off from NATS", "metrics age, and say so", FRESH, 2.0)
FRAMES_MEDDLED = Promise("frames come twice, in another order and 5 s late", "no value returns", FRESH, 2.0)
ODD_SERVERS = Promise("20 misbehaving model servers beside 100 others", "nothing", "age of the others' metrics", 1.0)
SHOWN_AS_DOWN = Promise("a model server killed", "retries at others", "the console shows it as down", 2.0)

PROMISES = {promise.name: promise for promise in list(globals().values()) if isinstance(promise, Promise)}
"""By name, in the order of the table."""
