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
    others = [collector for collector in dict.fromkeys(collectors) if collector != me]
    return {id: endpoint for id, endpoint in endpoints.items() if _is_owner(me, id, others)}


def _is_owner(me: str, endpoint_id: str, others: Iterable[str]) -> bool:
    """Stops at the first greater hash, so the number of collectors hardly matters."""
    mine = _rank(me, endpoint_id)
    return not any(_rank(collector, endpoint_id) > mine for collector in others)


def _rank(collector: str, endpoint_id: str) -> tuple[int, str]:
    return xxh3_64_intdigest(f"{collector}\0{endpoint_id}".encode()), collector
