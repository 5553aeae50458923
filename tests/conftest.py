"""What holds for all tests."""

import gc
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest
import pytest_rerunfailures  # type: ignore[import-untyped]

from tests import zygote
from tests.soak.promises import soaking

# Tests run gRPC servers and start processes. gRPC's handlers would start its threads again in every forked child,
# before it becomes nats-server or Envoy, and at times abort it. Read when grpc is imported: stands before everything.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# They start hundreds of our processes, each of which would compile all of its modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A machine that stands still for a moment makes no example slow, and every run has the same examples: others are for
# `make fuzz`. In CI hypothesis has a profile of its own, which does both.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
if not os.environ.get("CI"):
    hypothesis.settings.load_profile("unhurried")

RETRIES = int(os.environ.get("POINTSMAN_RETRIES", "2"))
"""How often a test that failed is tried again, where it starts processes or opens sockets."""
FAILED = pytest.StashKey[bool]()
"""Of a session: whether the last attempt of a test has failed."""
UNIT = Path(__file__).parent / "unit"
"""Tests without either, which are never tried again."""


def pytest_collection_finish(session: pytest.Session) -> None:
    started = any(UNIT not in item.path.parents for item in session.items)
    if started and not soaking() and not session.config.option.collectonly:  # a soak measures how long things take
        zygote.install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    zygote.forking = item.get_closest_marker("command_line") is None
    if item.session.stash.get(FAILED, False):
        item.session.stash[FAILED] = False
        # What tests share may be in any state now: it is made anew, for the retry and for the tests behind it. The
        # plugin that retries has kept it.
        item.session._setupstate.stack.update(pytest_rerunfailures.suspended_finalizers)
        pytest_rerunfailures.suspended_finalizers.clear()
        item.session._setupstate.teardown_exact(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not RETRIES:
        return
    for item in items:
        if UNIT not in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=RETRIES))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """No collection of garbage while a failure's source is parsed: a task that it ends logs its exception, for which
    Python parses, too, and one parser within the other is a SystemError in Python 3.11 that ends the whole run."""
    collected = gc.isenabled()
    gc.disable()
    try:
        report = yield
    finally:
        if collected:
            gc.enable()
    if report.failed:
        item.session.stash[FAILED] = True
    return report


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the failures of every test that was tried again, and list these tests: each is a defect to mend."""
    failures: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.getreports("rerun"):
        failures[report.nodeid].append(str(report.longrepr).rstrip())
    if not failures:
        return
    for test, reports in failures.items():
        for report in reports:
            terminalreporter.section(f"{test} failed and was tried again", sep="_")
            terminalreporter.write_line(report)
    terminalreporter.section("retried")
    for test, reports in failures.items():
        error = next((line for line in reports[0].splitlines() if line.startswith("E ")), reports[0][-300:])
        terminalreporter.line(f"{test} ({len(reports)}×): {error.removeprefix('E').strip()}")
