"""Plugin types for tests of the loader: one of each role, with the default types' names where the loader adds them."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, AttributeKey
from shared.plugin import Plugin, Registry, Role, Stability, Tier
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


class LabelFilter(Plugin):
    """Has a required parameter."""

    class Parameters(Struct, frozen=True, rename="camel"):
        label_key: str

    TYPE = "label-filter"
    ROLES = frozenset({Role.FILTER})


class QueueScorer(Plugin):
    TYPE = "queue-scorer"
    ROLES = frozenset({Role.SCORER})
    REQUIRES = (WAITING_QUEUE_SIZE,)
    ALIASES = ("least-queue-scorer",)


class PlainScorer(Plugin):
    TYPE = "plain-scorer"
    ROLES = frozenset({Role.SCORER})
    Parameters = Threshold


class PrefixScorer(Plugin):
    """Forwards its index's parameters, as prefix-cache-scorer does."""

    class Parameters(Struct, frozen=True, rename="camel"):
        block_size: int | None = None
        index_name: str = ""

    TYPE = "prefix-scorer"
    ROLES = frozenset({Role.SCORER})
    REQUIRES = (MATCH,)

    @classmethod
    def deprecations(cls, parameters: Any) -> list[str]:
        return ["blockSize is deprecated here"] if parameters.block_size is not None else []

    @classmethod
    def producer_parameters(cls, parameters: Any, producer: str) -> dict[str, Any]:
        return {"blockSize": parameters.block_size} if parameters.block_size is not None else {}

    @classmethod
    def references(cls, parameters: Any) -> dict[str, tuple[str, AttributeKey[Any]]]:
        return {"indexName": (parameters.index_name, MATCH)}


class Index(Plugin):
    class Parameters(Struct, frozen=True, rename="camel"):
        block_size: Annotated[int, Meta(gt=0)] = 64

    TYPE = "index"
    ROLES = frozenset({Role.DATA_PRODUCER})
    REQUIRES = (TOKENS,)
    PRODUCES = (MATCH,)


class Tokenizer(Plugin):
    TYPE = "tokenizer"
    ROLES = frozenset({Role.DATA_PRODUCER})
    PRODUCES = (TOKENS,)


class Chicken(Plugin):
    TYPE = "chicken"
    ROLES = frozenset({Role.DATA_PRODUCER})
    REQUIRES = (EGG,)
    PRODUCES = (CHICKEN,)


class Egg(Plugin):
    TYPE = "egg"
    ROLES = frozenset({Role.DATA_PRODUCER})
    REQUIRES = (CHICKEN,)
    PRODUCES = (EGG,)


class EggScorer(Plugin):
    TYPE = "egg-scorer"
    ROLES = frozenset({Role.SCORER})
    REQUIRES = (EGG,)


class CuriousScorer(Plugin):
    """Reads what there is."""

    TYPE = "curious-scorer"
    ROLES = frozenset({Role.SCORER})
    USES = (MATCH, KV_CACHE_USAGE)


class MaxScorePicker(Plugin):
    TYPE = "max-score-picker"
    ROLES = frozenset({Role.PICKER})


class RandomPicker(Plugin):
    TYPE = "random-picker"
    ROLES = frozenset({Role.PICKER})


class SingleProfileHandler(Plugin):
    TYPE = "single-profile-handler"
    ROLES = frozenset({Role.PROFILE_HANDLER})


class ManyProfilesHandler(Plugin):
    TYPE = "many-profiles-handler"
    ROLES = frozenset({Role.PROFILE_HANDLER})


class OpenAIParser(Plugin):
    TYPE = "openai-parser"
    ROLES = frozenset({Role.PARSER})


class PassthroughParser(Plugin):
    TYPE = "passthrough-parser"
    ROLES = frozenset({Role.PARSER})


class UtilizationDetector(Plugin):
    """A filter too, as the real one."""

    TYPE = "utilization-detector"
    ROLES = frozenset({Role.SATURATION_DETECTOR, Role.FILTER})
    Parameters = Threshold
    USES = (WAITING_QUEUE_SIZE,)


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


class CoreExtractor(Plugin):
    TYPE = "core-metrics-extractor"
    ROLES = frozenset({Role.EXTRACTOR})
    TIER = Tier.COLLECTOR
    PRODUCES = (WAITING_QUEUE_SIZE, KV_CACHE_USAGE)
    INPUT: ClassVar[str] = "pages"


class EventExtractor(Plugin):
    TYPE = "event-extractor"
    ROLES = frozenset({Role.EXTRACTOR})
    TIER = Tier.COLLECTOR
    INPUT: ClassVar[str] = "events"


class Discovery(Plugin):
    TYPE = "file-discovery"
    ROLES = frozenset({Role.DISCOVERY})
    TIER = Tier.WATCHER


class OrderingPolicy(Plugin):
    TYPE = "fcfs-ordering-policy"
    ROLES = frozenset({Role.ORDERING_POLICY})


class FairnessPolicy(Plugin):
    TYPE = "round-robin-fairness-policy"
    ROLES = frozenset({Role.FAIRNESS_POLICY})


class LimitPolicy(Plugin):
    TYPE = "static-usage-limit-policy"
    ROLES = frozenset({Role.USAGE_LIMIT_POLICY})


class UntestedScorer(Plugin):
    """Alpha."""

    TYPE = "untested-scorer"
    ROLES = frozenset({Role.SCORER})
    STABILITY = Stability.ALPHA
    Parameters = Threshold


TYPES: tuple[type[Plugin], ...] = (
    LabelFilter,
    QueueScorer,
    PlainScorer,
    PrefixScorer,
    Index,
    Tokenizer,
    Chicken,
    Egg,
    EggScorer,
    CuriousScorer,
    MaxScorePicker,
    RandomPicker,
    SingleProfileHandler,
    ManyProfilesHandler,
    OpenAIParser,
    PassthroughParser,
    UtilizationDetector,
    MetricsSource,
    CoreExtractor,
    EventExtractor,
    Discovery,
    OrderingPolicy,
    FairnessPolicy,
    LimitPolicy,
    UntestedScorer,
)

HEADER = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def registry(*without: type[Plugin]) -> Registry:
    """All of the types but those."""
    return Registry(one for one in TYPES if one not in without)
