"""Which model names metrics tell apart. Clients choose the names, so the number of labels has a limit.

A name becomes a label when a resource names it, or when a model server has answered a request for it without an error.
Names that no server knows therefore stay `OTHER`. When all labels are taken, one of a lower `Rank` makes room at once,
and one of the same or a higher rank when no request has used it for `IDLE` seconds. Invented names for which clients
get answers thus can't keep out the models of the pool.
"""

from collections.abc import Callable
from enum import IntEnum
from math import inf

from msgspec import Struct

OTHER = "other"
"""The label of all other models."""
SHOWN = 128
"""Characters of a model's name in a label."""
IDLE = 3600.0


class Rank(IntEnum):
    """What is known of a model's name."""

    REWRITTEN = 0
    """A server answered a request for it under another name."""
    SERVED = 1
    """A server answered a request for it."""
    NAMED = 2
    """A resource names it."""


class _Label(Struct):
    used: float
    """When a request last used it."""
    rank: Rank


class ModelLabels:
    """Up to `most` labels. `named` tells whether a resource names a model, and `forget` that a label has made room."""

    def __init__(
        self, most: int, named: Callable[[str], bool], forget: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._most = most
        self._named = named
        self._forget = forget
        self._clock = clock
        self._labels: dict[str, _Label] = {}
        self._full_until = dict.fromkeys(Rank, -inf)
        """When a label may make room for one of this rank, at the earliest."""

    def of(self, model: str, *, named: bool = False) -> str:
        """The model's label; `named` where a resource is known to name it."""
        name = model[:SHOWN]
        if (label := self._labels.get(name)) is not None:
            label.used = self._clock()
            return name
        if not model or ((named or self._named(model)) and self._take(name, Rank.NAMED)):
            return name
        return OTHER

    def answered(self, model: str, rank: Rank) -> None:
        """A model server has answered a request for this model without an error."""
        name = model[:SHOWN]
        if name and name not in self._labels:
            self._take(name, rank)

    def _take(self, name: str, rank: Rank) -> bool:
        """Make this a label if there is room."""
        now, labels = self._clock(), self._labels
        if len(labels) >= self._most:
            if now < self._full_until[rank]:
                return False
            unused = min(labels, key=lambda name: (labels[name].rank >= rank, labels[name].used))
            idle_at = labels[unused].used + IDLE
            if labels[unused].rank >= rank and now < idle_at:
                self._full_until[rank] = idle_at
                return False
            del labels[unused]
            self._forget(unused)
        labels[name] = _Label(now, rank)
        return True

    def __repr__(self) -> str:
        return f"<ModelLabels {len(self._labels)} of {self._most}>"
