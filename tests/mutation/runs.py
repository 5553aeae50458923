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

from tests.mutation.mutations import Mutation

PROTOCOL = {
    "shared": ("bus", "service"),
    "services/watcher": ("watcher",),
    "services/collector": ("collector", "steering"),
    "services/picker": ("picker", "system", "modes", "envoy", "gateways"),
    "services/simulator": ("simulator",),
    "pointsman": ("probe", "local", "demo"),
}
"""The tiers, and the folders of tests/protocol that test each."""

FLAGS = ("-q", "-p", "no:cacheprovider", "-p", "tests.mutation.runs", "--tb=no", "--timeout=100")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)
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


def steps(path: str, tree: Path) -> list[list[str]]:
    """What pytest runs for a file, one after the other: the unit tests that mirror it, its tier's, the protocol's."""
    mirror = Path("tests/unit", path.replace("/__init__.py", ".py")).with_suffix("")
    files = sorted((tree / mirror.parent).glob(f"test_{mirror.name}*.py"))
    folders = [mirror, mirror.parent, Path("tests/unit", tier_of(path))]
    found = [[str(file.relative_to(tree)) for file in files], *([str(folder)] for folder in folders)]
    found.append([f"tests/protocol/{name}" for name in PROTOCOL[tier_of(path)]])
    return [
        step for number, step in enumerate(found) if step not in found[:number] and step and (tree / step[0]).exists()
    ]


class Tree:
    """A copy of the working tree."""

    def __init__(self, source: Path, copy: Path, *, unit: bool) -> None:
        self._path = copy
        self._unit = unit
        self._written = int(time.time())
        listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
        names = subprocess.run(listed, cwd=source, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (source / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, copy / name)

    def caught_by(self, mutation: Mutation) -> str | None:
        """The test that fails with this mutation, or how pytest ended; None: the mutant survives."""
        file = self._path / mutation.path
        source = file.read_bytes()
        self._write(file, mutation.apply(source))
        try:
            for step in steps(mutation.path, self._path)[: -1 if self._unit else None]:
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
        command = [sys.executable, "-m", "pytest", *FLAGS, *arguments]
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
            said = output.read().decode(errors="replace")
        found = FAILED.findall(said)
        return found or ([] if status in (0, 5) else [f"pytest, status {status}: {said.strip()[-300:]}"])


def _end(tests: subprocess.Popen[bytes]) -> None:
    """Let pytest stop the servers that it has started, then kill what is left."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(tests.pid, number)
            tests.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
