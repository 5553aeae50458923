"""Counts the failures of plugins, and tells of them: as a metric, on `/readyz` and in the log.

A plugin is somebody else's code, and what it does wrong costs its own part of the work and no other's. Whoever calls a
plugin decides what stands in for its result, and records the failure here. One object a process: every tier has the
same metric, the same note and the same line in the log.
"""

from collections.abc import Callable, Iterator
from traceback import format_tb

import structlog
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

log = structlog.get_logger(__name__)

WELL_AFTER = 60.0
"""Seconds after its last failure from which on a plugin counts as well again."""
LOG_EVERY = 60.0
"""Seconds between two lines in the log about one plugin."""
SHOWN = 256
"""Characters of an error that are kept, shown and logged."""
FRAMES = 20
"""Innermost frames of a traceback that are logged."""


class Withheld(Exception):
    """Stands for an exception whose text may quote a request: tells its type alone, and where it was raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type(error).__name__)
        self.__traceback__ = error.__traceback__


def reason_of(error: Exception | str) -> str:
    """The error in one short text; it never raises, whatever kind of exception a plugin has."""
    if isinstance(error, str):
        return error[:SHOWN]
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a plugin's exception
        return kind
    if isinstance(error, Withheld):
        return text[:SHOWN]
    return (f"{kind}: {text}" if text else kind)[:SHOWN]


def _frames(error: Exception) -> str:
    """Where it was raised, as a traceback without the exception."""
    return "Traceback (most recent call last):\n" + "".join(format_tb(error.__traceback__, -FRAMES)).rstrip()


class _Plugin:
    """How one plugin fares."""

    __slots__ = ("failed_at", "failures", "log_at", "reason", "unlogged")

    def __init__(self) -> None:
        self.failures = 0
        self.failed_at = float("-inf")
        self.reason = ""
        self.log_at = float("-inf")
        self.unlogged = 0


class PluginFailures(Collector):
    """The failures of a process's plugins by name, over all configurations that it runs one after the other.

    `clock` gives monotonic seconds. Not to be used by several threads.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._plugins: dict[str, _Plugin] = {}

    def follow(self, plugin: str) -> None:
        """Have a series of the plugin from the start: one that is there at 0 can be alerted on."""
        self._plugins.setdefault(plugin, _Plugin())

    def record(self, plugin: str, error: Exception | str, **about: str) -> None:
        """The plugin failed, with an exception or in words. `about` says what on: a request's id, an endpoint's.

        Logged once a minute for each plugin, an exception with the frames of its traceback. The exception's text is in
        the reason alone: it may be of any length.
        """
        state = self._plugins.setdefault(plugin, _Plugin())
        now = self._clock()
        state.failures += 1
        state.failed_at = now
        state.reason = reason_of(error)
        state.unlogged += 1
        if now >= state.log_at:
            raised = {"exception": _frames(error)} if isinstance(error, Exception) and error.__traceback__ else {}
            log.error(
                "plugin.failed", plugin=plugin, **about, reason=state.reason, since_last_line=state.unlogged, **raised
            )
            state.log_at, state.unlogged = now + LOG_EVERY, 0

    def counts(self) -> dict[str, int]:
        """Failures by plugin."""
        return {name: state.failures for name, state in self._plugins.items()}

    def note(self) -> str | None:
        """What `/readyz` mentions: the plugins that failed within the last minute; None when there are none."""
        now = self._clock()
        return (
            "; ".join(
                f"plugin {name!r} has failed {state.failures} times, {now - state.failed_at:.0f} s ago with: {state.reason}"
                for name, state in self._plugins.items()
                if now - state.failed_at < WELL_AFTER
            )
            or None
        )

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "pointsman_plugin_failures",
            "Failed calls of a plugin: it raised an exception, or its result is unusable",
            labels=["plugin"],
        )
        for name, state in self._plugins.items():
            family.add_metric([name], state.failures)
        yield family

    def __repr__(self) -> str:
        return f"<PluginFailures {sum(state.failures for state in self._plugins.values())} of {len(self._plugins)} plugins>"
