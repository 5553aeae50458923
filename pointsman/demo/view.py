"""The live view: the load at the top, and below it the pool as `pointsman top` shows it."""

from msgspec import Struct
from rich.console import RenderableType

from pointsman.demo.tally import LoadFigures
from pointsman.top import view as pool_view
from pointsman.top.format import clock, duration, percent
from pointsman.top.snapshot import Snapshot


class Picture(Struct, frozen=True, kw_only=True):
    """What the view shows."""

    elapsed: float
    seconds: float
    """The length of the demo; 0: until Ctrl-C."""
    url: str
    load: LoadFigures
    round_robin: LoadFigures | None = None
    """The same load, spread round robin over servers of its own."""
    system: Snapshot


def render(picture: Picture, width: int = 80, height: int | None = None) -> RenderableType:
    """The view for a terminal of that size."""
    load, other = picture.load, picture.round_robin
    time = clock(picture.elapsed) + (f" of {clock(picture.seconds)}" if picture.seconds else "")
    head: list[RenderableType] = [
        pool_view.title(picture.system, f"{time}  ", (f"{picture.url}  ", "cyan")),
        pool_view.line("requests", _requests(load)),
        pool_view.line("p50, p99", _times(load)),
    ]
    if other is not None:
        head += [pool_view.line("beside it", ["round robin", *_requests(other)]), pool_view.line("", _times(other))]
    return pool_view.render(picture.system, width, height, head=head)


def _requests(load: LoadFigures) -> list[str | tuple[str, str]]:
    parts: list[str | tuple[str, str]] = [f"{load.rate:.0f}/s", f"{load.succeeded} ok", f"{load.open} open"]
    parts.append((f"{load.failed} failed", "bold red" if load.failed else "bold green"))
    if load.interrupted:
        parts.append((f"{load.interrupted} resent after kills", "yellow"))
    return parts


def _times(load: LoadFigures) -> list[str | tuple[str, str]]:
    (first50, first99), (whole50, whole99) = load.first_token, load.duration
    return [
        f"first token {duration(first50)}, {duration(first99)}",
        f"total {duration(whole50)}, {duration(whole99)}",
        f"prompts cached {percent(load.cached)}",
    ]


def status_line(picture: Picture) -> str:
    """The picture in one line, for output that isn't a terminal."""
    load, other = picture.load, picture.round_robin
    parts = [f"{load.succeeded} ok, {load.open} open, {load.failed} failed", _brief(load)]
    if other is not None:
        parts.append(f"round robin: {_brief(other)}")
    return f"{clock(picture.elapsed)}   " + " · ".join([*parts, pool_view.status_line(picture.system)])


def _brief(load: LoadFigures) -> str:
    first50, first99 = load.first_token
    return f"first token p50 {duration(first50)} p99 {duration(first99)}, cached {percent(load.cached)}"
