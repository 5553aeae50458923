"""Reading one endpoint's metrics pages, which rarely differ in more than a few numbers.

The samples of a family stand in one group below its `# HELP` and `# TYPE` lines, and pages list their families in the
same order time after time. So a reader remembers where the groups of the wanted metrics were. On the next page it looks
there first, moved by as much as the groups before have moved; a group that says what it said before isn't parsed again,
and what its selectors hold stays. Only what isn't where it was is looked for on the whole page.

A page that keeps the format's rule of one group a family so gives what a whole scan gives, with one exception: a family
that wasn't there before, not even its `# TYPE` line, is found when next the whole page is looked at, which is after
`WHOLE_EVERY` and `WHOLE_PAGES`. No longer can a page that breaks the rule hide a sample.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence

from services.collector.interfaces import Binding, MetricsBinding, Reader
from services.collector.page.scan import STEP, scan, steps
from services.collector.page.selection import Choice, Selector

WHOLE_EVERY = 1.0
WHOLE_PAGES = 10
"""Seconds and pages after both of which nothing that is remembered counts. By the seconds alone, an endpoint that is
asked once a second would have every page searched as a whole."""
SLACK = 2048
"""Bytes by which a group may be off its place before the whole page is searched for it."""
MOST_GROUP = STEP
"""Bytes of a group that is remembered."""
SMALL_GROUP = 4096
"""Bytes of a group that is read in one go."""
MOST_PAGE = 4 * 2**20
"""Bytes of a page whose groups are remembered: looking for headers in a larger one takes too long in one go."""
MOST_OFFERS = 250
"""Lines that are parsed, times the selectors that are offered them, before others get their turn."""

_HEADER = re.compile(rb"# (?:TYPE|HELP|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*)(?=[ \t\r\n])")
_BEGINNINGS = (b"# HELP ", b"# TYPE ", b"# UNIT ", b"# EOF")
"""Lines that end the group before them. Other comments don't."""
_LONGEST_BEGINNING = 7
_PARTS = (b"", b"_bucket", b"_sum", b"_count", b"_total", b"_info", b"_created", b"_gsum", b"_gcount")
"""What samples' names have after their family's."""
_NEWLINE = ord("\n")


class MetricsReader(Reader):
    """Reads the pages of one endpoint for its bindings."""

    def __init__(self, bindings: Sequence[Binding]) -> None:
        self._bindings = [one for one in bindings if isinstance(one, MetricsBinding)]
        self._choices: list[Choice] = []
        """What was looked for on the last page."""
        self._groups: dict[bytes, _Group] = {}
        """By metric name, in the order of the page. A metric whose place can't be told isn't there."""
        self._plan: list[tuple[bytes, _Group, list[Selector]]] | None = None
        """All that has to be looked for on a page where everything is as on the last: the groups in the order of the
        page, with the selectors that hold what they say."""
        self._whole_at: float | None = None
        """When the groups were last forgotten."""
        self._pages = 0
        """Pages since then."""

    async def read(self, page: bytes, at: float) -> None:
        if self._whole_at is None or (self._pages >= WHOLE_PAGES and not at - self._whole_at < WHOLE_EVERY):
            self._groups, self._plan, self._whole_at, self._pages = {}, None, at, 0
        self._pages += 1
        choices = [choice for one in self._bindings for choice in one.choices]
        if self._plan is None or choices != self._choices or not await self._follow(self._plan, page):
            self._choices = choices
            self._plan = await self._look(page)

    async def _follow(self, plan: Iterable[tuple[bytes, "_Group", list[Selector]]], page: bytes) -> bool:
        """Read a page that is like the last; whether it is."""
        moved = 0
        for name, group, selectors in plan:
            if not group.find(page, moved):
                return False
            moved = group.moved
            if not group.told:
                if group.end - group.body > SMALL_GROUP:
                    await _offer(page, name, selectors, ((group.body, group.end),))
                elif group.end > group.body:
                    for one in selectors:
                        one.clear()
                    scan(page, name, selectors, group.body, group.end)
                else:
                    for one in selectors:
                        one.clear()
                group.told.update(selectors)
        return all(choice.found or choice.only for choice in self._choices)

    async def _look(self, page: bytes) -> list[tuple[bytes, "_Group", list[Selector]]] | None:
        """Read a page that may have changed. Returns the plan for the next one, unless that will need another look."""
        for choice in self._choices:
            choice.begin()
        first = wanted = _wanted(self._choices)
        while wanted:
            moved = 0
            lost = dict(wanted)
            for name, group in list(self._groups.items()):
                if name not in wanted:
                    continue
                if not group.find(page, moved):
                    # Another layout: what wasn't on the page may be there now.
                    self._groups = {key: one for key, one in self._groups.items() if not isinstance(one, _Nowhere)}
                    continue
                moved = group.moved
                stale = [one for one in wanted[name] if one not in group.told]
                if stale:
                    await _offer(page, name, stale, ((group.body, group.end),))
                    group.told.update(stale)
                del lost[name]
            lost |= {name: selectors for name, selectors in wanted.items() if name not in self._groups}
            for name, selectors in lost.items():
                await self._search(page, name, selectors)
                if len(page) > STEP:
                    await asyncio.sleep(0)
            wanted = _wanted(self._choices)
        if not all(choice.found or choice.only for choice in self._choices):
            return None
        plan = [(name, group, first[name]) for name, group in self._groups.items() if name in first]
        return plan if len(plan) == len(first) else None

    async def _search(self, page: bytes, name: bytes, selectors: Sequence[Selector]) -> None:
        """Look for a metric on the whole page, and remember where it was."""
        first, last = await _offer(page, name, selectors, steps(page))
        group = _group(page, name, first, last) if len(page) <= MOST_PAGE else None
        self._groups.pop(name, None)
        if group is not None:
            group.told.update(selectors)
            self._groups[name] = group
            self._groups = dict(sorted(self._groups.items(), key=lambda one: one[1].start))

    def __repr__(self) -> str:
        return f"<MetricsReader {len(self._bindings)} bindings, {len(self._groups)} metrics with a known place>"


class _Group:
    """Where a metric's group was on the last page that was looked at, and what it said."""

    __slots__ = ("block", "body", "end", "family", "header", "moved", "start", "to_end", "told")

    def __init__(self, page: bytes, family: bytes, start: int, body: int, end: int) -> None:
        self.family = family
        self.header = page[start:body]
        self.moved = 0
        """By how many bytes it has moved between the last two pages."""
        self.told: set[Selector] = set()
        """The selectors that hold what the group says."""
        self._set(page, start, body, end)

    def _set(self, page: bytes, start: int, body: int, end: int) -> None:
        self.start, self.body, self.end = start, body, end
        self.block = page[start : end + _LONGEST_BEGINNING]
        """The group, and as much of what follows as shows that it ends there."""
        self.to_end = end == len(page)

    def find(self, page: bytes, moved: int) -> bool:
        """Find the group on another page, where the groups before it have moved by `moved` bytes; whether it is
        there."""
        start = self.start + moved
        if start >= 0 and page.startswith(self.header, start) and _begins_line(page, start):
            if page.startswith(self.block, start) and not (self.to_end and start + len(self.block) != len(page)):
                self.moved, self.start, self.body, self.end = moved, start, self.body + moved, self.end + moved
                return True
        else:
            start = page.find(self.header, max(0, start - SLACK), max(0, start + SLACK) + len(self.header))
            if start < 0 or not _begins_line(page, start):
                return False
        body = start + len(self.header)
        if page.startswith(b"#", body) and _family(page, body) == self.family:
            return False  # its header has more lines than it had
        end = _end(page, start, body)
        if end is None:
            return False
        self.moved = start - self.start
        self._set(page, start, body, end)
        self.told.clear()
        return True


class _Nowhere(_Group):
    """A metric that the page doesn't have."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(b"", b"", 0, 0, 0)

    def find(self, page: bytes, moved: int) -> bool:
        self.moved = moved
        return True


async def _offer(
    page: bytes, name: bytes, selectors: Sequence[Selector], pieces: Iterable[tuple[int, int]]
) -> tuple[int, int]:
    """Offer a metric's samples in these pieces of the page to the selectors. Returns where the first begins and the
    last ends, -1 where there is none. Lets others work after each piece, and after many samples."""
    for one in selectors:
        one.clear()
    most = max(1, MOST_OFFERS // len(selectors))
    first = last = -1
    rest = False
    for start, end in pieces:
        while start < end:
            if rest:
                await asyncio.sleep(0)
            begin, stop, start = scan(page, name, selectors, start, end, most)
            if begin >= 0:
                first, last = begin if first < 0 else first, stop
            rest = True
    return first, last


def _wanted(choices: Iterable[Choice]) -> dict[bytes, list[Selector]]:
    """What to look for next, by the metric's name: specifications that share a metric share the search for it."""
    wanted: dict[bytes, list[Selector]] = {}
    for choice in choices:
        selector = choice.next()
        if selector is not None:
            wanted.setdefault(selector.name, []).append(selector)
    return wanted


def _group(page: bytes, name: bytes, first: int, last: int) -> _Group | None:
    """The group of a metric whose samples begin and end there; None where the page doesn't keep the rule, or the group
    is too large to be remembered. Without a sample the group is that below the family's header, if there is one."""
    if first < 0:
        line = _type_line(page, name)
        if line < 0:
            return _Nowhere()
    else:
        line = page.rfind(b"\n#", max(0, first - MOST_GROUP), first) + 1
    family = _family(page, line)
    if family is None or name[len(family) :] not in _PARTS or not name.startswith(family):
        return None
    start = line
    while start > max(0, line - MOST_GROUP) and _family(page, before := page.rfind(b"\n", 0, start - 1) + 1) == family:
        start = before
    body = line
    while body < line + MOST_GROUP and _family(page, body) == family:
        body = page.find(b"\n", body) + 1 or len(page)
    end = _end(page, start, body)
    return None if end is None or last > end else _Group(page, family, start, body, end)


def _type_line(page: bytes, name: bytes) -> int:
    """Where the line begins that says the type of the metric's family; -1 where there is none."""
    for part in _PARTS:
        if name.endswith(part):
            text = b"# TYPE " + name[: len(name) - len(part)] + b" "
            line = 0 if page.startswith(text) else page.find(b"\n" + text) + 1
            if line or page.startswith(text):
                return line
    return -1


def _family(page: bytes, line: int) -> bytes | None:
    """The family that a header line is about; None for any other line."""
    found = _HEADER.match(page, line)
    return None if found is None else found.group(1)


def _end(page: bytes, start: int, body: int) -> int | None:
    """Where the group ends whose header and body begin there; None when it is too large."""
    at, limit = body - 1, start + MOST_GROUP
    while (at := page.find(b"\n#", at, limit)) >= 0:
        if page.startswith(_BEGINNINGS, at + 1):
            return at + 1
        at += 1
    return len(page) if len(page) <= limit else None


def _begins_line(page: bytes, at: int) -> bool:
    return at == 0 or page[at - 1] == _NEWLINE
