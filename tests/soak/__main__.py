"""`make soak`: the fault tests in full length, repeatedly; p50 and p99 of what they measured beside the promise.

    python -m tests.soak [--times N] [--measured FILE] [--write] [PYTEST ARGUMENT...]

Tests marked `outage` mostly wait: each run plays them beside the others. `--measured` keeps the times in a file, after
those of former runs; `--times 0` shows them. `--write` writes the table of docs/reliability.md. Exit status 1 when a
test fails or when a p99 breaks its promise.
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
import pytest

from pointsman.markdown import table
from tests.deploy.results import write
from tests.soak.promises import MEASURED, PROMISES

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
PARTS = ("soak and not outage", "outage")
"""Of a run, at the same time."""


def summary(lines: Iterable[str]) -> tuple[str, list[str]]:
    """A Markdown table of what was measured, and the promises that aren't kept."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        noted = json.loads(line)
        seconds[noted["name"]].append(noted["seconds"])
    rows, broken = [], []
    for name, promise in PROMISES.items():
        if not (values := seconds.get(name)):
            continue
        p50, p99 = np.percentile(values, (50, 99))
        rows.append(
            (
                *(name, promise.effect, promise.until, f"{promise.seconds:g} s"),
                *(str(len(values)), f"{p50:.2f} s", f"{p99:.2f} s"),
            )
        )
        if p99 > promise.seconds:
            broken.append(f"BROKEN {name}: {p99:.3f} s until {promise.until}, promised are {promise.seconds:g} s")
    header = ("fault", "what users see", "timed until", "promised", "times", "p50", "p99")
    return table(header, rows).rstrip("\n"), broken


def play(arguments: list[str], environment: dict[str, str]) -> bool:
    """One run of all tests. Whether they passed."""
    pytest_command = [sys.executable, "-m", "pytest", "-q", "--timeout", "1500", *arguments]
    running = [subprocess.Popen([*pytest_command, "-m", part], env=environment) for part in PARTS]
    codes = [process.wait() for process in running]
    return set(codes) <= {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=3, help="how often the tests run (default 3)")
    parser.add_argument("--measured", type=Path, metavar="FILE", help="keeps the measured times")
    parser.add_argument("--write", action="store_true", help=f"write the table of {PAGE.name}")
    options, rest = parser.parse_known_args()
    passed = 0
    with tempfile.TemporaryDirectory() as directory:
        noted: Path = (options.measured or Path(directory, "measured")).absolute()
        noted.touch()
        environment = {**os.environ, MEASURED: str(noted), "POINTSMAN_RETRIES": "0"}
        for number in range(options.times):
            print(f"== {number + 1} of {options.times}", flush=True)
            passed += play(rest, environment)
        text, broken = summary(noted.read_text().splitlines())
    if options.write:
        write(PAGE, "soak", text)
    print("\n".join([text, *broken, f"{passed} of {options.times} runs passed"]))
    return int(passed < options.times or bool(broken))


if __name__ == "__main__":
    sys.exit(main())
