"""Why a decision went as it did, in sentences, and what would have changed it. Pure: it reads a decision's record."""

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

import numpy as np

from services.picker.decision import Decision
from services.picker.request import Refusal
from services.picker.scheduling.cycle import Samples
from services.picker.scheduling.record import FilterStep, ProfileRun
from services.picker.state.layout import Rows

NAMED = 5
"""Endpoints that a sentence names at most."""
CLOSE = 1e-9
"""Totals that differ by less are rounded differently, and may still tie."""
DIGITS = 3


def reasons(decision: Decision, possible: Sequence[int] | None = None) -> list[str]:
    """The reasons, most important first. `possible` are the rows that could have been the first choice by chance; None
    if that isn't known."""
    found = list(_outcome(decision, possible))
    found += _waited(decision)
    found += _stale(decision)
    found += _ranked_last(decision)
    found += _draining(decision)
    found += [f"{failure.role} {failure.plugin} failed: {failure.error}" for failure in decision.failures]
    found += _served(decision)
    return found


def changes(decision: Decision) -> list[dict[str, Any]]:
    """What would have led to another first choice, each with the endpoint and a sentence: scorers whose absence changes
    it, scores that the runner-up lacks or how far it is behind, endpoints that filters removed or that rank last."""
    run = _primary(decision)
    if run is None or not run.picked:
        return []
    return [*_without_scorers(decision, run), *_scores_needed(decision, run), *_filtered(decision, run)]


def _primary(decision: Decision) -> ProfileRun | None:
    return decision.runs.get(decision.primary)


def _name(decision: Decision, row: int) -> str:
    return decision.layout.endpoints[row].id


def _names(decision: Decision, rows: Sequence[int]) -> str:
    named = [_name(decision, row) for row in rows[:NAMED]]
    return ", ".join([*named, *([f"{len(rows) - NAMED} more"] if len(rows) > NAMED else [])])


def _number(value: float) -> str:
    return f"{round(value, DIGITS):g}"


def _outcome(decision: Decision, possible: Sequence[int] | None) -> Iterator[str]:
    run = _primary(decision)
    if isinstance(decision.outcome, Refusal):
        refusal = decision.outcome
        yield f"refused with status {refusal.status}: {refusal.kept or refusal.message}"
        if decision.saturation is not None and decision.saturation >= 1.0:
            yield f"the saturation of the candidates was {_number(decision.saturation)}, and the priority is negative"
        if run is not None and not len(run.rows):
            emptied = next((step for step in run.filters if not len(step.kept)), None)
            yield "no candidate was left" if emptied is None else f"{emptied.plugin} left no candidate"
        return
    if run is None or not run.picked:
        return
    winner = run.picked[0]
    name, left = _name(decision, winner), len(run.rows)
    removed = list(_removed(decision, run, winner))
    if left == 1:
        yield f"{name} was the only candidate{': ' + ', '.join(removed) if removed else ''}"
        return
    totals = dict(zip(run.rows.tolist(), run.totals.tolist(), strict=True))
    mine = totals[winner]
    healthy = {row: total for row, total in totals.items() if row not in run.ranked_last} or totals
    ties = sorted(row for row, total in healthy.items() if abs(total - mine) < CLOSE)
    best = max(healthy.values())
    drawn = sorted(possible or ())
    if len(drawn) > 1 and set(drawn) <= set(ties):
        yield f"{name} was drawn at random among {_names(decision, drawn)}, which tie at {_number(mine)}"
    elif len(ties) > 1 and mine >= best - CLOSE:
        others = [row for row in ties if row != winner]
        chance = ", at random where nothing tells them apart" if possible is None else ""
        yield f"{name} ties with {_names(decision, others)} at {_number(mine)}: {run.picker} chose among them{chance}"
    elif len(drawn) > 1 or mine < best - CLOSE:
        highest = max(healthy, key=lambda row: healthy[row])
        among = f" among {_names(decision, drawn)}" if len(drawn) > 1 else ""
        text = f"{name} with a total of {_number(mine)} was drawn at random{among} by {run.picker}"
        if highest != winner and best > mine:
            text += f"; the highest total was {_number(best)} of {_name(decision, highest)}"
        yield text
    else:
        rest = {row: total for row, total in healthy.items() if row != winner}
        text = f"{name} had the highest total of {left} candidates, {_number(mine)}"
        if rest:
            second = max(rest, key=lambda row: rest[row])
            text += f", before {_name(decision, second)} with {_number(rest[second])}"
            if (scorer := decisive(run, winner, second)) is not None:
                text += f"; {scorer} made the difference"
        yield text
    yield from removed


def _removals(run: ProfileRun) -> Iterator[tuple[FilterStep, Rows]]:
    """Each filter with the rows that it removed."""
    before = run.candidates
    for step in run.filters:
        yield step, before[~np.isin(before, step.kept)]
        before = step.kept


def _removed(decision: Decision, run: ProfileRun, winner: int) -> Iterator[str]:
    """What each filter removed, with what it read of the winner and of these."""
    for step, removed in _removals(run):
        if len(removed):
            read = {name: _compared(decision.samples[name], winner, removed) for name in step.read}
            texts = "; ".join(f"{name.partition('/')[0]} {values}" for name, values in read.items() if values)
            yield f"{step.plugin} removed {len(removed)}{f' ({texts})' if texts else ''}"


def _compared(samples: Samples, winner: int, others: Rows) -> str:
    """A row's value and the range of those of others; empty where it isn't known of both."""
    mine = samples.values[samples.rows == winner]
    theirs = samples.values[np.isin(samples.rows, others)]
    theirs = theirs[~np.isnan(theirs)]
    if not len(mine) or not len(theirs) or np.isnan(mine[0]):
        return ""
    low, high = _number(theirs.min()), _number(theirs.max())
    return f"{_number(mine[0])} here, {low if low == high else f'{low} to {high}'} there"


def _position(run: ProfileRun, row: int) -> int:
    return int(np.flatnonzero(run.rows == row)[0])


def decisive(run: ProfileRun, winner: int, second: int) -> str | None:
    """The scorer that sets the winner apart the most; None where there is no scorer."""
    here, there = _position(run, winner), _position(run, second)
    ahead = {step.plugin: step.weight * float(step.scores[here] - step.scores[there]) for step in run.scores}
    best = max(ahead, key=lambda plugin: ahead[plugin], default=None)
    return best if best is not None and ahead[best] > 0 else None


def _waited(decision: Decision) -> Iterator[str]:
    wait = decision.queued
    if wait is not None and wait.seconds > 0:
        yield (
            f"it waited {wait.seconds:.3f} s in band {wait.band} behind {wait.ahead} requests; "
            f"{wait.released_by or 'nothing'} let it go"
        )


def _stale(decision: Decision) -> Iterator[str]:
    """Inputs that weren't fresh, by endpoint: what scorers do then is the policy for stale metrics."""
    stale: dict[int, list[tuple[str, float]]] = {}
    for name, samples in decision.samples.items():
        if samples.fresh is None or samples.at is None:
            continue
        for place in np.flatnonzero(~samples.fresh).tolist():
            age = decision.monotonic - float(samples.at[place])
            stale.setdefault(int(samples.rows[place]), []).append((name.partition("/")[0], age))
    for row, found in sorted(stale.items())[:NAMED]:
        ages = [age for _, age in found]
        names = ", ".join(name for name, _ in found)
        old = f"{max(ages):.0f} s old" if all(map(isfinite, ages)) else "never reported, or long ago"
        yield f"{_name(decision, row)}: {names} {old}, so its scores by them aren't its own"
    if len(stale) > NAMED:
        yield f"{len(stale) - NAMED} more endpoints have stale inputs"


def _ranked_last(decision: Decision) -> Iterator[str]:
    run = _primary(decision)
    if run is None or not run.ranked_last:
        return
    last = [row for row in run.rows.tolist() if row in run.ranked_last]
    for row in last[:NAMED]:
        yield f"{_name(decision, row)} ranks last: {run.ranked_last[row]}"


def _draining(decision: Decision) -> Iterator[str]:
    rows = np.flatnonzero(decision.layout.draining).tolist()
    if rows:
        yield f"{_names(decision, rows)} {'is' if len(rows) == 1 else 'are'} draining, so no candidate"


def _served(decision: Decision) -> Iterator[str]:
    progress = decision.progress
    if progress.served_by in ("fallback", "other"):
        yield f"{progress.endpoint or 'another endpoint'} served instead ({progress.served_by})"
    if progress.aborted:
        yield "it was aborted before its response was complete"


def _without_scorers(decision: Decision, run: ProfileRun) -> Iterator[dict[str, Any]]:
    winner = run.picked[0]
    place = _position(run, winner)
    down = np.isin(run.rows, list(run.ranked_last)) & (run.rows != winner)
    for step in run.scores:
        if not step.weight:
            continue
        totals = np.where(down, -np.inf, run.totals - step.weight * step.scores)
        best = int(np.argmax(totals))
        if totals[best] > totals[place] + CLOSE:
            endpoint = _name(decision, int(run.rows[best]))
            yield {
                "kind": "scorer",
                "plugin": step.plugin,
                "endpoint": endpoint,
                "text": f"without {step.plugin}: {endpoint}",
            }


def _scores_needed(decision: Decision, run: ProfileRun) -> Iterator[dict[str, Any]]:
    """By how much one score of the runner-up would have to be higher."""
    winner = run.picked[0]
    place = _position(run, winner)
    others = [at for at in range(len(run.rows)) if at != place and int(run.rows[at]) not in run.ranked_last]
    if not others:
        return
    second = max(others, key=lambda at: float(run.totals[at]))
    margin = float(run.totals[place] - run.totals[second])
    if margin <= CLOSE:
        return
    endpoint = _name(decision, int(run.rows[second]))
    closes = False
    for step in run.scores:
        score = float(step.scores[second])
        needed = score + margin / step.weight if step.weight > 0 else np.inf
        if needed <= 1.0:
            closes = True
            yield {
                "kind": "score",
                "plugin": step.plugin,
                "endpoint": endpoint,
                "score": round(score, 9),
                "needed": round(needed, 9),
                "text": f"if {step.plugin} gave {endpoint} more than {_number(needed)} instead of {_number(score)}: "
                f"{endpoint}",
            }
    if not closes:
        yield {
            "kind": "margin",
            "endpoint": endpoint,
            "text": f"{endpoint}, the next, is {_number(margin)} behind; no scorer alone can make up for that",
        }


def _filtered(decision: Decision, run: ProfileRun) -> Iterator[dict[str, Any]]:
    for step, rows in _removals(run):
        if removed := rows.tolist():
            yield {
                "kind": "filter",
                "plugin": step.plugin,
                "endpoints": [_name(decision, row) for row in removed],
                "text": f"without {step.plugin}: {_names(decision, removed)} would be candidates",
            }
    above = run.rows[run.totals > run.totals[_position(run, run.picked[0])]] if run.ranked_last else run.rows[:0]
    for row in above.tolist():
        if row in run.ranked_last:
            endpoint = _name(decision, row)
            yield {
                "kind": "health",
                "endpoint": endpoint,
                "text": f"if {endpoint} didn't seem to be down: {endpoint}",
            }
