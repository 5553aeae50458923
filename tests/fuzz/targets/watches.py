"""What must hold of a watch of the Kubernetes API: its lines are the same however TCP cuts them, each is an event or
said to be none, and what a resource comes to can be published, or told to who wrote it.

An input is what the API server sends.
"""

import json

import msgspec
from structlog.testing import capture_logs

from services.watcher.kubernetes.errors import BadAnswer, error_from_response, error_from_status
from services.watcher.kubernetes.reading import read_item
from services.watcher.kubernetes.watch_events import LineSplitter, check_object, parse_event
from services.watcher.resources import KINDS, PoolId
from services.watcher.sources import Rejected, Reset
from shared.bus.codec import decode_fact, encode_fact
from shared.bus.subjects import fact_key

POOL = PoolId("default", "pool")
LIMIT = 1000
"""Bytes of a line."""
MAX_WORDS = 2000
"""Characters of what is said of a line or a resource."""


def check(data: bytes) -> None:
    """Raises AssertionError, or what the readers let out, for an input that shows a fault."""
    whole = _lines([data])
    assert whole == _lines([data[at : at + 1] for at in range(len(data))])
    assert whole == _lines([data[:100], data[100:]])
    _check_words(error_from_response("list", 500, "x", data[:20].decode("latin-1"), data))
    with capture_logs() as logs:
        for line in whole[0]:
            _check_line(line)
    assert not logs, logs


def _lines(pieces: list[bytes]) -> tuple[list[bytes], bool]:
    """The lines, and whether one was too long."""
    lines = LineSplitter(LIMIT)
    found: list[bytes] = []
    try:
        for piece in pieces:
            found.extend(lines.feed(piece))
            assert lines.pending <= LIMIT
    except BadAnswer:
        return found, True
    return found, False


def _check_line(line: bytes) -> None:
    try:
        event = parse_event(line)
        if event.type == "ERROR":
            _check_words(error_from_status("watch", event.object))
            return
        check_object(event.object)
        assert event.resource_version
    except BadAnswer as error:
        _check_words(error)
        return
    kind = event.object.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        return
    read = read_item(event.object, kind, "origin", POOL)
    if isinstance(read, Reset):
        for fact in read.documents.facts():
            assert decode_fact(encode_fact(fact)) == fact
            fact_key("default_pool", fact).encode("ascii")
    elif isinstance(read, Rejected):
        json.dumps([str(problem) for problem in read.problems]).encode()
        assert read.problems
    msgspec.json.encode(event.object)


def _check_words(error: Exception) -> None:
    assert len(str(error).encode()) < MAX_WORDS, error
