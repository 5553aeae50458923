"""`pointsman status`: asks all members of a pool over NATS how they are, and says what is wrong.

It runs on any machine that reaches NATS. The exit code is 1 when something is wrong.
"""

import os
import sys
from collections.abc import Callable, Sequence

from pointsman.command import USAGE_ERROR, Format, print_json
from pointsman.output import print_lines
from pointsman.query_command import QuerySettings, connected, run_command
from pointsman.table import text_table
from shared.config.problems import Invalid
from shared.service import parse, report
from shared.service.status import MemberStatus
from shared.service.survey import TIERS, Survey, survey

DIGEST = 8
"""Digits of a digest that the table shows."""

Column = tuple[str, Callable[[MemberStatus], str]]


class StatusSettings(QuerySettings, frozen=True, kw_only=True):
    """Shows the members of a pool: versions, leases, lags, ages and digests. Exits with 1 if something is wrong,
    and says what."""

    format: Format = "text"


def main(argv: Sequence[str]) -> int:
    """`pointsman status`: 0 if all is well, 1 if something is wrong or NATS can't be reached, 2 for wrong options."""
    try:
        settings = parse(StatusSettings, argv, os.environ, "pointsman status")
    except Invalid as error:
        report(error)
        return USAGE_ERROR
    return run_command(_status(settings))


async def _status(settings: StatusSettings) -> int:
    async with connected(settings, "status") as client:
        found = await survey(client.bus, client.subjects, client.pool, timeout=client.timeout)
    if settings.format == "json":
        print_json(found)
    else:
        print_lines(text(found))
    sys.stdout.flush()
    return 1 if found.problems else 0


def text(found: Survey) -> list[str]:
    """The survey for people."""
    lines = [f"pool {found.pool}"]
    for tier in TIERS:
        members = [member for member in found.members if member.tier == tier]
        if members:
            columns: list[Column] = [("id", lambda member: member.id), *COMMON, *OF_TIER[tier]]
            rows = [[_cell(value, member) for _, value in columns] for member in members]
            lines += ["", *text_table([tier, *(name for name, _ in columns[1:])], rows)]
    lines += ["", *(f"note: {note}" for note in found.notes)] if found.notes else []
    lines.append("")
    if not found.problems:
        return [*lines, "all is well"]
    count = len(found.problems)
    return [*lines, f"{count} problem{'' if count == 1 else 's'}:", *(f"  {problem}" for problem in found.problems)]


def _cell(value: Callable[[MemberStatus], str], member: MemberStatus) -> str:
    """Whatever a member says: the sum of two numbers may have more digits than Python prints."""
    try:
        return value(member)
    except ValueError:
        return "?"


def age(seconds: float | None) -> str:
    """`3ms`, `2.1s`, `5m`, `3h`, `12d`; empty for never."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.1f}s"


def _ready(member: MemberStatus) -> str:
    return "yes" if member.ready else "no"


def _bus(member: MemberStatus) -> str:
    return age(member.bus.connected_for)


def _facts(member: MemberStatus) -> str:
    """Count and digest; a star while they differ from what is announced."""
    facts = member.facts
    if facts is None or not facts.synced:
        return ""
    return f"{facts.count} @ {facts.digest[:DIGEST]}{'*' if facts.differs_for else ''}"


def _facts_age(member: MemberStatus) -> str:
    return "" if member.facts is None else age(member.facts.age)


def _revisions(member: MemberStatus) -> str:
    return " ".join(dict.fromkeys(configured.revision for configured in member.configurations))


def _leads(member: MemberStatus) -> str:
    return "yes" if member.watcher is not None and member.watcher.leads else "no"


def _epoch(member: MemberStatus) -> str:
    return "" if member.watcher is None else str(member.watcher.epoch)


def _source(member: MemberStatus) -> str:
    return "" if member.watcher is None else age(member.watcher.source_age)


def _assigned(member: MemberStatus) -> str:
    collector = member.collector
    return "" if collector is None else f"{collector.assigned} of {collector.endpoints}"


def _down(member: MemberStatus) -> str:
    return "" if member.collector is None else str(member.collector.down_count)


def _pages(member: MemberStatus) -> str:
    return "" if member.collector is None else age(member.collector.page_age)


def _endpoints(member: MemberStatus) -> str:
    return "" if member.picker is None else str(member.picker.endpoints)


def _metrics(member: MemberStatus) -> str:
    return "" if member.picker is None else age(member.picker.metrics_age)


def _load(member: MemberStatus) -> str:
    """Requests in flight: its own, and all that it knows of."""
    if member.picker is None:
        return ""
    load = member.picker.load
    return f"{load.requests} of {load.requests + sum(peer.requests for peer in load.peers)}"


def _peers(member: MemberStatus) -> str:
    """How many there are, and the age of the oldest table."""
    if member.picker is None:
        return ""
    peers = member.picker.load.peers
    oldest = max((peer.age or 0.0 for peer in peers), default=None)
    return f"{len(peers)}, {age(oldest)}" if peers else "0"


def _prefixes(member: MemberStatus) -> str:
    """Blocks, the own batch, and how many batches of others are missing."""
    if member.picker is None or not member.picker.prefixes.hashing:
        return ""
    prefixes = member.picker.prefixes
    behind = sum(max(0, origin.latest - origin.applied) for origin in prefixes.origins)
    return f"{prefixes.blocks} blocks, batch {prefixes.sequence}, {behind} behind"


def _waiting(member: MemberStatus) -> str:
    return "" if member.picker is None else str(sum(band.requests for band in member.picker.bands))


COMMON: list[Column] = [
    ("version", lambda member: member.version),
    ("up", lambda member: age(member.uptime)),
    ("ready", _ready),
    ("connected", _bus),
    ("facts", _facts),
    ("heard", _facts_age),
    ("configuration", _revisions),
]
OF_TIER: dict[str, list[Column]] = {
    "watcher": [("leads", _leads), ("epoch", _epoch), ("source", _source)],
    "collector": [("scrapes", _assigned), ("down", _down), ("oldest page", _pages)],
    "picker": [
        ("endpoints", _endpoints),
        ("metrics", _metrics),
        ("in flight", _load),
        ("peers", _peers),
        ("waiting", _waiting),
        ("prefixes", _prefixes),
    ],
}
