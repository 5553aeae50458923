"""The last guard before the bus: facts that can't be published, each with the reason. They cost themselves.

What is in a file was looked at when it was read. What comes here all the same is too large for this server, or from a
cluster, where nobody reads it in place.
"""

from collections.abc import Callable, Mapping

import structlog

from shared.bus.publishable import fault
from shared.model import Fact

log = structlog.get_logger(__name__)


class Unpublishable:
    """Sorts facts out. `most` gives the bytes that NATS takes of one."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._limit = most()
        self._sound: dict[str, Fact] = {}
        """What was found right the last time, by key: it needs no second look."""
        self.reasons: dict[str, str] = {}
        """Why what can't be published can't be, by key."""

    @property
    def outdated(self) -> bool:
        """Whether NATS takes more, or less, than at the last time."""
        return self._most() != self._limit

    def without(self, facts: Mapping[str, Fact]) -> dict[str, Fact]:
        """The facts that can be published; of the others it is noted why not."""
        before = {} if self.outdated else self._sound
        self._limit = self._most()
        found = {
            key: why for key, fact in facts.items() if before.get(key) is not fact and (why := fault(fact, self._limit))
        }
        for key in sorted(found.keys() - self.reasons.keys()):
            log.error("fact.unpublishable", key=key, reason=found[key])
        self.reasons = found
        self._sound = {key: fact for key, fact in facts.items() if key not in found}
        return self._sound

    def __repr__(self) -> str:
        return f"<Unpublishable {len(self.reasons)} facts beside {len(self._sound)}>"
