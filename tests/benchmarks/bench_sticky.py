"""Sticky until saturated beside the weighted sum of the Go original, on simulated servers in virtual time.

    .venv/bin/python -m tests.benchmarks.bench_sticky [--svg docs/profiles/sticky-until-saturated.svg] [--seed N]

It takes four minutes and prints, for each workload and profile, the share of prompt tokens that were cached, the times
to the first token, and the share of requests that the busiest server got. `--svg` draws instead what happens while the
load of one shared prompt rises and falls: it sticks, breaks out at the gap, and stays with both servers.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from pointsman.lab.plot import Panel, draw
from services.simulator.settings import SimulatorSettings
from shared.config.defaults import DEFAULT_DOCUMENT
from tests.benchmarks.bench_decide import WEIGHTED_SUM
from tests.virtual_pool import VirtualPool, poisson

PROFILES = {"sticky": DEFAULT_DOCUMENT, "weighted sum": WEIGHTED_SUM.read_text(encoding="utf-8")}
GAP = "{maxRequestGap: 32}"
MEASURED = {
    **PROFILES,
    "sticky, tokens alone": DEFAULT_DOCUMENT.replace(GAP, "{}"),
    "sticky, a gap of 16": DEFAULT_DOCUMENT.replace(GAP, "{maxRequestGap: 16}"),
}
"""With tokens alone it is as sticky as the Go original: requests in flight don't matter."""
WORDS = ("train", "track", "signal", "lever", "points", "cargo", "bridge", "depot")
WARM_UP = 0.25
"""Share of a run that doesn't count."""


class Workload(Struct, frozen=True):
    """Prompts that begin with one of some texts, at random times. Lengths are in tokens, about."""

    rate: float
    groups: int
    shared: int
    skew: float = 1.0
    """Exponent of Zipf's law over the groups."""
    own: int = 40
    output: int = 100
    seconds: float = 40.0
    settings: dict[str, Any] = {}


SMALL_CACHES = {"kv_blocks": 150, "block_tokens": 64}
LARGE = {
    "slots": 256,
    "prefill_time": 1 / 16_000,
    "decode_time": 0.01,
    "decode_growth": 0.01,
    "kv_blocks": 8192,
    "block_tokens": 64,
}
WORKLOADS = {
    "nothing shared, 20/s": Workload(rate=20, groups=5000, shared=400, skew=0.0),
    "one shared text, 4/s": Workload(rate=4, groups=1, shared=1000),
    "one shared text, 30/s": Workload(rate=30, groups=1, shared=1000),
    "20 shared texts, 15/s": Workload(rate=15, groups=20, shared=700),
    "20 shared texts, 40/s": Workload(rate=40, groups=20, shared=700),
    "one shared text of 20 000 tokens, 20/s, large servers": Workload(
        rate=20, groups=1, shared=20_000, output=200, settings=LARGE
    ),
    "5 of 20 000 tokens, 30/s, large servers": Workload(rate=30, groups=5, shared=20_000, output=200, settings=LARGE),
    "40 of 20 000 tokens, 30/s, large servers": Workload(rate=30, groups=40, shared=20_000, output=200, settings=LARGE),
    "96 shared texts, small caches, 30/s": Workload(
        rate=30, groups=96, shared=1000, skew=0.8, output=64, settings=SMALL_CACHES
    ),
}


def prompts(workload: Workload, seed: int = 3) -> Callable[[], bytes]:
    """Makes the prompts of a workload."""
    random = np.random.default_rng(seed)

    def text(tokens: int) -> str:
        return " ".join(random.choice(WORDS, max(tokens * 2 // 3, 1)))

    shared = [f"{group}: {text(workload.shared)}" for group in range(workload.groups)]
    weights = np.array([(group + 1.0) ** -workload.skew for group in range(workload.groups)])
    weights /= weights.sum()
    return lambda: f"{shared[random.choice(workload.groups, p=weights)]} {text(workload.own)}".encode()


def measure(profile: str, workload: Workload, servers: int = 8, seed: int = 1) -> str:
    """What becomes of a workload."""
    pool = VirtualPool(MEASURED[profile], SimulatorSettings(**workload.settings), servers, seed)
    made = prompts(workload, seed + 2)
    pool.run(poisson(lambda _: workload.rate, workload.seconds, made, workload.output, seed))
    counted = [request for request in pool.requests if request.arrival.at > WARM_UP * workload.seconds]
    times = np.array([request.first_token for request in counted], np.float64)
    cached = sum(request.cached for request in counted) / sum(len(request.arrival.prompt) / 4 for request in counted)
    busiest = np.bincount([request.server for request in counted]).max() / len(counted)
    p50, p99 = np.quantile(times, [0.5, 0.99])
    return f"cached {cached:.0%}, first token p50 {p50:.3g} s, p99 {p99:.3g} s, busiest server {busiest:.0%}"


THROUGHPUT, PENALTY = 1_000, 6.0
LENGTH, SERVERS = 120, 3
SLOW = SimulatorSettings(prefill_time=1 / THROUGHPUT, slots=64, kv_blocks=8192)


def rising(at: float) -> float:
    """Requests a second: up to 9, and back."""
    return 1 + 8 * max(0.0, 1 - abs(at - LENGTH / 2) / 40)


def panels(title: str, document: str) -> list[Panel]:
    """Tokens in flight and requests a second, by server."""
    workload = Workload(rate=0, groups=1, shared=4000, own=200)
    pool = VirtualPool(document, SLOW, SERVERS)
    arrivals = list(poisson(rising, LENGTH, prompts(workload), 4))
    tokens: list[list[float]] = [[] for _ in range(SERVERS)]
    asked = [[0.0] * LENGTH for _ in range(SERVERS)]
    for second in range(LENGTH):
        pool.run([arrival for arrival in arrivals if second <= arrival.at < second + 1], until=second + 1)
        for line, now in zip(tokens, pool.tokens, strict=True):
            line.append(now)
    for request in pool.requests:
        asked[request.server][int(request.arrival.at)] += 1
    gap = {"gap": [THROUGHPUT * PENALTY] * LENGTH} if title == "sticky" else {}
    return [
        Panel(f"{title}: tokens in flight", gap | dict(zip(pool.names, tokens, strict=True))),  # the gap is grey
        Panel(f"{title}: requests a second", dict(zip(pool.names, asked, strict=True))),
    ]


def picture() -> str:
    """The SVG document."""
    parameters = f"{{peakPrefillThroughput: {THROUGHPUT}, maxTTFTPenaltyMs: {PENALTY * 1000:g}}}"
    documents = PROFILES | {"sticky": DEFAULT_DOCUMENT.replace(GAP, parameters)}
    return draw([panels(title, document) for title, document in documents.items()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--svg", type=Path, help="draw a rising and falling load to this file")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals, the prompts and every choice by chance")
    options = parser.parse_args()
    svg: Path | None = options.svg
    if svg is not None:
        svg.write_text(picture(), encoding="utf-8")
        print(f"wrote {svg}")
        return
    for name, workload in WORKLOADS.items():
        for profile in MEASURED:
            print(f"{name:53} {profile:20} {measure(profile, workload, seed=options.seed)}", flush=True)


if __name__ == "__main__":
    main()
