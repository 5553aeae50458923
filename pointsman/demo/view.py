"""The live view: one picture of the system, made from what is known at a moment. 80 columns and 19 rows are enough.

Pure: a picture goes in, something that rich can draw comes out.
"""

from collections.abc import Iterable

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from pointsman.demo.snapshot import CollectorRow, EndpointRow, PickerRow, Snapshot
from pointsman.demo.words import DASH, bar, clock, duration, share

STALE = 2.0
"""Seconds after which pickers don't trust a metric (their default)."""
_CONDITIONS = {"up": "green", "draining": "yellow", "starting": "yellow", "killed": "bold red"}
_QUIET = "dim"
WIDE = 100
"""Columns from which there is room for more than the least."""


class LoadFigures(Struct, frozen=True, kw_only=True):
    """How the load fares: counts since its begin, times in seconds of the last moments."""

    right: int = 0
    open: int = 0
    failed: int = 0
    cut: int = 0
    rate: float = 0.0
    """Right answers a second."""
    first_token: tuple[float | None, float | None] = (None, None)
    """p50 and p99 of streamed answers' first tokens."""
    whole: tuple[float | None, float | None] = (None, None)
    """p50 and p99 of whole answers."""
    cached: float | None = None
    """Share of prompt tokens that a prefix cache held."""


class Picture(Struct, frozen=True, kw_only=True):
    """What is shown."""

    elapsed: float
    seconds: float
    """How long it is to go on; 0: until Ctrl-C."""
    url: str
    load: LoadFigures
    system: Snapshot


def render(picture: Picture, width: int = 80) -> RenderableType:
    """The whole view, for a terminal of so many columns."""
    system = picture.system
    look = _Look(gap=2, bar=12) if width >= WIDE else _Look(gap=1, bar=4)
    return Group(
        Rule(_title(picture), style=_QUIET, align="left"),
        _requests(picture.load),
        _times(picture.load),
        Text(),
        _servers(system.endpoints, look),
        Text(),
        _pickers(system.pickers, look),
        Text(),
        _collectors(system.collectors, look),
    )


class _Look(Struct, frozen=True):
    """How much room there is, in characters."""

    gap: int
    """Between columns."""
    bar: int
    """For a bar."""


def _title(picture: Picture) -> Text:
    time = clock(picture.elapsed)
    if picture.seconds:
        time += f" of {clock(picture.seconds)}"
    return Text.assemble(
        ("Pointsman", "bold"),
        f"  {time}  ",
        (f"{picture.url}  ", "cyan"),
        ("Ctrl-C ends it", _QUIET),
        overflow="ellipsis",
    )


def _requests(load: LoadFigures) -> Text:
    failed = (f"{load.failed} failed", "bold red" if load.failed else "bold green")
    parts: list[str | tuple[str, str]] = [f"{load.rate:.0f}/s", f"{load.right} right", f"{load.open} open", failed]
    if load.cut:
        parts.append((f"{load.cut} cut by kills, resent", "yellow"))
    return _line("requests", parts)


def _times(load: LoadFigures) -> Text:
    (first50, first99), (whole50, whole99) = load.first_token, load.whole
    return _line(
        "p50, p99",
        [
            f"first token {duration(first50)}, {duration(first99)}",
            f"answer {duration(whole50)}, {duration(whole99)}",
            f"prompts cached {share(load.cached)}",
        ],
    )


def _line(name: str, parts: Iterable[str | tuple[str, str]]) -> Text:
    line = Text(f"{name:<10}", style=_QUIET, overflow="ellipsis", no_wrap=True)
    for number, part in enumerate(parts):
        if number:
            line.append(" · ", _QUIET)
        text, style = (part, "not dim") if isinstance(part, str) else (part[0], f"not dim {part[1]}")
        line.append(text, style)
    return line


def _servers(rows: tuple[EndpointRow, ...], look: _Look) -> Table:
    table = _table(
        look,
        "server 8",
        "engine 10",
        " 8",
        "queue >5",
        "running >7",
        f"KV cache {look.bar + 5}",
        "in flight >9",
        "picks >9",
        "age >6",
    )
    picks = sum(row.picks for row in rows)
    for row in rows:
        table.add_row(
            row.name,
            row.engine,
            _condition(row.condition),
            _number(row.queue, "yellow" if row.queue else ""),
            _number(row.running),
            Text() if row.kv is None else Text(f"{bar(row.kv, look.bar)} {row.kv:>4.0%}", style=_level(row.kv)),
            _number(row.in_flight),
            f"{row.picks} {share(row.picks / picks if picks else None):>4}",
            _age(row.age),
        )
    return table


def _pickers(rows: tuple[PickerRow, ...], look: _Look) -> Table:
    table = _table(
        look,
        "picker 8",
        " 8",
        "picks/s >7",
        "p50 >6",
        "p99 >6",
        "in flight >9",
        "peers >5",
        "all picks >9",
        "fallbacks >9",
    )
    for row in rows:
        alive = row.condition in ("up", "draining")
        table.add_row(
            row.name,
            _condition(row.condition),
            f"{row.rate:.1f}" if alive else DASH,
            duration(row.p50) if alive else DASH,
            duration(row.p99) if alive else DASH,
            str(row.in_flight) if alive else DASH,
            str(row.peers) if alive else DASH,
            str(row.decisions),
            str(row.fallbacks),
        )
    return table


def _collectors(rows: tuple[CollectorRow, ...], look: _Look) -> Table:
    table = _table(look, "collector 11", " 8", "frames >7", "scrapes")
    for row in rows:
        scrapes = Text(", ".join(sorted(row.endpoints))) if row.endpoints else Text(DASH, _QUIET)
        table.add_row(row.name, _condition(row.condition), str(row.frames), scrapes)
    return table


def _table(look: _Look, *columns: str) -> Table:
    """A column is its heading and, after the last space, its least width; `>` before that is for numbers."""
    table = Table(box=None, padding=(0, look.gap, 0, 0), pad_edge=False, header_style=_QUIET)
    for column in columns:
        name, _, width = column.rpartition(" ") if column[-1].isdigit() else (column, "", "0")
        table.add_column(
            name, justify="right" if width.startswith(">") else "left", no_wrap=True, min_width=int(width.lstrip(">"))
        )
    return table


def _condition(word: str) -> Text:
    return Text(word, style=_CONDITIONS.get(word, "bold red"))


def _number(value: int | None, style: str = "") -> Text:
    return Text(DASH, _QUIET) if value is None else Text(str(value), style)


def _level(part: float) -> str:
    return "red" if part > 0.9 else "yellow" if part > 0.7 else ""


def _age(seconds: float | None) -> Text:
    if seconds is None:
        return Text(DASH, _QUIET)
    return Text(duration(seconds), "bold red" if seconds > STALE else "yellow" if seconds > STALE / 4 else "")


def status_line(picture: Picture) -> str:
    """The picture in one line, for where there is no terminal."""
    load, system = picture.load, picture.system
    servers = ", ".join(_short(one) for one in system.endpoints)
    rates = ", ".join(f"{one.rate:.0f}" if one.condition == "up" else one.condition for one in system.pickers)
    first50, first99 = load.first_token
    return (
        f"{load.right} right, {load.open} open, {load.failed} failed"
        f" · first token p50 {duration(first50)} p99 {duration(first99)} · cached {share(load.cached)}"
        f" · waiting+running {servers} · picks/s {rates}"
    )


def _short(row: EndpointRow) -> str:
    if row.condition != "up" or row.queue is None or row.running is None:
        return row.condition
    return f"{row.queue}+{row.running}"
