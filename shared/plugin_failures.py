"""Counts the failures of plugins: as a metric, on `/readyz` and in the log.

A failing plugin affects only its own part of the work: its caller decides what replaces the result, and records the
failure here. There is one object per process.
"""

from collections.abc import Callable, Hashable, Iterable
from traceback import format_tb

import structlog

from shared.recent_events import Recent, RecentEvents

log = structlog.get_logger(__name__)

SHOWN = 256
"""Characters of an error that are kept, shown and logged."""
FRAMES = 20
"""Innermost frames of a traceback that are logged."""


class Withheld(Exception):
    """Stands for an exception whose text may quote a request: gives only its type, and where it was raised."""

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


class PluginFailures(RecentEvents):
    """The failures of a process's plugins by name. A plugin's count goes on while successive configurations have it,
    and ends with the last one that does."""

    def __init__(self, clock: Callable[[], float]) -> None:
        text = "Failed calls of a plugin: it raised an exception, or its result is unusable"
        super().__init__(clock, "pointsman_plugin_failures", text, "plugin")
        self._followed: dict[Hashable, tuple[str, ...]] = {}

    def follow(self, owner: Hashable, plugins: Iterable[str]) -> None:
        """These are the plugins of the configuration that `owner` runs. Each has a series from the start: one that is
        there at 0 can be alerted on. Series of plugins that no owner has end."""
        self._followed[owner] = tuple(plugins)
        followed = dict.fromkeys(name for names in self._followed.values() for name in names)
        self._events = {name: self._events.get(name) or Recent() for name in followed}

    def record(self, plugin: str, error: Exception | str, **about: str) -> None:
        """The plugin failed, with an exception or in words; `about` says on what: a request's id, an endpoint's. Logged
        once a minute per plugin, with the innermost frames of the traceback. The reason is shortened."""
        reason = reason_of(error)
        if unlogged := self.count(plugin, reason):
            raised = {"exception": _frames(error)} if isinstance(error, Exception) and error.__traceback__ else {}
            log.error("plugin.failed", plugin=plugin, **about, reason=reason, since_last_line=unlogged, **raised)

    def note(self) -> str | None:
        """What `/readyz` mentions: the plugins that failed within the last minute; None when there are none."""
        failed = [
            f"plugin {name!r} has failed {failures.count} times, {age:.0f} s ago with: {failures.text}"
            for name, failures, age in self.recent()
        ]
        return "; ".join(failed) or None
