"""Whether a process should get work, and if not, why: named conditions, each met or with its reason."""

from collections.abc import Callable


class Readiness:
    """Conditions that must all hold. A condition is a function that returns None, or the reason why it doesn't hold.

    >>> readiness = Readiness()
    >>> readiness.require("view", lambda: "no endpoints yet")
    >>> readiness.reasons()
    {'view': 'no endpoints yet'}
    """

    def __init__(self) -> None:
        self._conditions: dict[str, Callable[[], str | None]] = {}
        self.draining = False

    def require(self, name: str, condition: Callable[[], str | None]) -> None:
        self._conditions[name] = condition

    @property
    def ready(self) -> bool:
        return not self.reasons()

    def reasons(self) -> dict[str, str]:
        """What stands in the way, by the condition's name; empty when ready."""
        found = {name: reason for name, condition in self._conditions.items() if (reason := condition())}
        if self.draining:
            found["draining"] = "the process is stopping"
        return found

    def __repr__(self) -> str:
        return f"<Readiness {self.reasons() or 'ready'}>"
