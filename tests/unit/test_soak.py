"""What `make soak` makes of the measured times."""

import json

from tests.soak.__main__ import summary
from tests.soak.promises import NATS_KILLED, WATCHER_KILLED, Promise


def noted(promise: Promise, *seconds: float) -> list[str]:
    return [json.dumps({"name": promise.name, "seconds": second}) for second in seconds]


def test_a_promise_is_kept_when_its_p99_is() -> None:
    text, broken = summary([*noted(WATCHER_KILLED, 0.5), *noted(NATS_KILLED, 1.0, 1.5, 2.0)])
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert [(row[0], row[3:]) for row in cells[2:]] == [
        (NATS_KILLED.name, ["2 s", "3", "1.50 s", "1.99 s"]),
        (WATCHER_KILLED.name, ["2 s", "1", "0.50 s", "0.50 s"]),
    ]
    assert broken == []


def test_a_broken_promise_is_named() -> None:
    _, broken = summary([*noted(NATS_KILLED, 1.0), *noted(WATCHER_KILLED, 1.0, 2.5)])
    assert [line.split(":")[0] for line in broken] == [f"BROKEN {WATCHER_KILLED.name}"]
