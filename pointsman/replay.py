"""`pointsman replay FILE`: where the pickers' last decisions would have gone with another configuration."""

import os
from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from pointsman.command import Format, print_json, read_input, usage_errors
from pointsman.output import print_lines
from pointsman.query_command import FAILED, QuerySettings, connected, run_command
from pointsman.table import text_table
from shared.bus.query_client import query_members
from shared.bus.query_messages import MAX_DOCUMENT, MAX_WAIT, StatusQuery
from shared.config.problems import Invalid, Problem
from shared.quantities import PositiveDuration
from shared.service.replay import Replay, replay
from shared.service.settings import parse

SHOWN = 20
"""Moves that the table shows."""
REFUSED = "refused: no endpoint is left"


class ReplaySettings(QuerySettings, frozen=True, kw_only=True):
    """Has every picker replay its last decisions with an EndpointPickerConfig, and shows which requests would
    have gone elsewhere. Nothing is published."""

    file: Annotated[str, Meta(description="the document, - for standard input", extra={"argument": "FILE"})]
    limit: Annotated[
        int, Meta(ge=1, le=100_000, description="number of decisions that each picker replays, the newest first")
    ] = 1000
    timeout: Annotated[PositiveDuration, Meta(description=f"how long to wait for answers, at most {MAX_WAIT:g} s")] = (
        MAX_WAIT
    )
    format: Format = "text"


def main(argv: Sequence[str]) -> int:
    """`pointsman replay`: 0 if pickers have replayed their decisions, 1 if they can't load the document or if none
    answers, 2 for wrong options."""
    with usage_errors():
        settings = parse(ReplaySettings, argv, os.environ, "pointsman replay")
        document = _document(settings.file)
    return run_command(_replay(settings, document))


def _document(path: str) -> str:
    """Raises Invalid."""
    try:
        return read_input(path, "FILE", MAX_DOCUMENT).decode()
    except UnicodeDecodeError as error:
        raise Invalid([Problem("FILE", f"{path!r} isn't UTF-8: {error.reason}")]) from error


async def _replay(settings: ReplaySettings, document: str) -> int:
    async with connected(settings, "replay") as client:
        members = await query_members(client.bus, client.subjects, client.pool, "picker", StatusQuery())
        found = await replay(
            *(client.bus, client.subjects, client.pool, document),
            expected=[member.id for member in members],
            limit=settings.limit,
            timeout=client.timeout,
        )
    _complain(found.missing)
    total = found.total
    if settings.format == "json":
        print_json({"pickers": found.pickers, "missing": found.missing, "total": total})
    elif not found.pickers and not total.errors:
        _complain(["no picker answers"])
    else:
        if not total.errors:
            print_lines(text(total, len(found.pickers)))
        _complain([f"{settings.file}: {error}" for error in total.errors])
        _complain([f"{settings.file}: warning: {warning}" for warning in total.warnings])
    return 0 if found.pickers and not total.errors else FAILED


def _complain(lines: Sequence[str]) -> None:
    if lines:
        print_lines(lines, error=True)


def text(total: Replay, pickers: int) -> Iterator[str]:
    """The outcome, for people."""
    of = "1 picker" if pickers == 1 else f"{pickers} pickers"
    yield f"{total.elsewhere} of the last {total.replayed} decisions of {of} would have gone elsewhere"
    if total.moves:
        rows = [
            [move.chosen or REFUSED, move.instead or REFUSED, str(move.decisions), ", ".join(move.examples)]
            for move in total.moves[:SHOWN]
        ]
        yield ""
        yield from text_table(["from", "to", "decisions", "for example"], rows)
        if len(total.moves) > SHOWN:
            yield f"… and {len(total.moves) - SHOWN} more pairs of endpoints"
    yield ""
    if total.by_chance:
        yield f"{total.by_chance} picked another of several equally good endpoints at random"
    yield from (f"{count} can't be replayed: {why}" for why, count in total.skipped.items())
    yield from (f"plugin {plugin} failed on {count}" for plugin, count in total.failures.items())
    for gap in total.gaps:
        instead = "its current value was used" if gap.used == "current" else "it was missing"
        yield f"{gap.input}: not recorded; {instead} in {gap.decisions} decisions"
    same = total.fidelity
    if same.elsewhere:
        yield f"with the running configuration, {same.elsewhere} of {same.replayed} differ, because inputs are missing"
