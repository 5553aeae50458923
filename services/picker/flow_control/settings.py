"""The `flowControl` section with its names resolved and its defaults filled in: what a controller is made with."""

from collections.abc import Callable, Mapping
from math import inf, isfinite

from msgspec import Struct

from services.picker.flow_control.interfaces import FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from shared.config.schema import FlowControlSection, PriorityBand
from shared.plugin import Plugin

MOST_REQUESTS = 5000
"""That wait in a band, unless the configuration says otherwise."""
MOST_BYTES = 10**9
"""Of the requests that wait in a band."""
GRACE = 2.0
"""Seconds beyond the longer TTL after which a wait ends even if the pool was empty again and again."""
TTL = 60.0
"""Seconds that a request waits."""
FAIRNESS, ORDERING, USAGE_LIMITS = (
    "global-strict-fairness-policy",
    "fcfs-ordering-policy",
    "static-usage-limit-policy",
)
"""Types of the policies that are used where none is named."""
LEAST_WEIGHT, GREATEST_WEIGHT = 1e-3, 1e3
"""Of a flow."""

FindPolicy = Callable[[str], Plugin]
"""The plugin of a name, or of one of the default types. Raises LookupError where there is none."""


class BandSettings(Struct, frozen=True):
    """What holds for a band."""

    ordering: OrderingPolicy
    fairness: FairnessPolicy
    max_requests: int = MOST_REQUESTS
    max_bytes: int = MOST_BYTES


class FlowControlSettings(Struct, frozen=True, kw_only=True):
    """What holds for all of it."""

    bands: Mapping[int, BandSettings]
    """By priority. These, and band 0, are always there."""
    template: BandSettings
    """Of other bands from 0 on."""
    negative_template: BandSettings
    """Of other bands below 0."""
    usage_limits: UsageLimitPolicy
    max_requests: int = 0
    """That wait in all bands; 0 is without limit."""
    max_bytes: int = 0
    ttl: float = TTL
    """Seconds that a request waits while there are endpoints; 0 is for ever."""
    no_endpoint_ttl: float = TTL
    """Seconds that a request waits while there are none."""
    weights: Mapping[str, float] = {}
    """Shares of flows, by fairness id; 1 for others."""
    max_flows: int = 10_000
    """Flows that are told apart. Further ones share one."""
    max_rows: int = 1000
    """Of the table that tells peers what waits here."""

    def __post_init__(self) -> None:
        for flow, weight in self.weights.items():
            if not (isfinite(weight) and LEAST_WEIGHT <= weight <= GREATEST_WEIGHT):
                raise ValueError(
                    f"the weight of flow {flow[:80]!r} is {weight:g}; it must be from {LEAST_WEIGHT:g} to "
                    f"{GREATEST_WEIGHT:g}"
                )

    @property
    def longest_wait(self) -> float:
        """Seconds after which every wait is over, whatever the pool does; infinite if it may last."""
        return max(self.ttl, self.no_endpoint_ttl) + GRACE if self.ttl and self.no_endpoint_ttl else inf

    def band(self, priority: int) -> BandSettings:
        """What holds for the band of a priority."""
        found = self.bands.get(priority)
        if found is None:
            found = self.template if priority >= 0 else self.negative_template
        return found


def resolve(
    section: FlowControlSection, find: FindPolicy, weights: Mapping[str, float] | None = None
) -> FlowControlSettings:
    """The settings that a section stands for. A limit of 0 is the default for a band, and none for all of them; a TTL
    of 0 is none. Raises ValueError for a document that can't be used, with the path of what is wrong."""

    def policy(name: str, default: str, kind: type[Plugin], path: str) -> Plugin:
        try:
            found = find(name or default)
        except LookupError as error:
            raise ValueError(f"{path}: there is no plugin {name or default!r}") from error
        if not isinstance(found, kind):
            raise ValueError(f"{path}: plugin {found.name!r} is no {kind.__name__}")
        return found

    def band(entry: PriorityBand | None, path: str) -> BandSettings:
        entry = entry or PriorityBand()
        ordering = policy(entry.ordering_policy_ref, ORDERING, OrderingPolicy, f"{path}.orderingPolicyRef")
        fairness = policy(entry.fairness_policy_ref, FAIRNESS, FairnessPolicy, f"{path}.fairnessPolicyRef")
        assert isinstance(ordering, OrderingPolicy)
        assert isinstance(fairness, FairnessPolicy)
        return BandSettings(ordering, fairness, entry.max_requests or MOST_REQUESTS, entry.max_bytes or MOST_BYTES)

    bands: dict[int, BandSettings] = {}
    for at, entry in enumerate(section.priority_bands):
        path = f"flowControl.priorityBands[{at}]"
        if entry.priority is None:
            raise ValueError(f"{path}.priority: a number is needed")
        if not -(2**31) <= entry.priority < 2**31:
            raise ValueError(f"{path}.priority: {entry.priority} has more than 32 bits")
        if entry.priority in bands:
            raise ValueError(f"{path}.priority: there is another band of priority {entry.priority}")
        bands[entry.priority] = band(entry, path)
    template = band(section.default_priority_band, "flowControl.defaultPriorityBand")
    negative = section.default_negative_priority_band
    usage_limits = policy(
        section.usage_limit_policy_plugin_ref,
        USAGE_LIMITS,
        UsageLimitPolicy,
        "flowControl.usageLimitPolicyPluginRef",
    )
    assert isinstance(usage_limits, UsageLimitPolicy)
    ttl = TTL if section.default_request_ttl is None else section.default_request_ttl
    empty = section.no_endpoint_request_ttl
    return FlowControlSettings(
        bands=bands,
        template=template,
        negative_template=template if negative is None else band(negative, "flowControl.defaultNegativePriorityBand"),
        usage_limits=usage_limits,
        max_requests=section.max_requests,
        max_bytes=section.max_bytes,
        ttl=ttl,
        no_endpoint_ttl=ttl if empty is None else empty,
        weights=weights or {},
    )
