"""Limits the watcher's writes to the cluster: per minute, after failures, and of contested conditions."""

from collections import deque
from collections.abc import Collection, Hashable

import structlog

from services.watcher.kubernetes.backoff import Backoff, Timing
from services.watcher.kubernetes.errors import KubernetesError
from services.watcher.kubernetes.settings import KubernetesSettings

log = structlog.get_logger(__name__)

NEVER = float("inf")
MINUTE = 60.0
FREE = 3
"""How often the same condition is written without a pause: a resource that is applied again may lose it."""
INITIAL_PAUSE = 1.0
MAX_PAUSE = 300.0
"""Seconds of the first pause, which doubles, and of the longest."""
LASTING = 2 * MAX_PAUSE
"""Seconds after which a condition isn't contested. A write comes later than its pause ends: rounds and other limits
delay it."""


class RateLimiter:
    """At most `limit` writes in any minute; 0: none at all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._writes: deque[float] = deque()

    def take(self, now: float) -> float:
        """`now` if a write is allowed, which it counts; otherwise when the next one will be."""
        while self._writes and self._writes[0] <= now - MINUTE:
            self._writes.popleft()
        if len(self._writes) < self._limit:
            self._writes.append(now)
            return now
        return self._writes[0] + MINUTE if self._writes else NEVER


class WriteTarget:
    """A resource type in a namespace. After a failure, it isn't written to for a while: a role may allow it in another
    namespace."""

    def __init__(self, name: str, settings: KubernetesSettings, timing: Timing) -> None:
        self._name = name
        self._settings = settings
        self._timing = timing
        self._backoff = Backoff(settings.kubernetes_initial_backoff, settings.kubernetes_max_backoff, timing)
        self.closed_until = 0.0
        """Seconds of the clock."""
        self.problem = ""

    def succeed(self) -> None:
        self._backoff.reset()
        if self.problem:
            log.info("status.recovered", target=self._name)
            self.problem = ""

    def fail(self, error: KubernetesError) -> None:
        pause = self._backoff.after(error, self._settings)
        self.closed_until = self._timing.clock() + pause
        if self.problem != str(error):
            self.problem = str(error)
            log.warning("status.failed", target=self._name, reason=self.problem, retry_in=round(pause, 3))

    def __repr__(self) -> str:
        return f"<WriteTarget {self._name}: {self.problem or 'no problem'}>"


class ContestedWrites:
    """Delays writes that another writer undoes each time.

    A client that writes a whole status removes what others have applied, without a conflict. Two that don't give in
    would write for ever, each as fast as it can.
    """

    def __init__(self) -> None:
        self._writes: dict[str, tuple[Hashable, int, float]] = {}
        """By uid: what was written last, how often, and when."""

    def due(self, uid: str, what: Hashable) -> float:
        """When this may be written again, in seconds of the clock."""
        last, times, at = self._writes.get(uid, (None, 0, 0.0))
        if last != what or times <= FREE:
            return 0.0
        exponent = min(times - FREE - 1, 60)  # avoids an overflow
        return at + min(MAX_PAUSE, INITIAL_PAUSE * 2.0**exponent)

    def wrote(self, uid: str, what: Hashable, now: float) -> bool:
        """Count a write. Returns whether it is the first that is contested."""
        last, times, at = self._writes.get(uid, (None, 0, 0.0))
        times = times + 1 if last == what and now - at <= LASTING else 1
        self._writes[uid] = what, times, now
        return times == FREE + 1

    def keep(self, uids: Collection[str]) -> None:
        """Forget all others."""
        self._writes = {uid: write for uid, write in self._writes.items() if uid in uids}

    def state(self) -> dict[str, int]:
        """The number of writes of contested conditions, by uid."""
        return {uid: times for uid, (_, times, _) in self._writes.items() if times > FREE}
