"""Which model names have series of their own. Clients choose the names, so the number of labels has a limit.

A name becomes a label when a resource names it, or when a model server has answered a request for it without an error.
Names that no server knows therefore stay `OTHER`, as does a model of that very name. When all labels are taken, one of
a lower `Rank` makes room at once, and one of the same or a higher rank when no request has used it for `IDLE` seconds.
Invented names for which clients get answers thus can't keep out the models of the pool. The same holds for the pairs of
a client's model and another target model, of which clients can choose both.
"""

from collections.abc import Callable, Hashable, Iterable
from enum import IntEnum
from math import inf
from typing import Generic, TypeVar

from msgspec import Struct

OTHER = "other"
"""The label of all other models."""
SHOWN = 128
"""Characters of a model's name in a label."""
IDLE = 3600.0
K = TypeVar("K", bound=Hashable)


class Rank(IntEnum):
    """What is known of a model's name. A pair has that of its lesser name if a resource rewrites one to the other."""

    CHOSEN = 0
    """A client named both models of the pair, the target in a header."""
    REWRITTEN = 1
    """A server answered a request for it under another name."""
    SERVED = 2
    """A server answered a request for it."""
    NAMED = 3
    """A resource names it."""


# A member through its enum costs eight times as much as a name of the module in Python 3.11.
_REWRITTEN, _NAMED = Rank.REWRITTEN, Rank.NAMED


class _Label(Struct):
    used: float
    """When a request last used it."""
    rank: Rank
    """The highest so far."""


class Labels(Generic[K]):
    """Up to `limit` labels. `forget` is called with one that has made room."""

    def __init__(self, limit: int, forget: Callable[[K], None], clock: Callable[[], float]) -> None:
        self._limit = limit
        self._forget = forget
        self._clock = clock
        self._labels: dict[K, _Label] = {}
        self._full_until = dict.fromkeys(Rank, -inf)
        """When a label may make room for one of this rank, at the earliest."""

    def rank(self, label: K) -> Rank | None:
        """The rank of a label; None if it is none."""
        found = self._labels.get(label)
        return None if found is None else found.rank

    def use(self, label: K) -> Rank | None:
        """A request uses this label, if it is one: its rank."""
        found = self._labels.get(label)
        if found is None:
            return None
        found.used = self._clock()
        return found.rank

    def take(self, label: K, rank: Rank) -> bool:
        """A request uses this label, which has at least this rank; False if it is none, and there is no room."""
        now, labels = self._clock(), self._labels
        if (found := labels.get(label)) is not None:
            found.used = now
            if rank > found.rank:
                found.rank = rank
            return True
        if len(labels) >= self._limit:
            if now < self._full_until[rank]:
                return False
            unused = min(labels, key=lambda label: (labels[label].rank >= rank, labels[label].used))
            idle_at = labels[unused].used + IDLE
            if labels[unused].rank >= rank and now < idle_at:
                self._full_until[rank] = idle_at
                return False
            del labels[unused]
            self._forget(unused)
        labels[label] = _Label(now, rank)
        return True

    def drop(self, labels: Iterable[K]) -> None:
        """Make room."""
        for label in labels:
            self._labels.pop(label, None)
        self._full_until = dict.fromkeys(Rank, -inf)

    def __repr__(self) -> str:
        return f"<Labels {len(self._labels)} of {self._limit}>"


class ModelLabels:
    """Up to `limit` labels. `named` tells whether a resource names a model, and `forget` that a label has made room."""

    def __init__(
        self, limit: int, named: Callable[[str], bool], forget: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._named = named
        self._labels = Labels[str](limit, forget, clock)

    def of(self, model: str, *, named: bool = False) -> str:
        """The model's label; `named` where a resource is known to name it."""
        name = model[:SHOWN]
        if not name or name == OTHER:
            return name
        rank = self._labels.use(name)
        if rank is not _NAMED and (named or self._named(model)):
            return name if self._labels.take(name, _NAMED) else OTHER
        return OTHER if rank is None else name

    def rank(self, label: str) -> Rank:
        """The rank of a label. There is only one without a name."""
        rank = self._labels.rank(label)
        if rank is None:
            rank = _REWRITTEN if label else _NAMED
        return rank

    def answered(self, model: str, rank: Rank) -> None:
        """A model server has answered a request for this model without an error."""
        name = model[:SHOWN]
        known = self._labels.rank(name)
        if (known is None or known < rank) and name and name != OTHER:
            self._labels.take(name, rank)

    def __repr__(self) -> str:
        return f"<ModelLabels {self._labels!r}>"
