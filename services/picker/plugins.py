"""The plugin types that run in a picker. A new one is a file in its folder and a line here."""

from services.picker.flow_control.concurrency import ConcurrencyDetector
from services.picker.flow_control.eviction.priority_then_time import PriorityThenTimeEvictionOrderPolicy
from services.picker.flow_control.eviction.sheddable import SheddableEvictionFilter
from services.picker.flow_control.fairness.global_strict import GlobalStrictFairnessPolicy
from services.picker.flow_control.fairness.program_aware import ProgramAwareFairness
from services.picker.flow_control.fairness.round_robin import RoundRobinFairnessPolicy
from services.picker.flow_control.ordering.edf import EdfOrderingPolicy
from services.picker.flow_control.ordering.fcfs import FcfsOrderingPolicy
from services.picker.flow_control.ordering.slo_deadline import SloDeadlineOrderingPolicy
from services.picker.flow_control.usage_limits.priority_holdback import PriorityHoldbackPolicy
from services.picker.flow_control.usage_limits.soft_reflective_ceiling import SoftReflectiveCeilingPolicy
from services.picker.flow_control.usage_limits.static import StaticUsageLimitPolicy
from services.picker.flow_control.utilization import UtilizationDetector
from services.picker.parsers.anthropic import AnthropicParser
from services.picker.parsers.openai import OpenAIParser
from services.picker.parsers.passthrough import PassthroughParser
from services.picker.parsers.sglang_http import SglangHttpParser
from services.picker.parsers.vertexai import VertexAiParser
from services.picker.parsers.vllm_grpc import VllmGrpcParser
from services.picker.parsers.vllm_http import VllmHttpParser
from services.picker.scheduling.admitters.probabilistic import ProbabilisticAdmitter
from services.picker.scheduling.conformance import DestinationEndpointServedVerifier, HeaderBasedTestingFilter
from services.picker.scheduling.deciders.always import AlwaysDisaggMultimodalDecider, AlwaysDisaggPdDecider
from services.picker.scheduling.deciders.prefix_based_pd import PrefixBasedPdDecider
from services.picker.scheduling.filters.by_label import ByLabelFilter
from services.picker.scheduling.filters.decision_tree import DecisionTreeFilter
from services.picker.scheduling.filters.endpoint_attribute import EndpointAttributeFilter
from services.picker.scheduling.filters.label_selector import LabelSelectorFilter
from services.picker.scheduling.filters.least import LeastKvCacheFilter, LeastQueueFilter
from services.picker.scheduling.filters.lora_affinity import LoraAffinityFilter
from services.picker.scheduling.filters.low_queue import LowQueueFilter
from services.picker.scheduling.filters.prefix_cache_affinity import PrefixCacheAffinityFilter
from services.picker.scheduling.filters.priority import PriorityFilter
from services.picker.scheduling.filters.role import DecodeFilter, EncodeFilter, PrefillFilter
from services.picker.scheduling.filters.served_model import ServedModelFilter
from services.picker.scheduling.filters.utilization import UtilizationFilter
from services.picker.scheduling.handlers.disagg import DisaggProfileHandler
from services.picker.scheduling.handlers.header_profile import HeaderProfileHandler
from services.picker.scheduling.handlers.pd import PdProfileHandler
from services.picker.scheduling.handlers.single_profile import DataParallelProfileHandler, SingleProfileHandler
from services.picker.scheduling.pickers.max_score import MaxScorePicker
from services.picker.scheduling.pickers.random import RandomPicker, WeightedRandomPicker
from services.picker.scheduling.pre_request.stage_headers import DisaggHeadersHandler, PrefillHeaderHandler
from services.picker.scheduling.producers.agent_identity import AgentIdentity
from services.picker.scheduling.producers.approx_prefix import ApproxPrefixProducer
from services.picker.scheduling.producers.burst_prefix import BurstPrefixProducer
from services.picker.scheduling.producers.inflight_load import InFlightLoadProducer
from services.picker.scheduling.producers.session_id import SessionIdProducer
from services.picker.scheduling.producers.token import TokenProducer
from services.picker.scheduling.reporters.request_attribute import RequestAttributeReporter
from services.picker.scheduling.scorers.active_request import ActiveRequestScorer
from services.picker.scheduling.scorers.cold_prefix import ColdPrefixScorer
from services.picker.scheduling.scorers.context_length_aware import ContextLengthAware
from services.picker.scheduling.scorers.endpoint_attribute import EndpointAttributeScorer
from services.picker.scheduling.scorers.header_label_affinity import HeaderLabelAffinityScorer
from services.picker.scheduling.scorers.lora_affinity import LoraAffinityScorer
from services.picker.scheduling.scorers.metric import MetricScorer
from services.picker.scheduling.scorers.no_hit_lru import NoHitLruScorer
from services.picker.scheduling.scorers.prefix_cache import PrefixCacheScorer
from services.picker.scheduling.scorers.scraped_load import (
    KvCacheUtilizationScorer,
    LoadAwareScorer,
    QueueScorer,
    RunningRequestsScorer,
)
from services.picker.scheduling.scorers.token_load import TokenLoadScorer
from services.picker.scheduling.session_affinity import SessionAffinityFilter, SessionAffinityScorer
from services.picker.scheduling.topology_affinity import TopologyAffinityFilter, TopologyAffinityScorer
from services.picker.state.topology import TopologyExtractor
from shared.datalayer.endpoints import EndpointNotificationSource
from shared.plugin import Plugin

PLUGINS: tuple[type[Plugin], ...] = (
    OpenAIParser,
    AnthropicParser,
    VllmHttpParser,
    VllmGrpcParser,
    SglangHttpParser,
    VertexAiParser,
    PassthroughParser,
    LabelSelectorFilter,
    ServedModelFilter,
    EndpointAttributeFilter,
    UtilizationFilter,
    PriorityFilter,
    LowQueueFilter,
    LeastQueueFilter,
    LeastKvCacheFilter,
    LoraAffinityFilter,
    DecisionTreeFilter,
    PrefixCacheAffinityFilter,
    ByLabelFilter,
    DecodeFilter,
    PrefillFilter,
    EncodeFilter,
    SessionAffinityFilter,
    TopologyAffinityFilter,
    QueueScorer,
    KvCacheUtilizationScorer,
    RunningRequestsScorer,
    LoraAffinityScorer,
    PrefixCacheScorer,
    ColdPrefixScorer,
    TokenLoadScorer,
    ActiveRequestScorer,
    MetricScorer,
    EndpointAttributeScorer,
    LoadAwareScorer,
    NoHitLruScorer,
    ContextLengthAware,
    HeaderLabelAffinityScorer,
    SessionAffinityScorer,
    TopologyAffinityScorer,
    MaxScorePicker,
    RandomPicker,
    WeightedRandomPicker,
    SingleProfileHandler,
    DisaggProfileHandler,
    PdProfileHandler,
    DataParallelProfileHandler,
    HeaderProfileHandler,
    PrefixBasedPdDecider,
    AlwaysDisaggPdDecider,
    AlwaysDisaggMultimodalDecider,
    DisaggHeadersHandler,
    PrefillHeaderHandler,
    HeaderBasedTestingFilter,
    DestinationEndpointServedVerifier,
    ApproxPrefixProducer,
    InFlightLoadProducer,
    BurstPrefixProducer,
    SessionIdProducer,
    AgentIdentity,
    TokenProducer,
    ProbabilisticAdmitter,
    RequestAttributeReporter,
    UtilizationDetector,
    ConcurrencyDetector,
    FcfsOrderingPolicy,
    EdfOrderingPolicy,
    SloDeadlineOrderingPolicy,
    GlobalStrictFairnessPolicy,
    RoundRobinFairnessPolicy,
    ProgramAwareFairness,
    StaticUsageLimitPolicy,
    PriorityHoldbackPolicy,
    SoftReflectiveCeilingPolicy,
    SheddableEvictionFilter,
    PriorityThenTimeEvictionOrderPolicy,
    EndpointNotificationSource,
    TopologyExtractor,
)
