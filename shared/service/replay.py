"""A dry run: where the last decisions would have gone with another configuration, and how much of that is known.

Each picker replays its own decisions; the requester adds up their reports.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from msgspec import Struct

from shared.bus.connection import Bus
from shared.bus.errors import BusError, Malformed
from shared.bus.query_client import query_members
from shared.bus.query_messages import MAX_DOCUMENT, MAX_WAIT, ReplayQuery
from shared.bus.subjects import Subjects

EXAMPLES = 3
"""Request ids of a move."""
MARGIN = 3.0
"""Seconds before the timeout of a query at which pickers answer with the results that they have."""


class Move(Struct, frozen=True, kw_only=True):
    """Decisions that would have gone from one endpoint to another. No endpoint: the filters left none."""

    chosen: str
    """The id of the endpoint that was the first choice."""
    instead: str
    decisions: int
    examples: tuple[str, ...]
    """Some request ids."""


class Gap(Struct, frozen=True, kw_only=True):
    """An input that plugins read and that the decisions haven't kept."""

    input: str
    used: Literal["current", "nothing"]
    """Whether its current value was used instead, or no value at all."""
    decisions: int


class Fidelity(Struct, frozen=True, kw_only=True):
    """The same replay with the running configuration, of decisions that it made: those that differ do so only because
    their inputs weren't kept."""

    replayed: int = 0
    elsewhere: int = 0


class Replay(Struct, frozen=True, kw_only=True):
    """The results of a replay of the last decisions of one picker, or of several."""

    revision: str = ""
    """Of the document."""
    errors: tuple[str, ...] = ()
    """Why it can't be loaded; nothing is replayed then."""
    warnings: tuple[str, ...] = ()
    decisions: int = 0
    """How many were to be replayed."""
    skipped: dict[str, int] = {}
    """How many of them can't be, by the reason."""
    replayed: int = 0
    elsewhere: int = 0
    """Decisions with another first choice; if the choice is random, no trial drew the former one."""
    by_chance: int = 0
    """Decisions in which another of several equally good endpoints was drawn at random."""
    moves: tuple[Move, ...] = ()
    """Of those that would have gone elsewhere, the most frequent first."""
    gaps: tuple[Gap, ...] = ()
    failures: dict[str, int] = {}
    """Plugins that failed, and on how many decisions."""
    fidelity: Fidelity = Fidelity()


class ReplayAnswers(Struct, frozen=True):
    """The answers of a pool's pickers."""

    total: Replay
    pickers: tuple[str, ...]
    """Pickers that have replayed decisions, or report what is wrong with the document."""
    missing: tuple[str, ...]
    """Pickers that haven't, with the reason."""


async def replay(
    bus: Bus,
    subjects: Subjects,
    pool: str,
    text: str,
    *,
    expected: Collection[str] = (),
    limit: int = 1000,
    timeout: float = MAX_WAIT,
) -> ReplayAnswers:
    """Have all pickers replay their last decisions with this document. Raises NotConnected."""
    if (size := len(text.encode())) > MAX_DOCUMENT:
        error = f"the document has {size} bytes; {MAX_DOCUMENT} are allowed"
        return ReplayAnswers(Replay(errors=(error,)), (), ())
    timeout = min(timeout, MAX_WAIT)
    query = ReplayQuery(text=text, limit=limit, seconds=max(timeout - MARGIN, timeout / 2))
    answers = await query_members(bus, subjects, pool, "picker", query, timeout=timeout, expected=expected)
    found: dict[str, Replay] = {}
    missing = [f"picker {id} doesn't answer" for id in sorted({*expected} - {answer.id for answer in answers})]
    for answer in answers:
        try:
            found[answer.id] = answer.read(Replay)
        except (BusError, Malformed) as error:
            missing.append(str(error))
    return ReplayAnswers(total(list(found.values())), tuple(found), tuple(missing))


def moves(found: Iterable[Move]) -> tuple[Move, ...]:
    """One for each pair of endpoints, the most frequent first."""
    merged: dict[tuple[str, str], Move] = {}
    for move in found:
        pair = move.chosen, move.instead
        known = merged.get(pair)
        merged[pair] = (
            move
            if known is None
            else Move(
                chosen=move.chosen,
                instead=move.instead,
                decisions=known.decisions + move.decisions,
                examples=(*known.examples, *move.examples)[:EXAMPLES],
            )
        )
    return tuple(sorted(merged.values(), key=lambda move: (-move.decisions, move.chosen, move.instead)))


def gaps(found: Iterable[Gap]) -> tuple[Gap, ...]:
    """One for each input, sorted."""
    counts: Counter[tuple[str, Literal["current", "nothing"]]] = Counter()
    for gap in found:
        counts[gap.input, gap.used] += gap.decisions
    return tuple(Gap(input=input, used=used, decisions=count) for (input, used), count in sorted(counts.items()))


def total(replays: Sequence[Replay]) -> Replay:
    """The sum of these replays."""
    return Replay(
        revision=next((answer.revision for answer in replays if answer.revision), ""),
        errors=tuple(dict.fromkeys(error for answer in replays for error in answer.errors)),
        warnings=tuple(dict.fromkeys(warning for answer in replays for warning in answer.warnings)),
        decisions=sum(answer.decisions for answer in replays),
        skipped=_sum(answer.skipped for answer in replays),
        replayed=sum(answer.replayed for answer in replays),
        elsewhere=sum(answer.elsewhere for answer in replays),
        by_chance=sum(answer.by_chance for answer in replays),
        moves=moves(move for answer in replays for move in answer.moves),
        gaps=gaps(gap for answer in replays for gap in answer.gaps),
        failures=_sum(answer.failures for answer in replays),
        fidelity=Fidelity(
            replayed=sum(answer.fidelity.replayed for answer in replays),
            elsewhere=sum(answer.fidelity.elsewhere for answer in replays),
        ),
    )


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    added: Counter[str] = Counter()
    for some in counts:
        added.update(some)
    return dict(added.most_common())
