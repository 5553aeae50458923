"""Plugins: what a type declares about itself, and the registry that finds types by name.

A plugin type is a class with a `TYPE` name, the `ROLES` it plays, the tiers that run it, and a msgspec struct of
`Parameters`. Types are found through the entry-point group `pointsman.plugins`, so a tier can validate a document that
names another tier's plugins without importing that tier, and third parties add theirs by installing a package.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, ClassVar

from msgspec import Struct

from shared.attributes import AttributeKey

GROUP = "pointsman.plugins"


class Tier(StrEnum):
    """Where a plugin runs."""

    WATCHER = "watcher"
    COLLECTOR = "collector"
    PICKER = "picker"


class Role(StrEnum):
    """What a plugin can be; one type can play several roles."""

    FILTER = "filter"
    SCORER = "scorer"
    PICKER = "picker"
    PROFILE_HANDLER = "profile handler"
    DECIDER = "decider"
    PARSER = "parser"
    DATA_PRODUCER = "data producer"
    SATURATION_DETECTOR = "saturation detector"
    PRE_ADMISSION = "pre-admission processor"
    ADMITTER = "admitter"
    PRE_REQUEST = "pre-request plugin"
    RESPONSE_HEADERS = "response header processor"
    RESPONSE_BODY = "response body processor"
    COMPLETION = "completion processor"
    DATA_SOURCE = "data source"
    EXTRACTOR = "extractor"
    DISCOVERY = "endpoint discovery"
    ORDERING_POLICY = "ordering policy"
    FAIRNESS_POLICY = "fairness policy"
    USAGE_LIMIT_POLICY = "usage limit policy"
    EVICTION_FILTER = "eviction filter policy"
    EVICTION_ORDER = "eviction order policy"


class Stability(StrEnum):
    """How settled a type is. An alpha type loads only where experimental plugins are allowed."""

    ALPHA = "alpha"
    BETA = "beta"
    STABLE = "stable"


class NoParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of a plugin that has none."""


class Input(Struct, frozen=True):
    """An attribute that a plugin reads: `key`, or the one that a parameter names."""

    key: AttributeKey[Any] | None = None
    optional: bool = False
    """Whether the plugin works without it. A required attribute that nothing produces is an error at start."""
    parameter: str = ""
    """The parameter that names the attribute or its producer; in the instance's `inputs`, the resolved attribute's
    key."""
    name: str = ""
    """Without a key: the attribute's name, or that of a plugin that produces one attribute."""
    producer: str = ""
    """Name or type of the plugin that has to produce it; empty takes any."""
    producer_parameters: Mapping[str, Any] = {}
    """For a producer that is added because of this input."""
    advice: str = ""
    """What to configure if nothing produces the attribute of that name."""
    kind: type[Any] = float
    """The type of the values of the attribute of that name."""


class Reference(Struct, frozen=True):
    """Another plugin of the document that a parameter names."""

    parameter: str
    """The parameter, as a path among them."""
    name: str
    role: Role
    """What the plugin has to be."""


class Demand(Struct, frozen=True):
    """Attributes that an instance makes and others read: each with their names."""

    required: Mapping[AttributeKey[Any], tuple[str, ...]] = {}
    """By those that can't work without it."""
    used: Mapping[AttributeKey[Any], tuple[str, ...]] = {}
    """By those that do without where there is none."""
    stale_after: float = math.inf
    """Seconds from which on what is known counts as old; infinite where nothing does."""


class Concern(Struct, frozen=True):
    """Something that an instance lacks for what is demanded of it."""

    parameter: str
    """Which parameter it is about, as a path among them; empty for all of them."""
    message: str
    fatal: bool = True
    """Whether the document can't be used like this."""


class Plugin:
    """Base of every plugin type. An instance has the name and the parameters that the document gives it."""

    TYPE: ClassVar[str]
    ROLES: ClassVar[frozenset[Role]] = frozenset()
    TIER: ClassVar[Tier] = Tier.PICKER
    """Where it runs, for nearly all types."""
    TIERS: ClassVar[frozenset[Tier]] = frozenset()
    """Every tier that runs it, for a type that more than one does."""
    Parameters: ClassVar[type[Struct]] = NoParameters
    STABILITY: ClassVar[Stability] = Stability.BETA
    ALIASES: ClassVar[tuple[str, ...]] = ()
    """Names that older generations gave the type; they load with a deprecation warning."""
    CONSUMES: ClassVar[tuple[AttributeKey[Any] | Input, ...]] = ()
    """Attributes that the plugin reads. A key alone is a required input."""
    PRODUCES: ClassVar[tuple[AttributeKey[Any], ...]] = ()
    OUTPUT: ClassVar[str] = ""
    """What a data source gives, in words; its extractors' `INPUT` is the same."""
    INPUT: ClassVar[str] = ""
    """What an extractor reads."""
    DEFAULT_SOURCE: ClassVar[str] = ""
    """Type of the source that an extractor hangs on where the document lists it and no source names it."""
    DEFAULT_SOURCE_PARAMETERS: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """What that source is given where it is added."""

    inputs: Mapping[str, AttributeKey[Any]] = MappingProxyType({})
    """The attributes that the instance's inputs name, by parameter."""
    referenced: "Mapping[str, Plugin]" = MappingProxyType({})
    """The plugins that the instance's references name, by their names."""

    def __init__(self, name: str, parameters: Any = None) -> None:
        self.name = name
        self.parameters: Any = self.Parameters() if parameters is None else parameters

    @classmethod
    def runs_in(cls, tier: Tier) -> bool:
        """Whether the tier makes instances of it."""
        return tier in (cls.TIERS or {cls.TIER})

    @classmethod
    def polled(cls) -> bool:
        """Whether a collector alone has it: a source that it asks."""
        return cls.TIER is Tier.COLLECTOR and not cls.TIERS

    @classmethod
    def consumes(cls, parameters: Any) -> tuple[AttributeKey[Any] | Input, ...]:
        """`CONSUMES` of an instance with these parameters."""
        return cls.CONSUMES

    @classmethod
    def produces(cls, name: str, parameters: Any) -> tuple[AttributeKey[Any], ...]:
        """`PRODUCES` of an instance of this name with these parameters."""
        return cls.PRODUCES

    @classmethod
    def references(cls, parameters: Any) -> tuple[Reference, ...]:
        """The other plugins that an instance with these parameters calls; they needn't be in a profile."""
        return ()

    @classmethod
    def topic(cls, parameters: Any) -> str:
        """What a source's output or an extractor's input is about, if its kind doesn't say: `v1 Node`; empty is any. A
        source and its extractors agree on it; two sources of one topic are an error."""
        return ""

    @classmethod
    def check_profiles(cls, parameters: Any, names: tuple[str, ...]) -> list[str]:
        """What a profile handler with these parameters lacks among the document's profiles, or can't run."""
        return []

    @classmethod
    def check(cls, parameters: Any, demand: Demand) -> list[Concern]:
        """What the parameters lack for the demands on an instance, beyond `produces`: it may make an attribute of some
        servers only."""
        return []

    @classmethod
    def deprecations(cls, parameters: Any) -> list[str]:
        """What in the parameters is written as an older generation did, and what to write now."""
        return []

    def __repr__(self) -> str:
        return f"<{self.TYPE} {self.name!r}>"


class Registry:
    """Plugin types by name. Aliases find their type too."""

    def __init__(self, types: Iterable[type[Plugin]] = ()) -> None:
        self._types: dict[str, type[Plugin]] = {}
        self._aliases: dict[str, type[Plugin]] = {}
        self.failures: tuple[str, ...] = ()
        """Entry points that could not be loaded, and why."""
        for kind in types:
            self.add(kind)

    @classmethod
    def installed(cls) -> "Registry":
        """All types of the installed distributions' entry points: a class each, or sequences of classes."""
        return cls.of(entry_points(group=GROUP))

    @classmethod
    def of(cls, entries: Iterable[EntryPoint]) -> "Registry":
        """The types of these entry points. One that can't be loaded is among `failures`: only its users need it."""
        registry = cls()
        for entry in entries:
            try:
                loaded = entry.load()
                for kind in [loaded] if isinstance(loaded, type) else loaded:
                    registry.add(kind)
            except Exception as error:  # noqa: BLE001 - a foreign module can fail in any way; each way is reported
                registry.failures += (f"entry point {entry.name!r} ({entry.value}): {type(error).__name__}: {error}",)
        return registry

    def add(self, kind: object) -> None:
        """Raises ValueError when it is no plugin type, or when its name, or an alias, is another type's."""
        if not isinstance(kind, type) or not issubclass(kind, Plugin) or not hasattr(kind, "TYPE"):
            raise ValueError(f"{kind!r} is no plugin type; a subclass of Plugin with a TYPE is expected")
        for name in (kind.TYPE, *kind.ALIASES):
            other = self.find(name)
            if other is not None and other is not kind:
                raise ValueError(f"plugin type {name!r} is declared by both {other.__module__} and {kind.__module__}")
        self._types[kind.TYPE] = kind
        self._aliases.update(dict.fromkeys(kind.ALIASES, kind))

    def find(self, name: str) -> type[Plugin] | None:
        return self._types.get(name) or self._aliases.get(name)

    def producers(self, key: AttributeKey[Any]) -> list[type[Plugin]]:
        """Types that produce the attribute."""
        return [kind for kind in self._types.values() if key in kind.PRODUCES]

    def names(self) -> list[str]:
        return sorted(self._types)

    def __iter__(self) -> Iterator[type[Plugin]]:
        return iter(self._types.values())

    def __repr__(self) -> str:
        return f"<Registry {len(self._types)} types, {len(self.failures)} failures>"
