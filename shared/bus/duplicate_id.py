"""Detects another process with the id of this one.

NATS doesn't echo messages on their own connection, so a message with this id comes from another process. Exception:
messages of the last connection may still be in the server after a reconnect, but only for a moment.
"""

import structlog

from shared.bus.heartbeat import EXPIRY

log = structlog.get_logger(__name__)

LASTING = 1.0
"""Seconds over which messages with our id have to come until it is certain: two heartbeats."""


class DuplicateId:
    """Counts messages with the id of this process, one of `tier`, and reports when they last."""

    def __init__(self, tier: str, id: str) -> None:
        self._tier = tier
        self._id = id
        self._since: float | None = None
        self._last_seen = 0.0
        self._logged = False
        self.messages = 0

    def observe(self, now: float, *, leaving: bool = False) -> None:
        """A message with our id that we haven't sent; `leaving`: its sender's last one."""
        self.messages += 1
        if not self._present(now):
            self._since, self._logged = now, False
        self._last_seen = now
        if leaving:
            self._since = None
        elif not self._logged and (problem := self.problem(now)) is not None:
            self._logged = True
            log.warning("id.duplicate", problem=problem)

    def problem(self, now: float) -> str | None:
        """None while no other process has the id, otherwise the problem."""
        if not self._present(now) or self._last_seen - (self._since or 0.0) < LASTING:
            return None
        return f"another {self._tier} has the id {self._id!r} too; each needs an --id of its own"

    def _present(self, now: float) -> bool:
        return self._since is not None and now - self._last_seen < EXPIRY

    def __repr__(self) -> str:
        return f"<DuplicateId of {self._id!r}: {self.messages} messages>"
