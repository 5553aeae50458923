"""The EndpointPickerConfig document as written, before names are resolved and defaults injected.

Deprecated fields stand beside their newer forms; `shared.config.loader` moves them there with a warning.
"""

import math
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from shared.quantities import Duration, PositiveDuration, Size

KIND = "EndpointPickerConfig"
API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")


class Bounds(Struct, frozen=True):
    """How much a document may hold."""

    entries: int = 256
    """Of any list, be it `plugins`, profiles, a profile's plugins or a source's extractors; lists among a plugin's
    parameters aside."""
    values: int = 20_000
    """Keys included; each alias counts for what it names."""


BOUNDS = Bounds()

EXPRESSION = {"format": "expression"}
"""Marks a plugin's parameter whose text is a program: it counts towards `MAX_EXPRESSIONS`."""
MAX_EXPRESSION = 1024
"""Characters of one expression. A character takes up to 6 µs to compile, without pause, and 0.2 µs at each use."""
MAX_EXPRESSIONS = 16_384
"""Characters of all expressions of a document together; each alias counts for what it names."""
EACH_EXPRESSION = 100
"""Characters that each expression counts for besides its own: what its use takes, however short it is."""

StalePolicy = Literal["saturated", "ignore", "lastKnown"]
"""What a scorer makes of stale or never seen metrics: the worst score, the mean of the others, or as if new."""


class PluginEntry(Struct, frozen=True, rename="camel"):
    """`plugins[]`: an instance of a plugin type; its name is its type's unless given."""

    type: str = ""
    name: str = ""
    parameters: dict[str, Any] | None = None


class ProfileRef(Struct, frozen=True, rename="camel"):
    """`schedulingProfiles[].plugins[]`: a plugin's name, and its weight where it is a scorer."""

    plugin_ref: str = ""
    weight: float | None = None


class ProfileEntry(Struct, frozen=True, rename="camel"):
    """`schedulingProfiles[]`."""

    name: str = ""
    plugins: tuple[ProfileRef, ...] = ()


class Ref(Struct, frozen=True, rename="camel"):
    """A section that is nothing but another plugin's name."""

    plugin_ref: str = ""


class SourceEntry(Struct, frozen=True, rename="camel"):
    """`dataLayer.sources[]`: a data source, and the extractors that read what it brings."""

    plugin_ref: str = ""
    extractors: tuple[Ref, ...] = ()


class StaleMetrics(Struct, frozen=True, rename="camel"):
    """`dataLayer.staleMetrics`: from what age on an attribute is stale, and what scorers do then."""

    after: PositiveDuration = 2.0
    policy: StalePolicy = "saturated"

    @property
    def limit(self) -> float:
        """Seconds from which on an attribute is stale; infinite under `lastKnown`, where none ever is."""
        return math.inf if self.policy == "lastKnown" else self.after


class DataLayerSection(Struct, frozen=True, rename="camel"):
    """`dataLayer`, or `data` as it was first called."""

    inject_defaults: bool = True
    sources: tuple[SourceEntry, ...] = ()
    discovery: Ref | None = None
    peer_discovery: Ref | None = None
    cross_replica_syncer_plugin_ref: str = ""
    cross_replica_sync_interval: PositiveDuration | None = None
    stale_metrics: StaleMetrics = StaleMetrics()


def _camel_with_ttl(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join("TTL" if word == "ttl" else word.capitalize() for word in rest)


Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
"""32 bits, as an InferenceObjective's."""
Weight = Annotated[float, Meta(ge=1e-3, le=1e3)]
"""A flow's share, in proportion to those of others."""


class PriorityBand(Struct, frozen=True, rename="camel"):
    """`flowControl.priorityBands[]`, and without `priority` the templates beside it."""

    priority: Priority | None = None
    max_bytes: Size | None = None
    max_requests: Size | None = None
    fairness_policy_ref: str = ""
    ordering_policy_ref: str = ""


class FlowControlSection(Struct, frozen=True, rename=_camel_with_ttl):
    """`flowControl`."""

    max_bytes: Size = 0
    max_requests: Size = 0
    default_request_ttl: Duration | None = None
    no_endpoint_request_ttl: Duration | None = None
    default_priority_band: PriorityBand | None = None
    default_negative_priority_band: PriorityBand | None = None
    priority_bands: tuple[PriorityBand, ...] = ()
    usage_limit_policy_plugin_ref: str = ""
    saturation_detector: Ref | None = None
    enable_eviction: bool = False
    flow_weights: dict[str, Weight] = {}
    """By fairness id; 1 for others."""


class RequestHandlerSection(Struct, frozen=True, rename="camel"):
    """`requestHandler`."""

    parsers: tuple[Ref, ...] = ()


class Document(Struct, frozen=True, rename="camel"):
    """A whole EndpointPickerConfig. `UNSET` is a section that isn't there, unlike an empty one."""

    api_version: str = ""
    kind: str = ""
    feature_gates: tuple[str, ...] = ()
    plugins: tuple[PluginEntry, ...] = ()
    scheduling_profiles: tuple[ProfileEntry, ...] = ()
    saturation_detector: dict[str, Any] | UnsetType = UNSET
    data_layer: DataLayerSection | UnsetType = UNSET
    data: DataLayerSection | UnsetType = UNSET
    flow_control: FlowControlSection | UnsetType = UNSET
    parser: Ref | UnsetType = UNSET
    request_handler: RequestHandlerSection | UnsetType = UNSET
