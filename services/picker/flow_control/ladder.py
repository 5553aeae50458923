"""The bands here and at peers, from the highest, and how full each may make the pool.

The policy decides about all bands at once. Its ceilings are kept while bands, peers' tables and saturation stay, unless
the policy may decide otherwise at each call.
"""

from collections.abc import Collection, Sequence
from math import inf, isnan, nan

from msgspec import Struct

from services.picker.flow_control.band import OnPolicyFailure
from services.picker.flow_control.interfaces import UsageLimitPolicy
from services.picker.flow_control.peers import Peers


class Ceilings(Struct, frozen=True):
    """How full each band may make the pool, at one saturation."""

    saturation: float
    """Infinite if the pool's is no number."""
    of: dict[int, float]
    """By priority, from the highest."""
    closed: float
    """The highest band for which the pool is too full, as are all lower ones for its sake; -inf if there is none."""


class Ladder:
    """The bands of one controller and of its peers."""

    def __init__(
        self, here: Collection[int], peers: Peers, usage_limits: UsageLimitPolicy, failed: OnPolicyFailure
    ) -> None:
        """`here` is a view of the priorities that have bands here; the controller says when they have `changed`."""
        self._here, self._peers, self._usage_limits, self._failed = here, peers, usage_limits, failed
        self._pure = bool(vars(type(usage_limits)).get("PURE", False))
        self._version = -1
        """Of the peers, when the bands were looked at."""
        self._priorities: list[int] = []
        self._claimed: list[int] = []
        self._ceilings = Ceilings(nan, {}, inf)

    def changed(self) -> None:
        """The controller's bands are others than before."""
        self._version = -1

    @property
    def priorities(self) -> list[int]:
        """All bands, from the highest."""
        self._look()
        return self._priorities

    @property
    def claimed(self) -> list[int]:
        """Those in which peers have requests."""
        self._look()
        return self._claimed

    def ceilings(self, saturation: float) -> Ceilings:
        """The ceilings of all bands. A policy that isn't pure is asked at each call."""
        if isnan(saturation):
            saturation = inf
        self._look()
        if not self._pure or self._ceilings.saturation != saturation:
            of = dict(zip(self._priorities, self._ask(saturation, self._priorities), strict=True))
            closed = next((priority for priority, ceiling in of.items() if not saturation < ceiling), -inf)
            self._ceilings = Ceilings(saturation, of, closed)
        return self._ceilings

    def _look(self) -> None:
        peers = self._peers
        if self._version != peers.version:
            self._version = peers.version
            self._priorities = peers.bands(self._here)
            self._claimed = [priority for priority in self._priorities if priority in peers.waiting]
            self._ceilings = Ceilings(nan, {}, inf)

    def _ask(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        try:
            ceilings = [float(ceiling) for ceiling in self._usage_limits.ceilings(saturation, priorities)]
            if len(ceilings) != len(priorities) or any(map(isnan, ceilings)):
                raise ValueError(f"the ceilings of {len(priorities)} bands are {ceilings}")
            return ceilings
        except Exception as error:  # noqa: BLE001 - a policy's failure is told, and every band may fill the pool
            self._failed(self._usage_limits, error)
            return [1.0] * len(priorities)

    def __repr__(self) -> str:
        return f"<Ladder {len(self._priorities)} bands, {len(self._claimed)} claimed by peers>"
