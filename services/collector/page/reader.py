"""Reads the metrics pages of one endpoint incrementally, because consecutive pages differ in a few numbers only.

The exposition format lists the samples of a metric family in one block below its `# HELP` and `# TYPE` lines, and pages
keep the order of the families. So a reader remembers the position of each block that it needs. On the next page it
looks there first, moved by as much as the blocks before have moved. If a block has the same text, its selectors keep
their values. The reader searches the whole page only for a block that it doesn't find there.

The result equals that of a scan of the whole page, with two exceptions that last until the next scan, after
`RESCAN_SECONDS` and `RESCAN_PAGES`: a family that appears without a `# TYPE` line before, and samples outside of their
family's block.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from services.collector.interfaces import Binding, MetricsBinding, Reader
from services.collector.page.scan import PIECE, pieces, scan
from services.collector.page.selection import MetricFallback, Selector

RESCAN_SECONDS = 1.0
RESCAN_PAGES = 10
"""After both the reader forgets all positions. With seconds alone, it would scan every page of an endpoint that is
scraped once a second."""
SEARCH_RANGE = 2048
"""Bytes around its expected position in which a block is searched for."""
MAX_BLOCK = PIECE
"""Bytes of a block whose position is remembered."""
SMALL_BLOCK = 4096
"""Bytes of a block that is scanned without a pause for other tasks."""
MAX_PAGE = 4 * 2**20
"""Bytes of a page whose positions are remembered: a search for headers in a larger one takes too long."""
MAX_OFFERS = 250
"""Parsed lines times selectors between two pauses for other tasks."""

_HEADER = re.compile(rb"# (?:TYPE|HELP|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*)(?=[ \t\r\n])")
MAX_HEADER = 1024
"""Bytes of a header line in which its family's name ends. One with a longer name is as good as none."""
_NEXT = re.compile(rb"\n# (?:HELP |TYPE |UNIT |EOF)")
"""The beginning of a line that ends the block before it. Other comments don't."""
_MAX_BEGINNING = 7
_SUFFIXES = (b"", b"_bucket", b"_sum", b"_count", b"_total", b"_info", b"_created", b"_gsum", b"_gcount")
"""Suffixes of sample names after the name of their family."""
_NEWLINE = ord("\n")


class MetricsReader(Reader):
    """Reads the metrics pages of one endpoint for its bindings."""

    def __init__(self, bindings: Sequence[Binding]) -> None:
        self._bindings = [binding for binding in bindings if isinstance(binding, MetricsBinding)]
        self._fallbacks: list[MetricFallback] = []
        """Those of the last page."""
        self._blocks: dict[bytes, _Block] = {}
        """By sample name, in the order of the page; only those with a known position."""
        self._plan: _Plan | None = None
        """How to read a page with the same families as the last one; None if it takes a search."""
        self._rescanned_at: float | None = None
        self._pages = 0
        """Pages since then."""

    async def read(self, page: bytes, at: float) -> None:
        if self._rescanned_at is None or (self._pages >= RESCAN_PAGES and not at - self._rescanned_at < RESCAN_SECONDS):
            self._blocks, self._plan, self._rescanned_at, self._pages = {}, None, at, 0
        self._pages += 1
        fallbacks = [fallback for binding in self._bindings for fallback in binding.fallbacks]
        if self._plan is None or fallbacks != self._fallbacks or not await self._read_known(self._plan, page):
            self._fallbacks = fallbacks
            self._plan = await self._read_changed(page)

    async def _read_known(self, plan: "_Plan", page: bytes) -> bool:
        """Read a page with the families of the last one. Returns False if it has others."""
        moved = unpaused = 0
        for name, block, selectors in plan:
            if unpaused > PIECE:
                unpaused = 0
                await asyncio.sleep(0)
            if not block.find(page, moved):
                return False
            moved = block.moved
            if not block.read_by:
                unpaused += block.end - block.start
                for selector in selectors:
                    selector.clear()
                if block.end - block.body > SMALL_BLOCK:
                    await _offer(page, name, selectors, ((block.body, block.end),))
                elif block.end > block.body:
                    scan(page, name, selectors, block.body, block.end)
                block.read_by.update(selectors)
        return all(fallback.settled for fallback in self._fallbacks)

    async def _read_changed(self, page: bytes) -> "_Plan | None":
        """Read a page whose families may have changed. Returns the plan for the next one."""
        for fallback in self._fallbacks:
            fallback.begin()
        first = wanted = _wanted(self._fallbacks)
        while wanted:
            moved = unpaused = 0
            lost = dict(wanted)
            for name, block in list(self._blocks.items()):
                if name not in wanted:
                    continue
                if unpaused > PIECE:
                    unpaused = 0
                    await asyncio.sleep(0)
                unpaused += block.end - block.start
                if not block.find(page, moved):
                    # The layout has changed, so absent metrics may have appeared.
                    self._blocks = {key: block for key, block in self._blocks.items() if not isinstance(block, _Absent)}
                    continue
                moved = block.moved
                stale = [selector for selector in wanted[name] if selector not in block.read_by]
                if stale:
                    await _offer(page, name, stale, ((block.body, block.end),))
                    block.read_by.update(stale)
                del lost[name]
            lost |= {name: selectors for name, selectors in wanted.items() if name not in self._blocks}
            for name, selectors in lost.items():
                await self._search(page, name, selectors)
                if len(page) > PIECE:
                    await asyncio.sleep(0)
            wanted = _wanted(self._fallbacks)
        if not all(fallback.settled for fallback in self._fallbacks):
            return None
        plan = [(name, block, first[name]) for name, block in self._blocks.items() if name in first]
        return plan if len(plan) == len(first) else None

    async def _search(self, page: bytes, name: bytes, selectors: Sequence[Selector]) -> None:
        """Search the whole page for a metric, and remember its position."""
        first, last = await _offer(page, name, selectors, pieces(page))
        if len(page) > PIECE:
            await asyncio.sleep(0)
        block = _find_block(page, name, first, last) if len(page) <= MAX_PAGE else None
        self._blocks.pop(name, None)
        if block is not None:
            block.read_by.update(selectors)
            self._blocks[name] = block
            self._blocks = dict(sorted(self._blocks.items(), key=lambda item: item[1].start))

    def __repr__(self) -> str:
        return f"<MetricsReader {len(self._bindings)} bindings, {len(self._blocks)} blocks>"


class _Block:
    """The block of a metric family on the last page."""

    __slots__ = ("after", "body", "end", "family", "header", "moved", "read_by", "start", "text", "to_end")

    def __init__(self, page: bytes, family: bytes, start: int, body: int, end: int) -> None:
        self.family = family
        self.header = page[start:body]
        self.after = _line(page, end)
        """The first line of the next block, which shows that this one ends."""
        self.moved = 0
        """The bytes by which it moved between the last two pages."""
        self.read_by: set[Selector] = set()
        """The selectors that have read the block as it is."""
        self._set(page, start, body, end)

    def _set(self, page: bytes, start: int, body: int, end: int) -> None:
        self.start, self.body, self.end = start, body, end
        self.text = page[start : end + len(self.after)]
        self.to_end = start + len(self.text) == len(page)

    def find(self, page: bytes, moved: int) -> bool:
        """Find the block on another page, where the blocks before it have moved by `moved` bytes. Returns whether the
        page has it."""
        start = self.start + moved
        if start >= 0 and page.startswith(self.text, start) and _begins_line(page, start):
            if not self.to_end or start + len(self.text) == len(page):
                self.moved, self.start, self.body, self.end = moved, start, self.body + moved, self.end + moved
                return True
        elif start < 0 or not page.startswith(self.header, start) or not _begins_line(page, start):
            start = page.find(
                self.header, max(0, start - SEARCH_RANGE), max(0, start + SEARCH_RANGE) + len(self.header)
            )
            if start < 0 or not _begins_line(page, start):
                return False
        body = start + len(self.header)
        end = _end(page, start, body)
        if end is None:
            return False
        if self.to_end or not page.startswith(self.after, end):
            if _family(page, end) == self.family:
                return False  # its header has got more lines
            self.after = _line(page, end)
        self.moved = start - self.start
        self._set(page, start, body, end)
        self.read_by.clear()
        return True


class _Absent(_Block):
    """The block of a family that the page doesn't have."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(b"", b"", 0, 0, 0)

    def find(self, page: bytes, moved: int) -> bool:
        self.moved = moved
        return True


_Plan: TypeAlias = list[tuple[bytes, _Block, list[Selector]]]
"""The blocks in the order of the page: sample name, block, and the selectors to offer its samples to."""


async def _offer(
    page: bytes, name: bytes, selectors: Sequence[Selector], pieces: Iterable[tuple[int, int]]
) -> tuple[int, int]:
    """Offer a metric's samples in these pieces of the page to the selectors. Returns where the first begins and the
    last ends, -1 without any. Other tasks run after each piece and after many samples."""
    for selector in selectors:
        selector.clear()
    most = max(1, MAX_OFFERS // len(selectors))
    first = last = -1
    pause = False
    for start, end in pieces:
        while start < end:
            if pause:
                await asyncio.sleep(0)
            begin, stop, start = scan(page, name, selectors, start, end, most)
            if begin >= 0:
                first, last = begin if first < 0 else first, stop
            pause = True
    return first, last


def _wanted(fallbacks: Iterable[MetricFallback]) -> dict[bytes, list[Selector]]:
    """The selectors to search for next, by sample name: those with the same name share a search."""
    wanted: dict[bytes, list[Selector]] = {}
    for fallback in fallbacks:
        selector = fallback.next()
        if selector is not None:
            wanted.setdefault(selector.name, []).append(selector)
    return wanted


def _find_block(page: bytes, name: bytes, first: int, last: int) -> _Block | None:
    """The block of a metric whose samples begin and end there; without samples, that below the family's header. None
    when samples or header lines are outside of their family's block, or the block is too large."""
    if first < 0:
        line = _type_line(page, name)
        if line < 0:
            return _Absent()
    else:
        line = page.rfind(b"\n#", max(0, first - MAX_BLOCK), first) + 1
    family = _family(page, line)
    if family is None or name[len(family) :] not in _SUFFIXES or not name.startswith(family):
        return None
    start = line
    while start > max(0, line - MAX_BLOCK) and _family(page, before := page.rfind(b"\n", 0, start - 1) + 1) == family:
        start = before
    body = line
    while body < line + MAX_BLOCK and _family(page, body) == family:
        body = page.find(b"\n", body) + 1 or len(page)
    end = _end(page, start, body)
    if end is None or last > end or _family(page, end) == family:
        return None
    return _Block(page, family, start, body, end)


def _type_line(page: bytes, name: bytes) -> int:
    """Start of the `# TYPE` line of the metric's family; -1 without one."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            text = b"# TYPE " + name[: len(name) - len(suffix)] + b" "
            line = 0 if page.startswith(text) else page.find(b"\n" + text) + 1
            if line or page.startswith(text):
                return line
    return -1


def _family(page: bytes, line: int) -> bytes | None:
    """The family of a header line; None for other lines."""
    found = _HEADER.match(page, line, line + MAX_HEADER)
    return None if found is None else found.group(1)


def _line(page: bytes, at: int) -> bytes:
    """The line that begins there, as far as `_family` reads it."""
    return page[at : page.find(b"\n", at, at + MAX_HEADER) + 1 or at + MAX_HEADER]


def _end(page: bytes, start: int, body: int) -> int | None:
    """End of the block whose header and body begin there; None when it is too large."""
    limit = start + MAX_BLOCK
    found = _NEXT.search(page, body - 1, limit + _MAX_BEGINNING)
    if found is not None and (end := found.start() + 1) <= limit:
        return end
    return len(page) if len(page) <= limit else None


def _begins_line(page: bytes, at: int) -> bool:
    return at == 0 or page[at - 1] == _NEWLINE
