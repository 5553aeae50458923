"""Runs tests in a copy of the tree, with one mutation applied; in those runs it is also a pytest plugin."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import hypothesis
import pytest

from tests.mutation.executed import RECORD, Executed
from tests.mutation.mutations import Mutation

PROTOCOL = {
    "shared": ("protocol/bus", "protocol/service"),
    "services/watcher": ("protocol/watcher", "faults/watcher_kubernetes"),
    "services/collector": ("protocol/collector", "protocol/steering"),
    "services/picker": tuple(f"protocol/{name}" for name in ("picker", "system", "modes", "envoy", "gateways")),
    "services/simulator": ("protocol/simulator",),
    "pointsman": ("protocol/probe", "protocol/local", "protocol/demo"),
}
"""The tiers, and the folders of tests/ that test each with its real peers."""

FLAGS = ("-q", "-p", "no:cacheprovider", "-p", "tests.mutation.runs", "--tb=no", "--timeout=100")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)
ENDS = "--timeout-method=thread"
"""Ends pytest itself at a time-out: a unit test may hang in a thread, or in a loop that catches all exceptions."""
FIRST = 40
"""How many tests a mutant meets before pytest collects the others."""
STEP_SECONDS = 1200
"""A hanging test ends after its time-out, anything else that hangs after this long."""


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """The same examples for every mutant, and no search for the smallest that fails."""
    hypothesis.settings.register_profile(
        "mutation",
        deadline=None,
        derandomize=True,
        database=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("mutation")


def tier_of(path: str) -> str:
    return next(tier for tier in PROTOCOL if path.startswith(f"{tier}/"))


def steps(path: str, tree: Path, tests: list[str] | None) -> list[list[str]]:
    """What pytest runs for a mutation, one after the other: the unit tests that execute it, the nearest first.

    Where any may (`tests` is None): those that mirror its file, its folder's, its tier's, the documentation's.
    """
    mirror = Path("tests/unit", path.replace("/__init__.py", ".py")).with_suffix("")
    files = [str(file.relative_to(tree)) for file in sorted((tree / mirror.parent).glob(f"test_{mirror.name}*.py"))]

    def distance(test: str) -> tuple[bool, int]:
        file = test.partition("::")[0]
        return file not in files, -len(os.path.commonpath([file, mirror]))

    if tests is None:
        tier, docs = Path("tests/unit", tier_of(path)), Path("tests/unit/docs")
        folders = dict.fromkeys((mirror, mirror.parent, tier, docs))
        found = [files, *([str(folder)] for folder in folders if (tree / folder).exists())]
    else:
        nearest = sorted(tests, key=distance)
        # What a fixture or a cache executes once, for many tests, is recorded with the first alone: hence the files.
        found = [nearest[:FIRST], nearest[FIRST:], files]
    return [step for step in found if step]


class Tree:
    """A copy of the working tree."""

    def __init__(self, source: Path, copy: Path) -> None:
        self._path = copy
        self._written = int(time.time())
        listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
        names = subprocess.run(listed, cwd=source, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (source / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, copy / name)

    def execute(self, workers: int) -> Executed:
        """Run all unit tests, which have to pass at the first or the second time, and record what they execute."""
        failed = self.failures(["-n", str(workers), *RECORD, "tests/unit"])
        if failed and (failed := self.failures(failed)):
            raise SystemExit(f"without a mutation, too: {', '.join(failed)}")
        return Executed(self._path)

    def caught_by(self, mutation: Mutation, executed: Executed, *, unit: bool) -> str | None:
        """The test that fails with this mutation, or how pytest ended; None: the mutant survives."""
        file = self._path / mutation.path
        source = file.read_bytes()
        self._write(file, mutation.apply(source))
        try:
            tests = executed.tests(mutation, source)
            found = [[ENDS, *step] for step in steps(mutation.path, self._path, tests)]
            protocol = [f"tests/{name}" for name in PROTOCOL[tier_of(mutation.path)]]
            for step in found if unit else [*found, protocol]:
                for failed in self.failures(["-x", *step]):
                    # What needs servers has to fail twice: it could have failed by itself.
                    if failed.startswith("tests/unit/") or self.failures([failed]):
                        return failed
        finally:
            self._write(file, source)
        return None

    def _write(self, file: Path, content: bytes) -> None:
        """With a time of its own, by which Python notices that its compiled form is of another content."""
        file.write_bytes(content)
        self._written += 1
        os.utime(file, (self._written, self._written))

    def failures(self, arguments: Iterable[str]) -> list[str]:
        """The tests that fail, or how pytest ended where it doesn't say which."""
        environment = {**os.environ, "PYTHONPATH": str(self._path), "POINTSMAN_RETRIES": "0"}
        listed = self._path / ".arguments"  # thousands of tests are more than a command line holds
        listed.write_text("\n".join(arguments))
        command = [sys.executable, "-m", "pytest", *FLAGS, f"@{listed}"]
        with tempfile.TemporaryFile() as output:
            tests = subprocess.Popen(
                command, cwd=self._path, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                status = tests.wait(STEP_SECONDS)
            except subprocess.TimeoutExpired:
                return ["time-out"]
            finally:
                _end(tests)
            output.seek(0)
            text = output.read().decode(errors="replace")
        found = FAILED.findall(text)
        return found or ([] if status in (0, 5) else [f"pytest, status {status}: {text.strip()[-300:]}"])


def _end(tests: subprocess.Popen[bytes]) -> None:
    """Let pytest stop the servers that it has started, then kill what is left."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(tests.pid, number)
            tests.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
