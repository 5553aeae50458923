"""`make soak`: the fault tests in full length, repeatedly; p50 and p99 of what they measured beside the promise.

    python -m tests.soak [--times N] [PYTEST ARGUMENT...]

Exit status 1 when a test fails or when a p99 breaks its promise.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.soak.promises import MEASURED


def table(lines: Iterable[str]) -> tuple[list[str], bool]:
    """The rows to print, and whether all promises are kept."""
    seconds: dict[tuple[str, float], list[float]] = defaultdict(list)
    for line in lines:
        noted = json.loads(line)
        seconds[noted["name"], noted["promise"]].append(noted["seconds"])
    rows, kept = [f"{'':<52} {'n':>5} {'p50':>9} {'p99':>9} {'promise':>9}"], True
    for (name, promise), values in sorted(seconds.items()):
        p50, p99 = np.percentile(values, (50, 99))
        broken = p99 > promise
        kept = kept and not broken
        rows.append(
            f"{name:<52} {len(values):>5} {p50:>7.3f} s {p99:>7.3f} s {promise:>7.3f} s{'  BROKEN' if broken else ''}"
        )
    return rows, kept


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="how often the tests run (default 5)")
    options, rest = parser.parse_known_args()
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        noted = Path(directory, "measured")
        noted.touch()
        environment = {**os.environ, MEASURED: str(noted), "POINTSMAN_RETRIES": "0"}
        for number in range(options.times):
            print(f"== {number + 1} of {options.times}", flush=True)
            run = [sys.executable, "-m", "pytest", "-m", "soak", "-q", "--timeout", "900", *rest]
            failed += subprocess.run(run, env=environment, check=False).returncode != 0
        rows, kept = table(noted.read_text().splitlines())
    print("\n".join(rows))
    print(f"{options.times - failed} of {options.times} runs passed")
    return int(failed > 0 or not kept)


if __name__ == "__main__":
    sys.exit(main())
