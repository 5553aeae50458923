"""Plugins: what a type declares about itself, and the registry that finds types by name.

A plugin type is a class with a `TYPE` name, the `ROLES` it plays, the `TIER` that runs it, and a msgspec struct of
`Parameters`. Types are found through the entry-point group `pointsman.plugins`, so a tier can validate a document that
names another tier's plugins without importing that tier, and third parties add theirs by installing a package.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from importlib.metadata import entry_points
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
    PARSER = "parser"
    DATA_PRODUCER = "data producer"
    SATURATION_DETECTOR = "saturation detector"
    ADMITTER = "admitter"
    DATA_SOURCE = "data source"
    EXTRACTOR = "extractor"
    DISCOVERY = "endpoint discovery"
    ORDERING_POLICY = "ordering policy"
    FAIRNESS_POLICY = "fairness policy"
    USAGE_LIMIT_POLICY = "usage limit policy"


class Stability(StrEnum):
    """How settled a type is. An alpha type loads only where experimental plugins are allowed."""

    ALPHA = "alpha"
    BETA = "beta"
    STABLE = "stable"


class NoParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of a plugin that has none."""


class Plugin:
    """Base of every plugin type. An instance has the name and the parameters that the document gives it."""

    TYPE: ClassVar[str]
    ROLES: ClassVar[frozenset[Role]] = frozenset()
    TIER: ClassVar[Tier] = Tier.PICKER
    Parameters: ClassVar[type[Struct]] = NoParameters
    STABILITY: ClassVar[Stability] = Stability.BETA
    ALIASES: ClassVar[tuple[str, ...]] = ()
    """Names that older generations gave the type; they load with a deprecation warning."""
    REQUIRES: ClassVar[tuple[AttributeKey[Any], ...]] = ()
    """Attributes that the plugin can't work without: one without a producer is an error at start."""
    PRODUCES: ClassVar[tuple[AttributeKey[Any], ...]] = ()

    def __init__(self, name: str, parameters: Any = None) -> None:
        self.name = name
        self.parameters: Any = self.Parameters() if parameters is None else parameters

    @classmethod
    def deprecations(cls, parameters: Any) -> list[str]:
        """What in the parameters is written as an older generation did, and what to write now."""
        return []

    @classmethod
    def producer_parameters(cls, parameters: Any, producer: str) -> dict[str, Any]:
        """Parameters for a producer of type `producer` that is added because this plugin requires what it makes."""
        return {}

    def __repr__(self) -> str:
        return f"<{self.TYPE} {self.name!r}>"


class Registry:
    """Plugin types by name. Aliases find their type too."""

    def __init__(self, types: Iterable[type[Plugin]] = ()) -> None:
        self._types: dict[str, type[Plugin]] = {}
        self._aliases: dict[str, type[Plugin]] = {}
        for one in types:
            self.add(one)

    @classmethod
    def installed(cls) -> "Registry":
        """All types of the installed distributions' entry points: a class each, or sequences of classes."""
        registry = cls()
        for entry in entry_points(group=GROUP):
            loaded = entry.load()
            for one in [loaded] if isinstance(loaded, type) else loaded:
                registry.add(one)
        return registry

    def add(self, kind: type[Plugin]) -> None:
        """Raises ValueError when the name, or an alias, is another type's."""
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
        return [one for one in self._types.values() if key in one.PRODUCES]

    def names(self) -> list[str]:
        return sorted(self._types)

    def __iter__(self) -> Iterator[type[Plugin]]:
        return iter(self._types.values())

    def __repr__(self) -> str:
        return f"<Registry {len(self._types)} types>"
