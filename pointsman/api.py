"""What plugins of other packages import. Other modules can change with any version.

`VERSION` names the version of this module: it changes when a name goes, or what a name means. Before 1.0 of the project
it can change with a minor version; CHANGELOG.md says what to write instead.

- A plugin type: `Plugin` with `Role`, `Tier`, `Stability`, `Input` for attributes that it reads, and `Reference` for
  other plugins that it calls, which are then in its `referenced`.
- Roles in the picker: `Filter`, `Scorer`, `Picker`, `ProfileHandler`, `Decider`, `Producer`, `Parser`,
  `SaturationDetector`, `PreAdmissionProcessor`, `Admitter` and `PreRequest`, of which the last two may answer with a
  `Refusal`. Most get a `Cycle`, the decision under way, and `Rows`, the positions of endpoints in its columns.
  `linear`, `least_is_best` and `most_is_best` are formulas for `Cycle.score_by`. A profile handler makes a `Plan` from
  each `ProfileRun`; a `RolePlan` is a further endpoint.
- Roles of flow control: `OrderingPolicy` for `Waiting` requests, `FairnessPolicy` with a `FlowOrder` of each band's
  `Flow`s, `UsageLimitPolicy`, and for eviction of `Running` requests `EvictionFilterPolicy` and `EvictionOrderPolicy`.
- Roles that act on responses: `ResponseHeaderProcessor`, `ResponseBodyProcessor` and `CompletionProcessor`. They get
  an `Exchange`, the request with what is known of its response, such as its `Usage`.
- Roles in the collector: `PollingSource` and `HttpSource`, `Extractor` with its `Binding`. `EndpointExtractor` and
  `NotificationExtractor` also run in other tiers.
- Attributes: `AttributeKey`, `AttributeMap` and the standard keys.
- Parameters are msgspec structs: `NoParameters` for none, and `Duration`, `PositiveDuration` and `Size` for fields.
"""

from services.collector.http.client import Client
from services.collector.interfaces import Binding, Extractor, Finding, MetricsBinding, PollingSource
from services.collector.sources.http import HttpSource
from services.picker.flow_control.flow import Flow
from services.picker.flow_control.interfaces import (
    EvictionFilterPolicy,
    EvictionOrderPolicy,
    FairnessPolicy,
    FlowOrder,
    OrderingPolicy,
    Running,
    UsageLimitPolicy,
)
from services.picker.flow_control.waiting import Waiting
from services.picker.parsers.parser import Parser
from services.picker.request import Content, Headers, Refusal, Request, Unparsable
from services.picker.responses.usage import Usage
from services.picker.scheduling.cycle import (
    IN_FLIGHT_LOAD,
    PREFIX_MATCH,
    TOKENIZED_PROMPT,
    Cycle,
    MediaTokens,
    PrefixMatch,
)
from services.picker.scheduling.formulas import least_is_best, linear, most_is_best
from services.picker.scheduling.interfaces import (
    Admitter,
    CompletionProcessor,
    Decider,
    Filter,
    Picker,
    PreAdmissionProcessor,
    PreRequest,
    Producer,
    ProfileHandler,
    ResponseBodyProcessor,
    ResponseHeaderProcessor,
    SaturationDetector,
    Scorer,
)
from services.picker.scheduling.record import Exchange, Plan, ProfileRun, RolePlan
from services.picker.state.layout import Floats, Layout, Mask, Rows
from shared.attributes import (
    ACTIVE_MODELS,
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    GPU_UTILIZATION,
    KV_CACHE_USAGE,
    MAX_ACTIVE_MODELS,
    REACHABLE,
    RUNNING_REQUESTS_SIZE,
    SERVED_MODELS,
    WAITING_MODELS,
    WAITING_QUEUE_SIZE,
    AttributeKey,
    AttributeMap,
    Bounds,
)
from shared.datalayer.endpoints import EndpointEvent, EndpointExtractor
from shared.datalayer.objects import KubernetesObject, NotificationEvent, NotificationExtractor, ObjectKind
from shared.model import Endpoint
from shared.plugin import Concern, Demand, Input, NoParameters, Plugin, Reference, Role, Stability, Tier
from shared.quantities import Duration, PositiveDuration, Size

VERSION = 1

__all__ = [
    "ACTIVE_MODELS",
    "CACHE_BLOCK_SIZE",
    "CACHE_NUM_BLOCKS",
    "GPU_UTILIZATION",
    "IN_FLIGHT_LOAD",
    "KV_CACHE_USAGE",
    "MAX_ACTIVE_MODELS",
    "PREFIX_MATCH",
    "REACHABLE",
    "RUNNING_REQUESTS_SIZE",
    "SERVED_MODELS",
    "TOKENIZED_PROMPT",
    "VERSION",
    "WAITING_MODELS",
    "WAITING_QUEUE_SIZE",
    "Admitter",
    "AttributeKey",
    "AttributeMap",
    "Binding",
    "Bounds",
    "Client",
    "CompletionProcessor",
    "Concern",
    "Content",
    "Cycle",
    "Decider",
    "Demand",
    "Duration",
    "Endpoint",
    "EndpointEvent",
    "EndpointExtractor",
    "EvictionFilterPolicy",
    "EvictionOrderPolicy",
    "Exchange",
    "Extractor",
    "FairnessPolicy",
    "Filter",
    "Finding",
    "Floats",
    "Flow",
    "FlowOrder",
    "Headers",
    "HttpSource",
    "Input",
    "KubernetesObject",
    "Layout",
    "Mask",
    "MediaTokens",
    "MetricsBinding",
    "NoParameters",
    "NotificationEvent",
    "NotificationExtractor",
    "ObjectKind",
    "OrderingPolicy",
    "Parser",
    "Picker",
    "Plan",
    "Plugin",
    "PollingSource",
    "PositiveDuration",
    "PreAdmissionProcessor",
    "PreRequest",
    "PrefixMatch",
    "Producer",
    "ProfileHandler",
    "ProfileRun",
    "Reference",
    "Refusal",
    "Request",
    "ResponseBodyProcessor",
    "ResponseHeaderProcessor",
    "Role",
    "RolePlan",
    "Rows",
    "Running",
    "SaturationDetector",
    "Scorer",
    "Size",
    "Stability",
    "Tier",
    "Unparsable",
    "Usage",
    "UsageLimitPolicy",
    "Waiting",
    "least_is_best",
    "linear",
    "most_is_best",
]
