"""A snapshot drawn with rich. 80 columns are enough; rows that the terminal has no room for are counted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from pointsman.top.format import DASH, count, duration, percent
from pointsman.top.snapshot import Snapshot
from shared.pool_view.rows import BandRow, EndpointRow, MemberRow
from shared.printable import printable

STALE = 2.0
"""Seconds after which pickers don't trust a metric (their default)."""
WIDE = 100
"""Width in characters from which on tables have more space."""
MIN_ROWS = 4
"""Endpoints that are shown even if the terminal is lower."""
MAX_BANDS, MAX_NAMED = 5, 8
"""Bands, and members of a tier, that are shown."""
QUIET = "dim"
_CONDITIONS = {"up": "green", "draining": "yellow", "stale": "yellow"}

Sorting: TypeAlias = Literal["name", "queue", "running", "kv", "in-flight", "age"]
SORTINGS: Mapping[Sorting, Callable[[EndpointRow], float]] = {
    "queue": lambda row: -(row.queue or 0),
    "running": lambda row: -(row.running or 0),
    "kv": lambda row: -(row.kv or 0),
    "in-flight": lambda row: -row.in_flight,
    "age": lambda row: float("-inf") if row.age is None else -row.age,
}


def render(
    seen: Snapshot,
    width: int = 80,
    height: int | None = None,
    *,
    head: Sequence[RenderableType] = (),
    sort: Sorting = "name",
) -> RenderableType:
    """The snapshot below its `head` for a terminal of that size; without a height, all rows."""
    wide = width >= WIDE
    bands = [band for band in seen.queues if band.requests or band.running or band.rate][:MAX_BANDS]
    members = _members(seen.members)
    used = len(head) + len(members) + (len(bands) + 2 if bands else 0) + 5  # headings, rules, and a line that is free
    limit = len(seen.endpoints) if height is None else max(height - used, MIN_ROWS)
    parts: list[RenderableType] = [*(head or [title(seen)])]
    if seen.state.reason:
        parts.append(_text(seen.state.reason, "bold red"))
    parts += [Text(), _endpoints(_sorted(seen.endpoints, sort), limit, wide)]
    if bands:
        parts += [Text(), _bands(bands, wide)]
    return Group(*parts, Text(), *members)


def title(seen: Snapshot, *what: str | tuple[str, str]) -> Rule:
    """The line at the top; it says by default which pool it is."""
    age = seen.state.facts_age
    words: list[str | tuple[str, str]] = [("Pointsman  ", "bold"), *(what or [f"{seen.pool}  "])]
    if age is not None and age > STALE:
        words.append((f"no watcher for {duration(age)}  ", "bold red"))
    return Rule(Text.assemble(*words, ("Ctrl-C ends it", QUIET), overflow="ellipsis"), style=QUIET, align="left")


def line(name: str, parts: Sequence[str | tuple[str, str]]) -> Text:
    """A name and what there is of it: `collector  collector-1 (3) · collector-2 (4)`."""
    styled = [(part, "") if isinstance(part, str) else part for part in parts]
    texts = Text(" · ", style=QUIET).join(_text(text, f"not dim {style}") for text, style in styled)
    return Text.assemble((f"{name:<10}", QUIET), texts, overflow="ellipsis", no_wrap=True)


def condition(row: EndpointRow) -> str:
    """An endpoint in a word."""
    if row.draining:
        return "draining"
    if row.reachable is False:
        return "down"
    if row.age is None:
        return "unknown"
    return "stale" if row.age > STALE else "up"


def status_line(seen: Snapshot) -> str:
    """The snapshot in one line, for output that isn't a terminal."""
    if seen.state.reason:
        return printable(seen.state.reason)
    servers = ", ".join(_queues(row) for row in seen.endpoints[:MAX_NAMED])
    more = f", {len(seen.endpoints) - MAX_NAMED} more" if len(seen.endpoints) > MAX_NAMED else ""
    tiers = [count(sum(row.tier == tier for row in seen.members), tier) for tier in ("collector", "picker")]
    in_flight = sum(row.in_flight for row in seen.endpoints)
    return f"waiting+running {servers or DASH}{more} · {count(in_flight, 'request')} in flight · {', '.join(tiers)}"


def _queues(row: EndpointRow) -> str:
    if condition(row) != "up" or row.queue is None or row.running is None:
        return condition(row)
    return f"{row.queue}+{row.running}"


def _sorted(rows: Sequence[EndpointRow], sort: Sorting) -> Sequence[EndpointRow]:
    return sorted(rows, key=SORTINGS[sort]) if sort in SORTINGS else rows


def _endpoints(rows: Sequence[EndpointRow], limit: int, wide: bool) -> Table:
    shown = rows[: limit - 1] if len(rows) > limit else rows
    roles = any(row.role for row in rows)
    headings = ["endpoint 8", "role 6" if roles else "", " 8", "queue >5", "running >7", "KV 4", "cache >5"]
    headings += ["in flight >9", "age >6", "collector" if wide else ""]
    table = _table([heading for heading in headings if heading], wide)
    for row in shown:
        kv = row.kv or 0.0
        style = "red" if kv > 0.9 else "yellow" if kv > 0.7 else ""
        cells: list[Any] = [
            _text(row.name),
            *([_text(row.role, QUIET)] if roles else []),
            Text(condition(row), _CONDITIONS.get(condition(row), "bold red")),
            _number(row.queue, "yellow" if row.queue else ""),
            _number(row.running),
            Bar(1, 0, min(kv, 1.0), width=12 if wide else 4, color=style or "default"),
            Text(percent(row.kv), style),
            _number(row.in_flight),
            _age(row.age),
            *([_text(row.collector, QUIET)] if wide else []),
        ]
        table.add_row(*cells)
    if len(shown) < len(rows):
        table.add_row(Text(f"… {len(rows) - len(shown)} more", QUIET))
    if not rows:
        table.add_row(Text("none", QUIET))
    return table


def _bands(bands: Sequence[BandRow], wide: bool) -> Table:
    table = _table(["priority >8", "waiting >7", "longest >7", "running >7", "out/s >6", "flows >5"], wide)
    for band in bands:
        table.add_row(
            Text(str(band.priority)),
            _number(band.requests, "yellow" if band.requests else ""),
            Text(duration(band.oldest) if band.requests else DASH),
            _number(band.running),
            Text(f"{band.rate:.1f}"),
            _number(band.flow_count),
        )
    return table


def _members(rows: Sequence[MemberRow]) -> list[Text]:
    lines = []
    for tier in ("watcher", "collector", "picker"):
        found = [row for row in rows if row.tier == tier]
        words: list[str | tuple[str, str]] = [_member(row) for row in found[:MAX_NAMED]]
        if len(found) > MAX_NAMED:
            words.append((f"{len(found) - MAX_NAMED} more", QUIET))
        lines.append(line(tier, words or [("none", "bold red")]))
    return lines


def _member(row: MemberRow) -> str:
    if row.leader:
        return f"{row.id} leads"
    if row.endpoints is not None:
        return f"{row.id} scrapes {row.endpoints}"
    if row.in_flight is not None:
        return f"{row.id} {row.in_flight} in flight" + (f", {row.waiting} waiting" if row.waiting else "")
    return row.id


def _table(headings: Sequence[str], wide: bool) -> Table:
    """Each has a column's heading and, after the last space, its least width; `>` aligns it to the right."""
    table = Table(box=None, padding=(0, 2 if wide else 1, 0, 0), pad_edge=False, header_style=QUIET)
    for heading in headings:
        name, _, width = heading.rpartition(" ") if heading[-1].isdigit() else (heading, "", "0")
        right = width.startswith(">")
        table.add_column(name, justify="right" if right else "left", no_wrap=True, min_width=int(width.lstrip(">")))
    return table


def _text(text: str, style: str = "") -> Text:
    """A text from the bus, without characters that control the terminal."""
    return Text(printable(text), style)


def _number(value: int | None, style: str = "") -> Text:
    return Text(DASH, QUIET) if value is None else Text(str(value), style)


def _age(seconds: float | None) -> Text:
    if seconds is None:
        return Text(DASH, QUIET)
    return Text(duration(seconds), "bold red" if seconds > STALE else "yellow" if seconds > STALE / 4 else "")
