"""What holds for all tests."""

import os
from collections.abc import Generator

import hypothesis
import pytest

from tests.turns import Turns

# Tests run gRPC servers and start processes. gRPC's handlers would start its threads again in every forked child,
# before it becomes nats-server or Envoy, and at times abort it. Read when grpc is imported: stands before everything.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# They start hundreds of our processes, each of which would compile all of its modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A machine that stands still for a moment makes no example slow. In CI hypothesis has a profile of its own.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
if not os.environ.get("CI"):
    hypothesis.settings.load_profile("unhurried")

_TURNS = pytest.StashKey[Turns]()


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        config.stash[_TURNS] = Turns(config.rootpath / ".run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those that are alone first, so that processes take turns at them, instead of each waiting for a long test of
    another one."""
    if _TURNS in config.stash:
        items.sort(key=lambda item: not _alone(item))


def _alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Outside of the time-out: waiting for a turn isn't the test's time."""
    turns = item.config.stash.get(_TURNS, None)
    if turns is None:
        return (yield)
    with turns.turn(alone=_alone(item)):
        return (yield)
