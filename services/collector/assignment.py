"""Assigns endpoints to collectors without a coordinator, by rendezvous hashing over the live collectors.

Every collector computes the same assignment from the same members. When one of n collectors joins or leaves, 1/n of the
endpoints move.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from xxhash import xxh3_64_intdigest

T = TypeVar("T")


def assigned(endpoints: Mapping[str, T], me: str, collectors: Iterable[str]) -> dict[str, T]:
    """The endpoints of the collector `me`, which counts as live in any case."""
    mine = _prefix(me)
    others = [(_prefix(collector), collector > me) for collector in dict.fromkeys(collectors) if collector != me]
    return {id: endpoint for id, endpoint in endpoints.items() if _is_owner(mine, id.encode(), others)}


def _is_owner(mine: bytes, endpoint_id: bytes, others: Iterable[tuple[bytes, bool]]) -> bool:
    """Stops at the first greater hash, so the number of collectors hardly matters. `others` say whose goes before mine
    if both are equal."""
    own = xxh3_64_intdigest(mine + endpoint_id)
    for other, before in others:
        rank = xxh3_64_intdigest(other + endpoint_id)
        if rank > own or (rank == own and before):
            return False
    return True


def _prefix(collector: str) -> bytes:
    """What a collector's rank at an endpoint is the hash of, up to the endpoint's id."""
    return f"{collector}\0".encode()
