"""The plugins that a configuration runs, for `pointsman check`: as text for people and as JSON for programs."""

from collections.abc import Iterable

from msgspec import Struct

from shared.config.loaded import EVICTION_ROLES, LoadedConfig, PluginSpec, ProfileSpec, with_references
from shared.plugin import Role, Tier
from shared.quantities import format_duration

_PLACED = {
    *(Role.FILTER, Role.SCORER, Role.PICKER, Role.PROFILE_HANDLER, Role.PARSER, Role.DATA_PRODUCER),
    *(Role.DECIDER, Role.SATURATION_DETECTOR, Role.DATA_SOURCE, Role.EXTRACTOR, Role.DISCOVERY),
    *(Role.ORDERING_POLICY, Role.FAIRNESS_POLICY, Role.USAGE_LIMIT_POLICY, *EVICTION_ROLES),
}
"""Roles of plugins that the configuration refers to; other plugins run because they are listed."""


class PluginRef(Struct, frozen=True, rename="camel"):
    """A plugin by name."""

    name: str
    type: str
    added: bool = False
    """Added by default, not listed in the document."""

    def __str__(self) -> str:
        return (self.name if self.name == self.type else f"{self.name} ({self.type})") + ("*" if self.added else "")


class WeightedScorer(Struct, frozen=True, rename="camel"):
    """A scorer and its weight."""

    plugin: PluginRef
    weight: float

    def __str__(self) -> str:
        return f"{self.plugin}·{self.weight:g}"


class Profile(Struct, frozen=True, rename="camel"):
    """A scheduling profile; plugins are in the order in which they run."""

    name: str
    filters: tuple[PluginRef, ...]
    scorers: tuple[WeightedScorer, ...]
    pickers: tuple[PluginRef, ...]

    def __str__(self) -> str:
        parts = [*map(str, self.filters)]
        if self.scorers:
            parts.append(" + ".join(map(str, self.scorers)))
        return " → ".join([*parts, *map(str, self.pickers)])


class Source(Struct, frozen=True, rename="camel"):
    """A data source and its extractors."""

    plugin: PluginRef
    extractors: tuple[PluginRef, ...]

    def __str__(self) -> str:
        return f"{self.plugin} → {', '.join(map(str, self.extractors)) or 'no extractor: not polled'}"


class StaleMetrics(Struct, frozen=True, rename="camel"):
    """When metrics are stale, and how scorers treat them."""

    after: float
    policy: str


class Description(Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that a configuration runs."""

    revision: str
    """The revision of the document, as shown by every process that uses it."""
    profiles: tuple[Profile, ...]
    profile_handler: PluginRef
    parsers: tuple[PluginRef, ...]
    producers: tuple[PluginRef, ...]
    saturation_detector: PluginRef
    flow_control: tuple[PluginRef, ...]
    """The policies of its queues; empty if requests don't queue."""
    sources: tuple[Source, ...]
    discovery: PluginRef | None
    called: tuple[PluginRef, ...]
    """Plugins that others call."""
    others: tuple[PluginRef, ...]
    """Plugins that run because they are listed."""
    stale_metrics: StaleMetrics
    feature_gates: dict[str, bool]
    tiers: dict[str, tuple[str, ...]]
    """Plugins by tier."""
    without_part: tuple[PluginRef, ...]
    """Listed plugins that nothing uses."""

    def lines(self) -> list[str]:
        """The description as text."""
        rows = [
            ("revision", self.revision),
            *((f"profile {profile.name}", str(profile)) for profile in self.profiles),
            ("profile handler", str(self.profile_handler)),
            ("parsers", _list(self.parsers)),
            ("data producers", _list(self.producers)),
            ("saturation detector", str(self.saturation_detector)),
            ("flow control", _list(self.flow_control)),
            *(("data source", str(source)) for source in self.sources or ("none: no metrics are scraped",)),
            ("endpoint discovery", str(self.discovery or "")),
            ("called", _list(self.called)),
            ("also", _list(self.others)),
            ("stale metrics", f"after {format_duration(self.stale_metrics.after)}: {self.stale_metrics.policy}"),
            ("feature gates", ", ".join(name for name, on in self.feature_gates.items() if on)),
            *((f"runs in the {tier}", ", ".join(names)) for tier, names in self.tiers.items()),
            ("not used", _list(self.without_part)),
        ]
        width = max(len(label) for label, _ in rows)
        lines = [f"{label:<{width}}  {text}" for label, text in rows if text]
        if any("*" in line for line in lines):
            lines.append("* added by default")
        return lines


def describe(config: LoadedConfig) -> Description:
    """Describe a configuration."""

    def ref(name: str) -> PluginRef:
        return _plugin_ref(config.plugins[name])

    others = [spec for spec in config.plugins.values() if not spec.kind.ROLES <= _PLACED]
    used = {
        *(member.plugin.name for profile in config.profiles for member in profile.members),
        *(config.profile_handler, config.saturation_detector, *config.parsers, *config.producers),
        *config.policies(),
        *(name for source in config.sources for name in (source.source, *source.extractors)),
        *(() if config.discovery is None else (config.discovery,)),
        *(spec.name for spec in others),
    }
    working = with_references([config.plugins[name] for name in used], config.plugins)
    called = [spec for name, spec in config.plugins.items() if name in working and name not in used]
    used |= working.keys()
    tiers = {
        tier.value: tuple(name for name, spec in config.plugins.items() if name in used and spec.kind.runs_in(tier))
        for tier in Tier
    }
    return Description(
        revision=config.revision,
        profiles=tuple(map(_profile, config.profiles)),
        profile_handler=ref(config.profile_handler),
        parsers=tuple(map(ref, config.parsers)),
        producers=tuple(map(ref, config.producers)),
        saturation_detector=ref(config.saturation_detector),
        flow_control=tuple(map(ref, config.policies())),
        sources=tuple(Source(ref(source.source), tuple(map(ref, source.extractors))) for source in config.sources),
        discovery=None if config.discovery is None else ref(config.discovery),
        called=tuple(map(_plugin_ref, called)),
        others=tuple(map(_plugin_ref, others)),
        stale_metrics=StaleMetrics(config.stale_metrics.after, config.stale_metrics.policy),
        feature_gates=dict(config.gates),
        tiers={tier: names for tier, names in tiers.items() if names},
        without_part=tuple(_plugin_ref(spec) for name, spec in config.plugins.items() if name not in used),
    )


def _plugin_ref(spec: PluginSpec) -> PluginRef:
    return PluginRef(spec.name, spec.kind.TYPE, spec.injected)


def _profile(spec: ProfileSpec) -> Profile:
    return Profile(
        spec.name,
        tuple(_plugin_ref(member.plugin) for member in spec.having(Role.FILTER)),
        tuple(WeightedScorer(_plugin_ref(member.plugin), member.weight) for member in spec.having(Role.SCORER)),
        tuple(_plugin_ref(member.plugin) for member in spec.having(Role.PICKER)),
    )


def _list(plugins: Iterable[PluginRef]) -> str:
    return ", ".join(map(str, plugins))
