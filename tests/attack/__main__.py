"""`make attack`: what hostile clients, proxies, model servers, messages and files do to a live system.

    python -m tests.attack [--seed N] [--seconds S] [--only FRONT[.ACT]]

Prints what was done and the figures beside their bounds. Exit status 1 when something broke.
"""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # read when grpc is imported: its threads start in no child

from tests.attack.invariants import MOST_RESIDENT
from tests.attack.run import Latency, Outcome, run

MOST_P99 = 0.05
"""Seconds to the first byte of a well-behaved request."""
MOST_AGE = 2.0
"""Seconds: `staleMetrics.after`, beyond which a good server's metrics count for nothing."""
MOST_OTHERS = 0.25
"""Of a core: what other work may take while bounds in time are judged."""
QUIET = 0.1
"""The time without an attack, for comparison, by the attack's; some seconds at least."""
MIB = 2**20


def report(outcome: Outcome) -> Iterator[tuple[str, bool]]:
    """Lines to print, and whether what a line tells is within its bound."""
    counts = ", ".join(f"{front} {number}" for front, number in sorted(outcome.journal.counts().items()))
    yield f"seed {outcome.seed}, {outcome.seconds:.0f} s of attack; acts: {counts}", True
    shares = ", ".join(f"{name} {share:.0%}" for name, share in outcome.shares.items())
    yield f"of a core took {shares}; and others, on this machine, {outcome.others:.0%}", True
    busy = outcome.others > MOST_OTHERS
    if busy:
        yield f"other work took more than {MOST_OTHERS:.0%} of a core: bounds in time aren't judged", True
    yield from _times(outcome, busy)
    for name, (before, most, after) in outcome.resident.items():
        bound = MOST_RESIDENT[name.partition("-")[0]] // MIB
        number, longest = outcome.pauses.get(name, (0, 0.0))
        size = f"{before // MIB:4} -> {after // MIB:4} MiB, at most {most // MIB:4} of {bound}"
        yield f"{name:<12} {size}; {number} pauses of the event loop, {longest:.2f} s at most", True
    for line in outcome.culprits:
        yield f"  held its event loop for {line}", True
    for line in outcome.exceptions:
        yield f"unexpected exception: {line}", False
    for breach in outcome.journal.breaches.values():
        yield f"{breach.times} times: {breach.what}\n    beside {', '.join(breach.acts) or 'nothing'}", False


def _times(outcome: Outcome, busy: bool) -> Iterator[tuple[str, bool]]:
    """What took how long. On a busy machine no bound is broken."""
    yield f"quiet:    {_latency(outcome.quiet)}", True
    kept = busy or outcome.attacked.p99 <= MOST_P99
    yield f"attacked: {_latency(outcome.attacked)}; bound p99 {MOST_P99 * 1000:.0f} ms", kept
    for seconds, acts in outcome.slowest:
        yield f"  {seconds * 1000:6.0f} ms beside {', '.join(acts)}", True
    yield f"  (the load's own process stood still for {outcome.load_late * 1000:.0f} ms at most)", True
    kept = busy or outcome.oldest <= MOST_AGE
    yield f"oldest metrics of a good server: {outcome.oldest:.2f} s; bound {MOST_AGE:g} s", kept
    yield f"slowest /debug/state: {outcome.slowest_page:.2f} s; {outcome.unanswered} without an answer", True


def _latency(one: Latency) -> str:
    figures = f"p50 {one.p50 * 1000:.1f} ms, p99 {one.p99 * 1000:.1f} ms, at most {one.worst * 1000:.0f} ms"
    return f"{one.requests} well-behaved requests, first byte: {figures}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="what decides the acts and their order (default 1)")
    parser.add_argument("--seconds", type=float, default=200, help="length of the attack (default 200)")
    parser.add_argument("--only", default="", help="one front, or one act of it: bus, bus.epochs")
    parser.add_argument("--directory", type=Path, help="where the processes' files and logs stay")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        quiet = max(QUIET * options.seconds, 5.0)
        outcome = asyncio.run(run(options.seed, directory, seconds=options.seconds, quiet=quiet, only=options.only))
    sound = True
    for line, kept in report(outcome):
        sound = sound and kept
        print(line if kept else f"BROKEN  {line}")
    return int(not sound)


if __name__ == "__main__":
    sys.exit(main())
