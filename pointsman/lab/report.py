"""What simulations came to, as numbers, a table and plots."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from pointsman.lab.plot import Bars, Chart, Panel, draw
from pointsman.lab.simulation import Result
from pointsman.table import text_table

MILLISECONDS = 1000.0


class Figures(Struct, frozen=True, kw_only=True, rename="camel"):
    """One profile with one set of pickers. The requests of the warm-up don't count."""

    profile: str
    case: str
    """Such as `4 pickers`."""
    requests: int
    refused: int
    hit_rate: float
    """Share of the prompts' tokens that servers had in their caches."""
    ttft: tuple[float, float, float]
    """Milliseconds to the first token: p50, p90, p99."""
    imbalance: float
    """The mean of the most requests that any server has, over the mean of all."""
    prefix_bytes: float
    """Of messages about prefixes, a pick."""
    over_time: tuple[float, ...] = ()
    """The hit rate of each second, smoothed over ten."""


def figures(profile: str, case: str, results: Sequence[Result], warmup: float) -> Figures:
    """The figures of equal runs with different seeds, together."""
    counted = [outcome for result in results for outcome in result.outcomes if outcome.at >= warmup]
    served = [outcome for outcome in counted if outcome.first_token]
    cached, prompts = sum(outcome.cached_tokens for outcome in served), sum(outcome.prompt_tokens for outcome in served)
    times = np.array([outcome.first_token for outcome in served] or [0.0])
    end = max((outcome.at for outcome in counted), default=0.0)
    samples = [(most, mean) for result in results for at, most, mean in result.in_flight if warmup <= at <= end]
    mean = sum(mean for _, mean in samples)
    p50, p90, p99 = (round(float(value) * MILLISECONDS, 1) for value in np.percentile(times, (50, 90, 99)))
    return Figures(
        profile=profile,
        case=case,
        requests=len(counted),
        refused=sum(outcome.refusal != "" for outcome in counted),
        hit_rate=round(cached / prompts, 4) if prompts else 0.0,
        ttft=(p50, p90, p99),
        imbalance=round(sum(most for most, _ in samples) / mean, 3) if mean else 0.0,
        prefix_bytes=round(sum(r.prefix_bytes for r in results) / max(sum(r.picks for r in results), 1), 1),
        over_time=_over_time(results),
    )


def _over_time(results: Sequence[Result], window: int = 10) -> tuple[float, ...]:
    served = [outcome for result in results for outcome in result.outcomes if outcome.first_token]
    size = int(max((outcome.at for outcome in served), default=0.0)) + 1
    cached, prompts = np.zeros(size), np.zeros(size)
    for outcome in served:
        cached[int(outcome.at)] += outcome.cached_tokens
        prompts[int(outcome.at)] += outcome.prompt_tokens
    kernel = np.ones(min(window, size))
    shares = np.convolve(cached, kernel)[:size] / np.maximum(np.convolve(prompts, kernel)[:size], 1.0)
    return tuple(round(share, 4) for share in shares.tolist())


HEAD = ("profile", "case", "requests", "refused", "hit rate", "TTFT p50", "p90", "p99 ms", "max/mean", "bytes/pick")


def table(rows: Sequence[Figures]) -> list[str]:
    """Lines of text."""
    texts = [
        (
            row.profile,
            row.case,
            str(row.requests),
            str(row.refused),
            f"{row.hit_rate:.3f}",
            *(f"{value:.0f}" for value in row.ttft),
            f"{row.imbalance:.2f}",
            f"{row.prefix_bytes:.0f}",
        )
        for row in rows
    ]
    return text_table(HEAD, texts, numbers=len(HEAD) - 2)


def plot(rows: Sequence[Figures]) -> str:
    """An SVG document: bars of all cases, and for each profile the hit rate over time."""
    profiles = list(dict.fromkeys(row.profile for row in rows))
    highest = 2.0 * float(np.median([row.ttft[2] for row in rows]))

    def column(profile: str) -> list[Chart]:
        own = [row for row in rows if row.profile == profile]
        return [
            Panel(f"{profile}: hit rate", {row.case: row.over_time for row in own}, 1.0, named=len(own)),
            Bars("hit rate", {row.case: {"": row.hit_rate} for row in own}, 1.0),
            Bars("TTFT p99, ms; higher bars are cut", {row.case: {"": row.ttft[2]} for row in own}, top=highest),
            Bars("requests of a server, max/mean", {row.case: {"": row.imbalance} for row in own}),
        ]

    return draw([column(profile) for profile in profiles])
