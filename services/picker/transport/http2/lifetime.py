"""When to send a connection a keepalive PING, and when it has lasted long enough. Monotonic seconds."""

from math import inf

from services.picker.settings.http2_options import Http2Options
from services.picker.transport.http2.errors import ConnectionFailed, ErrorCode


class Lifetime:
    """The times of one connection."""

    __slots__ = ("_began", "_options", "_pinged_at", "acknowledged", "received_at")

    def __init__(self, options: Http2Options, now: float) -> None:
        self._options = options
        self._began = self.received_at = now
        self._pinged_at = inf
        self.acknowledged = False
        """Whether the peer has our SETTINGS."""

    def due_ping(self, now: float) -> bool:
        """Whether to send a PING now."""
        every = self._options.keepalive_time
        if not every or not self.acknowledged:
            return False
        if self.received_at >= self._pinged_at:
            self._pinged_at = inf
        if now - self.received_at < every or self._pinged_at < inf:
            return False
        self._pinged_at = now
        return True

    def check(self, now: float, idle_since: float | None) -> None:
        """Raises ConnectionFailed when the connection has lasted long enough. None: it has open streams."""
        options = self._options
        if not self.acknowledged and now - self._began > options.handshake_timeout:
            raise ConnectionFailed(ErrorCode.SETTINGS_TIMEOUT, "SETTINGS were not acknowledged in time")
        if now - self._pinged_at > options.keepalive_timeout and self.received_at < self._pinged_at:
            raise ConnectionFailed(ErrorCode.NO_ERROR, "no answer to a PING")
        if idle_since is not None and 0 < options.idle_timeout < now - idle_since:
            raise ConnectionFailed(ErrorCode.NO_ERROR, "idle")

    def __repr__(self) -> str:
        return f"<Lifetime since {self._began:.1f}, received at {self.received_at:.1f}>"
