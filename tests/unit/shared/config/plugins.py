"""Plugin types for tests of the loader: one of each role, with the default types' names where the loader adds them."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, AttributeKey
from shared.plugin import Input, Plugin, Registry, Role, Stability, Tier
from shared.quantities import Duration

MATCH = AttributeKey("PrefixMatch", "index", float)
TOKENS = AttributeKey("Tokens", "tokenizer", float)
CHICKEN = AttributeKey("Chicken", "chicken", float)
EGG = AttributeKey("Egg", "egg", float)


class Threshold(Struct, frozen=True, rename="camel"):
    """Parameters with a range, a duration and a nested list."""

    queue_depth_threshold: Annotated[int, Meta(gt=0)] = 5
    share: Annotated[float, Meta(ge=0, le=1)] = 0.8
    interval: Duration = 1.0
    names: tuple[str, ...] = ()
    mode: str = ""

    def __post_init__(self) -> None:
        if self.mode == "auto" and self.names:
            raise ValueError("names: not with mode auto")


def plugin(kind: str, *roles: Role, **body: Any) -> type[Plugin]:
    """A plugin type that has what is given, and does nothing."""
    return type("Stub", (Plugin,), {"TYPE": kind, "ROLES": frozenset(roles), "__doc__": kind, **body})


class PrefixScorer(Plugin):
    """Forwards its index's parameters, as prefix-cache-scorer does."""

    class Parameters(Struct, frozen=True, rename="camel"):
        block_size: int | None = None
        index_name: str = ""

    TYPE = "prefix-scorer"
    ROLES = frozenset({Role.SCORER})

    @classmethod
    def deprecations(cls, parameters: Any) -> list[str]:
        return ["blockSize is deprecated here"] if parameters.block_size is not None else []

    @classmethod
    def consumes(cls, parameters: Any) -> tuple[Input, ...]:
        forwarded = {"blockSize": parameters.block_size} if parameters.block_size is not None else {}
        return (Input(MATCH, parameter="indexName", producer=parameters.index_name, producer_parameters=forwarded),)


class Index(Plugin):
    class Parameters(Struct, frozen=True, rename="camel"):
        block_size: Annotated[int, Meta(gt=0)] = 64

    TYPE = "index"
    ROLES = frozenset({Role.DATA_PRODUCER})
    CONSUMES = (TOKENS,)
    PRODUCES = (MATCH,)


class MetricsSource(Plugin):
    class Parameters(Struct, frozen=True, rename="camel"):
        path: str = "/metrics"

    TYPE = "metrics-data-source"
    ROLES = frozenset({Role.DATA_SOURCE})
    TIER = Tier.COLLECTOR
    OUTPUT: ClassVar[str] = "pages"

    def __init__(self, name: str, parameters: Any = None) -> None:
        super().__init__(name, parameters)
        if not self.parameters.path.startswith("/"):
            raise ValueError(f"path: {self.parameters.path!r} doesn't begin with /")


class Label(Struct, frozen=True, rename="camel"):
    """A required parameter."""

    label_key: str


NUMBERS = (WAITING_QUEUE_SIZE, KV_CACHE_USAGE)
QueueScorer = plugin("queue-scorer", Role.SCORER, CONSUMES=(WAITING_QUEUE_SIZE,), ALIASES=("least-queue-scorer",))
MaxScorePicker = plugin("max-score-picker", Role.PICKER)
SingleProfileHandler = plugin(
    "single-profile-handler",
    Role.PROFILE_HANDLER,
    check_profiles=classmethod(
        lambda kind, _, names: [f"{kind.TYPE} runs one scheduling profile, not {len(names)}"] if len(names) > 1 else []
    ),
)
OpenAIParser = plugin("openai-parser", Role.PARSER)
PassthroughParser = plugin("passthrough-parser", Role.PARSER)
UtilizationDetector = plugin(
    "utilization-detector",
    *(Role.SATURATION_DETECTOR, Role.FILTER),
    Parameters=Threshold,
    CONSUMES=(Input(WAITING_QUEUE_SIZE, optional=True),),
)

TYPES: tuple[type[Plugin], ...] = (
    plugin("label-filter", Role.FILTER, Parameters=Label),
    QueueScorer,
    plugin("plain-scorer", Role.SCORER, Parameters=Threshold),
    PrefixScorer,
    Index,
    plugin("tokenizer", Role.DATA_PRODUCER, PRODUCES=(TOKENS,)),
    plugin("chicken", Role.DATA_PRODUCER, CONSUMES=(EGG,), PRODUCES=(CHICKEN,)),
    plugin("egg", Role.DATA_PRODUCER, CONSUMES=(CHICKEN,), PRODUCES=(EGG,)),
    plugin("egg-scorer", Role.SCORER, CONSUMES=(EGG,)),
    plugin("curious-scorer", Role.SCORER, CONSUMES=(Input(MATCH, optional=True), Input(KV_CACHE_USAGE, optional=True))),
    MaxScorePicker,
    plugin("random-picker", Role.PICKER),
    SingleProfileHandler,
    plugin("many-profiles-handler", Role.PROFILE_HANDLER),
    OpenAIParser,
    PassthroughParser,
    UtilizationDetector,
    MetricsSource,
    plugin("core-metrics-extractor", Role.EXTRACTOR, TIER=Tier.COLLECTOR, PRODUCES=NUMBERS, INPUT="pages"),
    plugin("event-extractor", Role.EXTRACTOR, TIER=Tier.COLLECTOR, INPUT="events"),
    plugin("file-discovery", Role.DISCOVERY, TIER=Tier.WATCHER),
    plugin("fcfs-ordering-policy", Role.ORDERING_POLICY),
    plugin("global-strict-fairness-policy", Role.FAIRNESS_POLICY),
    plugin("round-robin-fairness-policy", Role.FAIRNESS_POLICY),
    plugin("static-usage-limit-policy", Role.USAGE_LIMIT_POLICY),
    plugin("sheddable-eviction-filter", Role.EVICTION_FILTER, STABILITY=Stability.ALPHA),
    plugin("gentle-eviction-filter", Role.EVICTION_FILTER),
    plugin("priority-then-time-eviction-order-policy", Role.EVICTION_ORDER, STABILITY=Stability.ALPHA),
    plugin("untested-scorer", Role.SCORER, STABILITY=Stability.ALPHA, Parameters=Threshold),
)

HEADER = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def registry(*without: type[Plugin]) -> Registry:
    """All of the types but those."""
    return Registry(kind for kind in TYPES if kind not in without)
