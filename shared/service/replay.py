"""A dry run: where the last decisions would have gone with another configuration, and how much of that is known.

Each picker replays its own decisions; the requester adds up their reports.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from shared.bus.connection import Bus
from shared.bus.errors import BusError
from shared.bus.query_client import query_members
from shared.bus.query_messages import MAX_DOCUMENT, MAX_WAIT, ReplayQuery
from shared.bus.subjects import Subjects
from shared.tasks import in_turns

K = TypeVar("K")

EXAMPLES = 3
"""Request ids of a move."""
MAX_ENTRIES, MAX_MOVES = 1000, 10_000
"""Entries of each list of a replay, the first ones. Moves of a sum: further pairs of endpoints don't count."""
MAX_TEXT = 4096
"""Characters of a text of it."""
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
    missing = [f"picker {id} doesn't answer" for id in sorted({*expected} - {answer.id for answer in answers})]
    if (ignored := len(answers) - (most := bus.limits.max_senders)) > 0:
        missing.append(f"{ignored} answers are ignored: there are more than {most}")
    found, pickers = _Sum(), dict[str, None]()
    async for answer in in_turns(answers[:most]):
        try:
            one = cut(answer.read(Replay))
        except BusError as error:
            missing.append(str(error))
        else:
            if answer.id not in pickers:  # two processes may have one id
                found.add(one)
                pickers[answer.id] = None
    return ReplayAnswers(found.replay(), tuple(pickers), tuple(missing))


def cut(found: Replay) -> Replay:
    """As much of a replay as is sent and read."""
    return replace(
        found,
        revision=found.revision[:MAX_TEXT],
        errors=_texts(found.errors, MAX_ENTRIES),
        warnings=_texts(found.warnings, MAX_ENTRIES),
        skipped=_counts(found.skipped),
        moves=tuple(
            replace(
                move,
                chosen=move.chosen[:MAX_TEXT],
                instead=move.instead[:MAX_TEXT],
                examples=_texts(move.examples, EXAMPLES),
            )
            for move in found.moves[:MAX_ENTRIES]
        ),
        gaps=tuple(replace(gap, input=gap.input[:MAX_TEXT]) for gap in found.gaps[:MAX_ENTRIES]),
        failures=_counts(found.failures),
    )


def _texts(found: tuple[str, ...], limit: int) -> tuple[str, ...]:
    return tuple(text[:MAX_TEXT] for text in found[:limit])


def _counts(found: Mapping[str, int]) -> dict[str, int]:
    return {name[:MAX_TEXT]: count for name, count in islice(found.items(), MAX_ENTRIES)}


def moves(found: Iterable[Move]) -> tuple[Move, ...]:
    """One for each pair of endpoints, the most frequent first."""
    merged: dict[tuple[str, str], Move] = {}
    for move in found:
        _merge(merged, move)
    return _most_frequent(merged.values())


def _merge(merged: dict[tuple[str, str], Move], move: Move) -> None:
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


def _most_frequent(found: Iterable[Move]) -> tuple[Move, ...]:
    return tuple(sorted(found, key=lambda move: (-move.decisions, move.chosen, move.instead)))


def gaps(found: Iterable[Gap]) -> tuple[Gap, ...]:
    """One for each input, sorted."""
    counts: Counter[tuple[str, Literal["current", "nothing"]]] = Counter()
    for gap in found:
        counts[gap.input, gap.used] += gap.decisions
    return _sorted(counts)


def _sorted(counts: Mapping[tuple[str, Literal["current", "nothing"]], int]) -> tuple[Gap, ...]:
    return tuple(Gap(input=input, used=used, decisions=count) for (input, used), count in sorted(counts.items()))


class _Sum:
    """Of replays: adding one takes as long as that one is, however many there are. What exceeds its limits is left
    out."""

    def __init__(self) -> None:
        self._numbers = Replay()
        """What isn't in lists."""
        self._errors: Counter[str] = Counter()
        self._warnings: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._moves: dict[tuple[str, str], Move] = {}
        self._gaps: Counter[tuple[str, Literal["current", "nothing"]]] = Counter()

    def add(self, more: Replay) -> None:
        sums = self._numbers
        self._numbers = Replay(
            revision=sums.revision or more.revision,
            decisions=sums.decisions + more.decisions,
            replayed=sums.replayed + more.replayed,
            elsewhere=sums.elsewhere + more.elsewhere,
            by_chance=sums.by_chance + more.by_chance,
            fidelity=Fidelity(
                replayed=sums.fidelity.replayed + more.fidelity.replayed,
                elsewhere=sums.fidelity.elsewhere + more.fidelity.elsewhere,
            ),
        )
        _add(self._errors, dict.fromkeys(more.errors, 1))
        _add(self._warnings, dict.fromkeys(more.warnings, 1))
        _add(self._skipped, more.skipped)
        _add(self._failures, more.failures)
        _add(self._gaps, {(gap.input, gap.used): gap.decisions for gap in more.gaps})
        for move in more.moves:
            if (move.chosen, move.instead) in self._moves or len(self._moves) < MAX_MOVES:
                _merge(self._moves, move)

    def replay(self) -> Replay:
        return replace(
            self._numbers,
            errors=tuple(self._errors),
            warnings=tuple(self._warnings),
            skipped=dict(self._skipped.most_common()),
            moves=_most_frequent(self._moves.values()),
            gaps=_sorted(self._gaps),
            failures=dict(self._failures.most_common()),
        )

    def __repr__(self) -> str:
        return f"<_Sum of {self._numbers.decisions} decisions>"


def _add(counts: Counter[K], more: Mapping[K, int]) -> None:
    for key, count in more.items():
        if key in counts or len(counts) < MAX_ENTRIES:
            counts[key] += count
