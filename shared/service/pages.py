"""Writes large pages in slices, between which the process does its other work."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

SLICE = 500
"""Samples that are written at once: some 3 ms."""
PIECE = 64 * 1024
"""Bytes that are sent at once of what is already made."""
CREATED = "_created"
T = TypeVar("T")
_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""Held by the task that produces a piece of a page."""


class _Families(Collector):
    def __init__(self) -> None:
        self.families: list[Metric] = []

    def collect(self) -> Iterator[Metric]:
        return iter(self.families)


async def alone(make: Callable[[], T]) -> T:
    """Return what `make` returns; the event loop runs once after each such call, however many pages are requested."""
    async with _TURNS.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        made = make()
        await asyncio.sleep(0)
    return made


async def stream_pieces(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces of a page, each produced separately. An empty one is only a pause."""
    while (piece := await alone(partial(next, pieces, None))) is not None:
        if piece:
            yield piece


def exposition(registry: CollectorRegistry) -> AsyncIterator[bytes]:
    """The metrics in Prometheus' text format. Consecutive families of one name are joined: a collector may yield a
    large one in slices."""
    return stream_pieces(_exposition(registry))


def _exposition(registry: CollectorRegistry) -> Iterator[bytes]:
    last = ""
    written, texts = 0, list[bytes]()
    some = _Families()
    for metric in registry.collect():
        if len(metric.samples) > SLICE:
            yield b""  # making them takes as long as writing a slice
        for piece in _slices(metric):
            some.families = [piece]
            text = generate_latest(some)
            if piece.name == last:
                text = text.split(b"\n", 2)[2]  # the lines HELP and TYPE
            last = piece.name
            texts.append(text)
            written += len(piece.samples)
            if written >= SLICE:
                yield b"".join(texts)
                written = 0
                texts.clear()
    yield b"".join(texts)


def _slices(metric: Metric) -> Iterator[Metric]:
    samples = metric.samples
    # what the client library writes behind the others has a heading of its own
    if len(samples) <= SLICE or any(sample.name.endswith(CREATED) for sample in samples):
        yield metric
        return
    for start in range(0, len(samples), SLICE):
        piece = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        piece.samples = samples[start : start + SLICE]
        yield piece


def json_sections(
    head: Mapping[str, object], lists: Mapping[str, Iterable[object]], encode: Callable[[object], bytes]
) -> Iterator[bytes]:
    """A JSON object: the members of `head`, and lists, whose items are made and written one by one."""
    opening = b"{" + b",".join(encode(key) + b":" + encode(value) for key, value in head.items())
    separator = b"," if head else b""
    for name, items in lists.items():
        yield opening + separator + encode(name) + b":"
        yield from json_items(items, encode)
        opening, separator = b"", b","
    yield opening + b"}"


def json_state(members: Mapping[str, object], encode: Callable[[object], bytes]) -> Iterator[bytes]:
    """A JSON object, in which an iterator is a list whose items are made and written one by one."""
    lists = {name: value for name, value in members.items() if isinstance(value, Iterator)}
    return json_sections({name: value for name, value in members.items() if name not in lists}, lists, encode)


def json_items(items: Iterable[object], encode: Callable[[object], bytes]) -> Iterator[bytes]:
    """A JSON list, whose items are made and written one by one. An iterator is an item's own JSON, piece by piece."""
    separator = b"["
    for item in items:
        if isinstance(item, Iterator):
            yield separator
            yield from item
        else:
            yield separator + encode(item)
        separator = b","
    yield b"]" if separator == b"," else b"[]"


def json_object(members: Iterable[tuple[str, object]], encode: Callable[[object], bytes]) -> Iterator[bytes]:
    """A JSON object of many members, some of which are made and written at a time."""
    rest, opening = iter(members), b"{"
    while some := dict(islice(rest, SLICE)):
        yield opening + encode(some)[1:-1]
        opening = b","
    yield b"}" if opening == b"," else b"{}"


def json_tree(members: Mapping[str, object], encode: Callable[[object], bytes]) -> Iterator[bytes]:
    """A JSON object, in which others are written member by member. An iterator is a large one: it gives the names and
    values of its members, as `json_object` takes them."""
    opening = b"{"
    for name, value in members.items():
        opening += encode(name) + b":"
        if isinstance(value, Iterator):
            yield opening
            yield from json_object(value, encode)
        elif isinstance(value, Mapping):
            yield opening
            yield from json_tree(value, encode)
        else:
            yield opening + encode(value)
        opening = b","
    yield b"}" if members else b"{}"


def slices(content: bytes) -> Iterator[bytes]:
    """Finished output in pieces, so that only one piece waits for a client that reads slowly."""
    return (content[at : at + PIECE] for at in range(0, len(content), PIECE))
