"""A heap whose entries may die in place: dead ones go when they come to the top, or when they are the greater part."""

import heapq

from services.picker.flow_control.waiting import Waiting

_SMALL = 8
"""Entries up to which dead ones cost less than their removal."""


class LazyHeap:
    """Requests by key, the least first; of equal keys, the first that was pushed. An entry is dead once its request is
    no longer `queued`; the caller that ends that calls `discard`."""

    __slots__ = ("_dead", "_entries", "_pushed")

    def __init__(self) -> None:
        self._entries: list[tuple[float, float, int, Waiting]] = []
        self._dead = 0
        self._pushed = 0

    def push(self, key: float, tie: float, item: Waiting) -> None:
        """`tie` decides among equal keys, the least first."""
        self._pushed += 1
        heapq.heappush(self._entries, (key, tie, self._pushed, item))

    def peek(self) -> Waiting | None:
        """The first of the living."""
        entries = self._entries
        while entries:
            item = entries[0][3]
            if item.queued:
                return item
            heapq.heappop(entries)
            self._dead -= 1
        return None

    def first_key(self) -> float | None:
        """The key of the first of the living."""
        return None if self.peek() is None else self._entries[0][0]

    def pop(self) -> Waiting | None:
        """Take the first of the living; the caller ends its being queued, and doesn't discard it."""
        item = self.peek()
        if item is not None:
            heapq.heappop(self._entries)
        return item

    def discard(self) -> None:
        """One more entry is dead."""
        self._dead += 1
        if self._dead * 2 > len(self._entries) > _SMALL or self._dead == len(self._entries):
            self._entries = [entry for entry in self._entries if entry[3].queued]
            heapq.heapify(self._entries)
            self._dead = 0

    def __len__(self) -> int:
        """The living."""
        return len(self._entries) - self._dead

    def __repr__(self) -> str:
        return f"<LazyHeap {len(self)} living, {self._dead} dead>"
