"""How much of what others publish a process keeps: settings of every tier (`shared.service.settings`)."""

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of one process."""

    fact_entries: int = 10_000
    """Labels, ports, rules, models and targets of one fact."""
    fact_memory: int = 256 * 2**20
    """Approximate bytes of memory of one copy of a pool's facts."""
    senders: int = 1000
    """Collectors. Of watchers, a tenth as many; of senders' runs and of keys of frames, ten times as many."""
    pending_bytes: int = 32 * 2**20
    """Bytes of a subscription's messages that have arrived and aren't handled."""

    @property
    def watchers(self) -> int:
        """Candidates for a lease, and their epochs."""
        return max(1, self.senders // 10)

    @property
    def runs(self) -> int:
        """Runs of senders, and keys of frames."""
        return 10 * self.senders

    @property
    def pending_messages(self) -> int:
        """Messages of a subscription that have arrived and aren't handled: at least 512 bytes of room for each."""
        return max(1, self.pending_bytes // 512)


LIMITS = Limits()
"""The defaults."""
