"""Which collector scrapes which endpoint, with no coordinator: rendezvous hashing over the live collectors.

Every collector computes the same answer from the same members. Of n collectors one that joins takes, and one that
leaves gives away, a share of 1/n; no other endpoint moves.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from xxhash import xxh3_64_intdigest

T = TypeVar("T")


def owner(endpoint_id: str, collectors: Iterable[str]) -> str | None:
    """The collector whose hash together with the endpoint's id is the greatest; None when there is no collector."""
    return max(collectors, key=lambda one: _rank(one, endpoint_id), default=None)


def assigned(endpoints: Mapping[str, T], me: str, collectors: Iterable[str]) -> dict[str, T]:
    """The endpoints, by id, that are `me`'s to scrape among live collectors. `me` is one of them in any case."""
    others = [one for one in dict.fromkeys(collectors) if one != me]
    return {id: endpoint for id, endpoint in endpoints.items() if _is_owner(me, id, others)}


def _is_owner(me: str, endpoint_id: str, others: Iterable[str]) -> bool:
    """Of an endpoint that is another one's, some of the others are enough to know: their number hardly counts."""
    ours = _rank(me, endpoint_id)
    return not any(_rank(one, endpoint_id) > ours for one in others)


def _rank(collector: str, endpoint_id: str) -> tuple[int, str]:
    return xxh3_64_intdigest(f"{collector}\0{endpoint_id}".encode()), collector
