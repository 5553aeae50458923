"""Counts numbers outside their attribute's bounds: as a metric, on `/readyz` and in the log.

Such a number is a server's mistake or forged. The collector refuses it on a page, the picker in a frame, and both
record it here.
"""

from collections.abc import Callable

import structlog

from shared.attributes import Bounds
from shared.recent_events import RecentEvents

log = structlog.get_logger(__name__)

NAMED = 100
"""Attributes that are counted separately: frames are foreign, and may name as many as they like."""
MENTIONED = 5
"""Of these, how many `/readyz` mentions."""
OTHERS = "(others)"
SHOWN = 256
"""Characters of a name that are kept: names in frames are foreign too."""


class OutOfRange(RecentEvents):
    """The numbers that a process didn't take, by attribute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        text = "Numbers ignored because they are outside the attribute's range"
        super().__init__(clock, "pointsman_attribute_values_out_of_range", text, "attribute")
        self._bounds: dict[str, Bounds] = {}

    def record(self, attribute: str, value: float, bounds: Bounds, count: int = 1, **about: str) -> None:
        """Count values of this attribute (a wire name) outside the bounds; `about` says of which endpoint, by whom.
        Logged once a minute per attribute."""
        attribute, about = attribute[:SHOWN], {what: which[:SHOWN] for what, which in about.items()}
        if attribute not in self._bounds and len(self._bounds) >= NAMED:
            attribute = OTHERS
        self._bounds[attribute] = bounds
        number, where = f"{value:g}", ", ".join(f"{what} {which!r}" for what, which in about.items())
        if unlogged := self.count(attribute, f"{number} ({where})", count):
            log.warning(
                "attribute.out_of_range",
                attribute=attribute,
                value=number,
                expected=str(bounds),
                **about,
                since_last_line=unlogged,
            )

    def note(self) -> str | None:
        """What `/readyz` mentions: the attributes of which there were such numbers within the last minute."""
        late = self.recent()
        if not late:
            return None
        parts = [
            f"{name} was {found.text} {age:.0f} s ago; {self._bounds[name]} is expected, {found.count} numbers weren't"
            for name, found, age in late[:MENTIONED]
        ]
        more = [f"{len(late) - MENTIONED} more"] if len(late) > MENTIONED else []
        return f"numbers that can't be weren't taken: {'; '.join([*parts, *more])}"
