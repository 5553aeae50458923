"""The live view: a picture of the system at one moment, drawn with rich. 80 columns and 19 rows are enough."""

from collections.abc import Iterable

from msgspec import Struct
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from pointsman.demo.snapshot import CollectorRow, EndpointRow, PickerRow, Snapshot
from pointsman.demo.tally import LoadFigures
from pointsman.top.format import DASH, clock, duration, percent

STALE = 2.0
"""Seconds after which pickers don't trust a metric (their default)."""
WIDE = 100
"""Width in characters from which on tables have more space."""
_CONDITIONS = {"up": "green", "draining": "yellow", "starting": "yellow", "killed": "bold red"}
_QUIET = "dim"


class Picture(Struct, frozen=True, kw_only=True):
    """What the view shows."""

    elapsed: float
    seconds: float
    """The length of the demo; 0: until Ctrl-C."""
    url: str
    load: LoadFigures
    system: Snapshot


def render(picture: Picture, width: int = 80) -> RenderableType:
    """The view for a terminal of that width."""
    system, wide = picture.system, width >= WIDE
    time = clock(picture.elapsed) + (f" of {clock(picture.seconds)}" if picture.seconds else "")
    title: list[str | tuple[str, str]] = [
        ("Pointsman", "bold"),
        f"  {time}  ",
        (f"{picture.url}  ", "cyan"),
        ("Ctrl-C ends it", _QUIET),
    ]
    return Group(
        Rule(Text.assemble(*title, overflow="ellipsis"), style=_QUIET, align="left"),
        _requests(picture.load),
        _times(picture.load),
        Text(),
        _servers(system.endpoints, wide),
        Text(),
        _pickers(system.pickers, wide),
        Text(),
        _collectors(system.collectors, wide),
    )


def _requests(load: LoadFigures) -> Text:
    failed = (f"{load.failed} failed", "bold red" if load.failed else "bold green")
    parts: list[str | tuple[str, str]] = [f"{load.rate:.0f}/s", f"{load.succeeded} ok", f"{load.open} open", failed]
    if load.interrupted:
        parts.append((f"{load.interrupted} resent after kills", "yellow"))
    return _line("requests", parts)


def _times(load: LoadFigures) -> Text:
    (first50, first99), (whole50, whole99) = load.first_token, load.duration
    times = [
        f"first token {duration(first50)}, {duration(first99)}",
        f"total {duration(whole50)}, {duration(whole99)}",
    ]
    return _line("p50, p99", [*times, f"prompts cached {percent(load.cached)}"])


def _line(name: str, parts: Iterable[str | tuple[str, str]]) -> Text:
    styled = [(part, "") if isinstance(part, str) else part for part in parts]
    line = Text(" · ", style=_QUIET).join(Text(text, style=f"not dim {style}") for text, style in styled)
    return Text.assemble((f"{name:<10}", _QUIET), line, overflow="ellipsis", no_wrap=True)


def _servers(rows: tuple[EndpointRow, ...], wide: bool) -> Table:
    headings = "server 8|engine 10| 8|queue >5|running >7|KV 4|cache >5|in flight >9|picks >9|age >6"
    table = _table(headings, wide)
    all_picks = sum(row.picks for row in rows)
    for row in rows:
        style = "red" if (row.kv or 0) > 0.9 else "yellow" if (row.kv or 0) > 0.7 else ""
        table.add_row(
            row.name,
            row.engine,
            _condition(row.condition),
            _number(row.queue, "yellow" if row.queue else ""),
            _number(row.running),
            Bar(1, 0, row.kv or 0, width=12 if wide else 4, color=style or "default"),
            Text("" if row.kv is None else percent(row.kv), style),
            _number(row.in_flight),
            f"{row.picks} {percent(row.picks / all_picks if all_picks else None):>4}",
            _age(row.age),
        )
    return table


def _pickers(rows: tuple[PickerRow, ...], wide: bool) -> Table:
    table = _table(
        "picker 8| 8|picks/s >7|p50 >6|p99 >6|in flight >9|peers >5|all picks >9|fallbacks >9",
        wide,
    )
    for row in rows:
        now = (f"{row.rate:.1f}", duration(row.p50), duration(row.p99), str(row.in_flight), str(row.peers))
        if row.condition not in ("up", "draining"):
            now = (DASH,) * 5
        table.add_row(row.name, _condition(row.condition), *now, str(row.decisions), str(row.fallbacks))
    return table


def _collectors(rows: tuple[CollectorRow, ...], wide: bool) -> Table:
    table = _table("collector 11| 8|frames >7|scrapes", wide)
    for row in rows:
        scrapes = Text(", ".join(sorted(row.endpoints))) if row.endpoints else Text(DASH, _QUIET)
        table.add_row(row.name, _condition(row.condition), str(row.frames), scrapes)
    return table


def _table(headings: str, wide: bool) -> Table:
    """`headings` has each column's heading and, after the last space, its least width; `>` aligns it to the right."""
    table = Table(box=None, padding=(0, 2 if wide else 1, 0, 0), pad_edge=False, header_style=_QUIET)
    for heading in headings.split("|"):
        name, _, width = heading.rpartition(" ") if heading[-1].isdigit() else (heading, "", "0")
        right = width.startswith(">")
        table.add_column(name, justify="right" if right else "left", no_wrap=True, min_width=int(width.lstrip(">")))
    return table


def _condition(word: str) -> Text:
    return Text(word, style=_CONDITIONS.get(word, "bold red"))


def _number(value: int | None, style: str = "") -> Text:
    return Text(DASH, _QUIET) if value is None else Text(str(value), style)


def _age(seconds: float | None) -> Text:
    if seconds is None:
        return Text(DASH, _QUIET)
    return Text(duration(seconds), "bold red" if seconds > STALE else "yellow" if seconds > STALE / 4 else "")


def status_line(picture: Picture) -> str:
    """The picture in one line, for output that isn't a terminal."""
    load, system = picture.load, picture.system
    servers = ", ".join(_queues(row) for row in system.endpoints)
    rates = ", ".join(f"{row.rate:.0f}" if row.condition == "up" else row.condition for row in system.pickers)
    first50, first99 = load.first_token
    return (
        f"{load.succeeded} ok, {load.open} open, {load.failed} failed"
        f" · first token p50 {duration(first50)} p99 {duration(first99)} · cached {percent(load.cached)}"
        f" · waiting+running {servers} · picks/s {rates}"
    )


def _queues(row: EndpointRow) -> str:
    if row.condition != "up" or row.queue is None or row.running is None:
        return row.condition
    return f"{row.queue}+{row.running}"
