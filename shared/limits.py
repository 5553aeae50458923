"""How much of what others publish on the bus a process keeps. These limits are settings of every tier."""

from typing import Annotated

from msgspec import Meta, Struct

from shared.quantities import PositiveSize

MIN_PENDING_BYTES = 2 * 2**20
"""nats-py drops each message of so many bytes as it may hold; nats-server's have at most 1 MiB by default."""


class BusLimits(Struct, frozen=True, kw_only=True):
    """The limits of one process."""

    max_fact_entries: Annotated[
        int,
        Meta(ge=1, description="maximum labels, ports, rules, models and targets of a fact. The same for all tiers"),
    ] = 10_000
    max_fact_memory: Annotated[
        PositiveSize, Meta(description="approximate maximum memory of a copy of the facts; further facts are ignored")
    ] = 256 * 2**20
    max_senders: Annotated[
        int,
        Meta(ge=1, description="maximum known collectors; a tenth of it for watchers, ten times it for runs of peers"),
    ] = 1000
    max_pending_bytes: Annotated[
        PositiveSize,
        Meta(
            description="maximum bytes of waiting messages of a subscription, at least 2Mi and twice nats-server's "
            "max_payload; at most one message for each 512 bytes",
        ),
    ] = 32 * 2**20

    @property
    def max_watchers(self) -> int:
        """Candidates for a lease, and their epochs."""
        return max(1, self.max_senders // 10)

    @property
    def max_runs(self) -> int:
        """Runs of senders, and keys of frames."""
        return 10 * self.max_senders

    @property
    def max_pending_messages(self) -> int:
        """Messages of a subscription that have arrived and aren't handled."""
        return max(1, self.max_pending_bytes // 512)


LIMITS = BusLimits()
"""The defaults."""
