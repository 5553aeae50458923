"""A pool at one moment: what `pointsman top` shows, and prints as JSON."""

from msgspec import Struct

from shared.pool_view.reader import PoolReader
from shared.pool_view.rows import BandRow, EndpointRow, MemberRow, PoolState


class Snapshot(Struct, frozen=True, kw_only=True):
    """Ages and waits are seconds; None is an unknown value."""

    pool: str
    state: PoolState
    endpoints: tuple[EndpointRow, ...] = ()
    members: tuple[MemberRow, ...] = ()
    queues: tuple[BandRow, ...] = ()
    """What waits at the pickers; empty without flow control."""


def snapshot(reader: PoolReader, pool: str) -> Snapshot:
    """The pool as the reader knows it now."""
    return Snapshot(
        pool=pool,
        state=reader.state(),
        endpoints=tuple(reader.rows()),
        members=tuple(reader.members()),
        queues=reader.queues(),
    )
