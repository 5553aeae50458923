"""`pointsman status`: asks all members of a pool over NATS how they are, and says what is wrong.

It runs on any machine that reaches NATS. The exit code is 1 when something is wrong.
"""

import os
import sys
from collections.abc import Sequence
from itertools import chain

from pointsman.command import Format, parse_options, print_json
from pointsman.output import print_lines
from pointsman.query_command import QuerySettings, connected, run_command
from pointsman.table import text_table
from shared.service.status import FactsStatus, MemberStatus, PrefixStatus
from shared.service.survey import TIERS, Survey, survey

DIGEST = 8
"""Digits of a digest that the table shows."""


class StatusSettings(QuerySettings, frozen=True, kw_only=True):
    """Shows the members of a pool: versions, leases, lags, ages and digests. Lists what is wrong, and then
    exits with 1."""

    format: Format = "text"


def main(argv: Sequence[str]) -> int:
    """`pointsman status`: 0 if all is well, 1 if something is wrong or NATS can't be reached, 2 for wrong options."""
    return run_command(_status(parse_options(StatusSettings, argv, "status", os.environ)))


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
        rows = [_cells(member) for member in found.members if member.tier == tier]
        if rows:
            headings = list(dict.fromkeys(chain.from_iterable(rows)))
            lines += ["", *text_table(headings, ([row.get(name, "") for name in headings] for row in rows))]
    lines += ["", *(f"note: {note}" for note in found.notes)] if found.notes else []
    lines.append("")
    if not found.problems:
        return [*lines, "all is well"]
    count = len(found.problems)
    return [*lines, f"{count} problem{'' if count == 1 else 's'}:", *(f"  {problem}" for problem in found.problems)]


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


def _cells(member: MemberStatus) -> dict[str, str]:
    """A member's row, by heading: what all tiers have, then what its own has."""
    facts = member.facts
    cells = {
        member.tier: member.id,
        "version": member.version,
        "up": age(member.uptime),
        "ready": "yes" if member.ready else "no",
        "connected": age(member.bus.connected_for),
        "facts": "" if facts is None else _copy(facts),
        "heard": "" if facts is None else age(facts.age),
        "configuration": " ".join(dict.fromkeys(configured.revision for configured in member.configurations)),
    }
    if (watcher := member.watcher) is not None:
        cells["leads"] = "yes" if watcher.leads else "no"
        cells |= {"epoch": str(watcher.epoch), "source": age(watcher.source_age)}
    if (collector := member.collector) is not None:
        cells["scrapes"] = f"{collector.assigned} of {collector.endpoints}"
        cells |= {"down": str(collector.down_count), "oldest page": age(collector.page_age)}
    if (picker := member.picker) is not None:
        load, peers = picker.load, picker.load.peers
        oldest = max((peer.age or 0.0 for peer in peers), default=None)
        known = _total(load.requests, *(peer.requests for peer in peers))
        cells |= {
            "endpoints": str(picker.endpoints),
            "metrics": age(picker.metrics_age),
            "in flight": f"{_total(load.requests)} of {known}",
            "peers": f"{len(peers)}, {age(oldest)}" if peers else "0",
            "waiting": _total(*(band.requests for band in picker.bands)),
            "prefixes": _placements(picker.prefixes),
        }
    return cells


def _total(*numbers: int) -> str:
    """The sum of what members say; `?` for what no member counts to."""
    total = sum(numbers)
    return str(total) if total.bit_length() < 64 else "?"


def _copy(facts: FactsStatus) -> str:
    """Count and digest; a star while they differ from what is announced."""
    return f"{facts.count} @ {facts.digest[:DIGEST]}{'*' if facts.differs_for else ''}" if facts.synced else ""


def _placements(prefixes: PrefixStatus) -> str:
    """Blocks, the own batch, and how many batches of others are missing."""
    behind = _total(*(max(0, origin.latest - origin.applied) for origin in prefixes.origins))
    return f"{prefixes.blocks} blocks, batch {prefixes.sequence}, {behind} behind" if prefixes.hashing else ""
