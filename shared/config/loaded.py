"""The result of loading a document: every plugin by name, resolved and validated, with the defaults added."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from shared.attributes import AttributeKey
from shared.config.problems import Invalid, Problem
from shared.config.schema import FlowControlSection, StaleMetrics
from shared.plugin import Input, Plugin, Reference, Role, Tier

EVICTION_ROLES = (Role.EVICTION_FILTER, Role.EVICTION_ORDER)


class PluginSpec(Struct, frozen=True):
    """One instance: its name, type and parameters, and where the document says so."""

    name: str
    kind: type[Plugin]
    parameters: Any
    path: str = ""
    """`plugins[3]`, or the section that stands for it; empty when the loader added it."""
    given: frozenset[str] = frozenset()
    """The parameters that the document gives, by the names that they have there."""

    @property
    def injected(self) -> bool:
        return not self.path

    @property
    def listed(self) -> bool:
        """Whether it is under `plugins`."""
        return self.path.startswith("plugins[")

    @property
    def produces(self) -> tuple[AttributeKey[Any], ...]:
        """The attributes that it makes."""
        return self.kind.produces(self.name, self.parameters)

    @property
    def consumes(self) -> tuple[Input, ...]:
        """The attributes that it reads."""
        wanted = self.kind.consumes(self.parameters)
        return tuple(read if isinstance(read, Input) else Input(read) for read in wanted)

    @property
    def references(self) -> tuple[Reference, ...]:
        """The other plugins that it calls."""
        return self.kind.references(self.parameters)

    @property
    def topic(self) -> str:
        """What a source or an extractor is about; empty is any."""
        return self.kind.topic(self.parameters)

    def create(self) -> Plugin:
        return self.kind(self.name, self.parameters)


def with_references(specs: Iterable[PluginSpec], plugins: Mapping[str, PluginSpec]) -> dict[str, PluginSpec]:
    """These plugins and all that they call, by name."""
    found: dict[str, PluginSpec] = {}
    pending = list(specs)
    while pending:
        spec = pending.pop()
        if spec.name not in found:
            found[spec.name] = spec
            pending += [plugins[reference.name] for reference in spec.references if reference.name in plugins]
    return found


class ProfileMember(Struct, frozen=True):
    """A plugin in a profile; the weight counts where it is a scorer."""

    plugin: PluginSpec
    weight: float = 1.0


class ProfileSpec(Struct, frozen=True):
    """A scheduling profile: its members in the document's order, of any role; exactly one of them picks."""

    name: str
    members: tuple[ProfileMember, ...]

    def having(self, role: Role) -> tuple[ProfileMember, ...]:
        return tuple(member for member in self.members if role in member.plugin.kind.ROLES)


class SourceSpec(Struct, frozen=True):
    """A data source and the extractors that it feeds, by name."""

    source: str
    extractors: tuple[str, ...]


class LoadedConfig(Struct, frozen=True, kw_only=True):
    """A configuration that can be run. Every name in it is a key of `plugins`."""

    origin: str
    revision: str
    """Identifies its text."""
    text: str = ""
    """What it was loaded from."""
    plugins: dict[str, PluginSpec]
    """In the document's order, then what was injected."""
    profiles: tuple[ProfileSpec, ...]
    profile_handler: str
    parsers: tuple[str, ...]
    saturation_detector: str
    sources: tuple[SourceSpec, ...]
    producers: tuple[str, ...] = ()
    """The data producers that somebody reads, each after those that it reads itself."""
    inputs: dict[str, dict[str, AttributeKey[Any]]] = {}
    """The attributes that plugins' parameters name, by plugin and parameter."""
    discovery: str | None = None
    stale_metrics: StaleMetrics = StaleMetrics()
    flow_control: FlowControlSection | None = None
    """Validated, with every policy named; None where the gate is off."""
    gates: dict[str, bool] = {}
    warnings: tuple[Problem, ...] = ()

    def names(self, tier: Tier) -> list[str]:
        """The tier's plugins."""
        return [name for name, spec in self.plugins.items() if spec.kind.runs_in(tier)]

    def instances(self, tier: Tier) -> dict[str, Plugin]:
        """New instances of the tier's plugins by name. Raises `Invalid` with all that refuse their parameters."""
        created: dict[str, Plugin] = {}
        problems: list[Problem] = []
        for name in self.names(tier):
            spec = self.plugins[name]
            try:
                created[name] = plugin = spec.create()
                plugin.inputs = self.inputs.get(name, plugin.inputs)
            except ValueError as error:
                problems.append(Problem(spec.path or name, str(error)))
        if problems:
            raise Invalid(problems, self.origin)
        for name, plugin in created.items():
            wanted = {reference.name for reference in self.plugins[name].references}
            plugin.referenced = {other: created[other] for other in created if other in wanted}
        return created

    def policies(self) -> list[str]:
        """The plugins that flow control runs, beside the saturation detector; none where the gate is off."""
        section = self.flow_control
        if section is None:
            return []
        bands = (section.default_priority_band, section.default_negative_priority_band, *section.priority_bands)
        named = [ref for band in bands if band for ref in (band.fairness_policy_ref, band.ordering_policy_ref)]
        evicting = [spec.name for role in EVICTION_ROLES for spec in self.having(role)]
        return list(
            dict.fromkeys(
                [*named, section.usage_limit_policy_plugin_ref, *(evicting if section.enable_eviction else ())]
            )
        )

    def having(self, role: Role) -> list[PluginSpec]:
        return [spec for spec in self.plugins.values() if role in spec.kind.ROLES]
