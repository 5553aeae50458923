"""Counts numbers beyond their attribute's bounds, and tells of them: as a metric, on `/readyz` and in the log.

Such a number is a server's mistake, or somebody's forgery. It isn't taken where it comes in, in the collector off a
page and in the picker out of a frame, and is recorded here.
"""

from collections.abc import Callable, Iterator

import structlog
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.attributes import ANY, Bounds

log = structlog.get_logger(__name__)

LASTING = 60.0
"""Seconds that `/readyz` mentions the last one."""
LOG_EVERY = 60.0
"""Seconds between two lines in the log about one attribute."""
NAMED = 100
"""Attributes that are told apart: frames are foreign, and may name as many as they like."""
MENTIONED = 5
"""Of these, how many `/readyz` mentions."""
OTHERS = "(others)"
SHOWN = 256
"""Characters of a name that are kept: names in frames are foreign too."""


class _Attribute:
    """What was said of one attribute."""

    __slots__ = ("at", "bounds", "count", "log_at", "said", "unlogged")

    def __init__(self) -> None:
        self.count = 0
        self.at = float("-inf")
        self.said = ""
        self.bounds = ANY
        self.log_at = float("-inf")
        self.unlogged = 0


class OutOfRange(Collector):
    """The numbers that a process didn't take, by attribute. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._attributes: dict[str, _Attribute] = {}

    def record(self, attribute: str, value: float, bounds: Bounds, count: int = 1, **about: str) -> None:
        """The attribute of this wire name was said to be this, which is beyond the bounds, and so many times. `about`
        says where: of which endpoint, by whom. Logged once a minute for each attribute."""
        attribute, about = attribute[:SHOWN], {what: which[:SHOWN] for what, which in about.items()}
        if attribute not in self._attributes and len(self._attributes) >= NAMED:
            attribute = OTHERS
        seen = self._attributes.setdefault(attribute, _Attribute())
        now = self._clock()
        seen.count += count
        seen.unlogged += count
        seen.at = now
        told = f"{value:g}"
        where = ", ".join(f"{what} {which!r}" for what, which in about.items())
        seen.said, seen.bounds = f"{told} ({where})", bounds
        if now >= seen.log_at:
            log.warning(
                "attribute.out_of_range",
                attribute=attribute,
                value=told,
                expected=str(bounds),
                **about,
                since_last_line=seen.unlogged,
            )
            seen.log_at, seen.unlogged = now + LOG_EVERY, 0

    def note(self) -> str | None:
        """What `/readyz` mentions: the attributes of which there were such numbers within the last minute."""
        now = self._clock()
        late = {name: seen for name, seen in self._attributes.items() if now - seen.at < LASTING}
        if not late:
            return None
        told = [
            f"{name} was {seen.said} {now - seen.at:.0f} s ago; {seen.bounds} is expected, {seen.count} numbers weren't"
            for name, seen in list(late.items())[:MENTIONED]
        ]
        more = [f"{len(late) - MENTIONED} more"] if len(late) > MENTIONED else []
        return f"numbers that can't be weren't taken: {'; '.join([*told, *more])}"

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "pointsman_attribute_values_out_of_range",
            "Numbers ignored because they are outside the attribute's range",
            labels=["attribute"],
        )
        for name, seen in self._attributes.items():
            family.add_metric([name], seen.count)
        yield family

    def __repr__(self) -> str:
        return f"<OutOfRange {sum(seen.count for seen in self._attributes.values())} of {len(self._attributes)}>"
