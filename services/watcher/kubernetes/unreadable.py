"""Objects of a cluster that nothing could be made of: one that nobody foresaw isn't the end of all others.

The API server has checked what it sends, and what its definitions allow is understood here. If something of it isn't,
then that is told, and the object counts as one that says nothing.
"""

from collections.abc import Mapping

import structlog

from services.watcher.kubernetes.resource import JsonObject, ObjectId, identity

log = structlog.get_logger(__name__)

SHOWN = 10
"""Objects that `/debug/state` shows at most."""


class Unreadable:
    """Those of one selection, each until there is another form of it."""

    def __init__(self, selection: str) -> None:
        self._selection = selection
        self._found: dict[ObjectId, tuple[JsonObject, str]] = {}

    def note(self, item: JsonObject, error: Exception) -> None:
        """It can't be read in this form. To be called where the error is handled: the log has where it arose."""
        namespace, name = id = identity(item)
        reason = f"{type(error).__name__}: {error}"
        self._found[id] = item, reason
        log.exception(
            "kubernetes.object.unreadable", selection=self._selection, namespace=namespace, name=name, reason=reason
        )

    def keep(self, objects: Mapping[ObjectId, JsonObject]) -> None:
        """These are all objects: what is there in another form is forgotten."""
        self._found = {id: found for id, found in self._found.items() if objects.get(id) is found[0]}

    def join(self, other: "Unreadable") -> None:
        """Know what another selection of the same objects knows."""
        self._found |= other._found

    @property
    def problem(self) -> str:
        """In one line; empty when there is none."""
        if not self._found:
            return ""
        (namespace, name), (_, reason) = next(iter(self._found.items()))
        more = f", and {len(self._found) - 1} more" if len(self._found) > 1 else ""
        return f"{self._selection}: {'/'.join(filter(None, (namespace, name)))} can't be read: {reason}{more}"

    def state(self) -> dict[str, str]:
        """For `/debug/state`: why, by object."""
        shown = list(self._found.items())[:SHOWN]
        return {"/".join(filter(None, id)): reason for id, (_, reason) in shown}

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"<Unreadable {self._selection}: {len(self._found)}>"
