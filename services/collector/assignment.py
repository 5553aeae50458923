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
    return max(collectors, key=lambda one: (_weight(one, endpoint_id), one), default=None)


def assigned(endpoints: Mapping[str, T], me: str, collectors: Iterable[str]) -> dict[str, T]:
    """The endpoints, by id, that are `me`'s to scrape among live collectors. `me` is one of them in any case."""
    live = {me, *collectors}
    if len(live) == 1:
        return dict(endpoints)
    return {id: endpoint for id, endpoint in endpoints.items() if owner(id, live) == me}


def _weight(collector: str, endpoint_id: str) -> int:
    return xxh3_64_intdigest(f"{collector}\0{endpoint_id}".encode())
