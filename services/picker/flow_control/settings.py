"""The `flowControl` section with its names resolved and its defaults filled in: what a controller is made with."""

from collections.abc import Mapping
from math import inf
from typing import TypeVar

from msgspec import Struct

from services.picker.flow_control.interfaces import (
    EvictionFilterPolicy,
    EvictionOrderPolicy,
    FairnessPolicy,
    OrderingPolicy,
    UsageLimitPolicy,
)
from services.picker.flow_control.waiting import flow_id
from services.picker.scheduling.interfaces import PreAdmissionProcessor
from shared.config.defaults import FAIRNESS, ORDERING, USAGE_LIMITS
from shared.config.problems import Invalid, Problem, show
from shared.config.schema import FlowControlSection, PriorityBand
from shared.plugin import Plugin, Role

MAX_REQUESTS = 5000
"""That wait in a band, unless the configuration says otherwise."""
MAX_BYTES = 10**9
"""Of the requests that wait in a band."""
GRACE = 2.0
"""Seconds beyond the longer TTL after which a wait ends even if the pool was empty again and again."""
TTL = 60.0
"""Seconds that a request waits."""

Policy = TypeVar("Policy", bound=Plugin)


class BandSettings(Struct, frozen=True):
    """The settings of a band."""

    ordering: OrderingPolicy
    fairness: FairnessPolicy
    max_requests: int = MAX_REQUESTS
    max_bytes: int = MAX_BYTES


class Eviction(Struct, frozen=True):
    """Which running requests make room for waiting ones of a higher band."""

    filter: EvictionFilterPolicy
    order: EvictionOrderPolicy


class FlowControlSettings(Struct, frozen=True, kw_only=True):
    """The settings of flow control as a whole."""

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
    """Shares of flows, by the flow's id; 1 for others."""
    processors: tuple[PreAdmissionProcessor, ...] = ()
    """Who knows the flow of requests that name none, in the document's order."""
    eviction: Eviction | None = None
    """None: running requests stay."""
    max_flows: int = 10_000
    """Flows that are told apart. Further ones share one."""
    max_rows: int = 1000
    """Of the table that tells peers what waits here."""

    @property
    def longest_wait(self) -> float:
        """Seconds after which every wait is over, whatever the pool does; infinite if it may last."""
        return max(self.ttl, self.no_endpoint_ttl) + GRACE if self.ttl and self.no_endpoint_ttl else inf

    def band(self, priority: int) -> BandSettings:
        """The settings of the band of a priority."""
        found = self.bands.get(priority)
        if found is None:
            found = self.template if priority >= 0 else self.negative_template
        return found


def resolve(section: FlowControlSection, plugins: Mapping[str, Plugin]) -> FlowControlSettings:
    """The settings that the section of a loaded configuration stands for, with plugins by name. A limit of 0 is the
    default for a band, and none for all of them; a TTL of 0 is none. Raises `Invalid` when a plugin lacks the class of
    its role."""

    def policy(name: str, kind: type[Policy], path: str) -> Policy:
        found = plugins.get(name)
        if not isinstance(found, kind):
            raise Invalid([Problem(f"flowControl.{path}", f"{show(name)} implements no {kind.__name__}")])
        return found

    def band(entry: PriorityBand | None, path: str) -> BandSettings:
        entry = entry or PriorityBand()
        return BandSettings(
            policy(entry.ordering_policy_ref or ORDERING, OrderingPolicy, f"{path}.orderingPolicyRef"),
            policy(entry.fairness_policy_ref or FAIRNESS, FairnessPolicy, f"{path}.fairnessPolicyRef"),
            entry.max_requests or MAX_REQUESTS,
            entry.max_bytes or MAX_BYTES,
        )

    def evicting(kind: type[Policy], role: Role) -> Policy:
        names = (name for name, plugin in plugins.items() if role in plugin.ROLES)
        return policy(next(names, role.value), kind, "enableEviction")

    template = band(section.default_priority_band, "defaultPriorityBand")
    negative = section.default_negative_priority_band
    ttl = TTL if section.default_request_ttl is None else section.default_request_ttl
    empty = section.no_endpoint_request_ttl
    return FlowControlSettings(
        bands={
            entry.priority or 0: band(entry, f"priorityBands[{at}]") for at, entry in enumerate(section.priority_bands)
        },
        template=template,
        negative_template=template if negative is None else band(negative, "defaultNegativePriorityBand"),
        usage_limits=policy(
            section.usage_limit_policy_plugin_ref or USAGE_LIMITS, UsageLimitPolicy, "usageLimitPolicyPluginRef"
        ),
        max_requests=section.max_requests,
        max_bytes=section.max_bytes,
        ttl=ttl,
        no_endpoint_ttl=ttl if empty is None else empty,
        processors=tuple(plugin for plugin in plugins.values() if isinstance(plugin, PreAdmissionProcessor)),
        weights={flow_id(flow): weight for flow, weight in section.flow_weights.items()},
        eviction=Eviction(
            evicting(EvictionFilterPolicy, Role.EVICTION_FILTER), evicting(EvictionOrderPolicy, Role.EVICTION_ORDER)
        )
        if section.enable_eviction
        else None,
    )
