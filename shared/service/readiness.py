"""Whether a process should get work, and if not, why: named conditions, each met or with its reason."""

from collections.abc import Callable
from enum import Enum


class Phase(Enum):
    """Where a process is in its life; the value is the reason not to send it work."""

    STARTING = "the process is starting"
    SERVING = ""
    STOPPING = "the process is stopping"


class Readiness:
    """Conditions that must all hold. A condition is a function that returns None, or the reason why it doesn't hold.

    >>> readiness = Readiness()
    >>> readiness.require("view", lambda: "no endpoints yet")
    >>> readiness.reasons()
    {'view': 'no endpoints yet'}
    """

    def __init__(self, phase: Phase = Phase.SERVING) -> None:
        self._conditions: dict[str, Callable[[], str | None]] = {}
        self._notes: dict[str, Callable[[], str | None]] = {}
        self.phase = phase

    def require(self, name: str, condition: Callable[[], str | None]) -> None:
        self._conditions[name] = condition

    def mention(self, name: str, condition: Callable[[], str | None]) -> None:
        """A note for `/readyz` that doesn't affect readiness."""
        self._notes[name] = condition

    def notes(self) -> dict[str, str]:
        """Problems that don't affect readiness, by name."""
        return {name: reason for name, condition in self._notes.items() if (reason := condition())}

    @property
    def ready(self) -> bool:
        return not self.reasons()

    def reasons(self) -> dict[str, str]:
        """What stands in the way, by the condition's name; empty when ready."""
        found = {name: reason for name, condition in self._conditions.items() if (reason := condition())}
        if self.phase.value:
            found["process"] = self.phase.value
        return found

    def __repr__(self) -> str:
        return f"<Readiness {self.reasons() or 'ready'}>"
