"""What a configuration runs, in names: for `pointsman check`, as text for humans and as JSON for machines."""

from collections.abc import Iterable

from msgspec import Struct

from shared.config.loaded import LoadedConfig, PluginSpec, ProfileSpec
from shared.plugin import Role, Tier
from shared.quantities import format_duration

_PLACED = {
    *(Role.FILTER, Role.SCORER, Role.PICKER, Role.PROFILE_HANDLER, Role.PARSER, Role.DATA_PRODUCER),
    *(Role.SATURATION_DETECTOR, Role.DATA_SOURCE, Role.EXTRACTOR, Role.DISCOVERY),
}
"""Roles that a plugin only plays where the configuration puts it."""


class Named(Struct, frozen=True, rename="camel"):
    """A plugin by name."""

    name: str
    type: str
    added: bool = False
    """By default: the document doesn't have it."""

    def __str__(self) -> str:
        return (self.name if self.name == self.type else f"{self.name} ({self.type})") + ("*" if self.added else "")


class Scored(Struct, frozen=True, rename="camel"):
    """A scorer and its weight."""

    plugin: Named
    weight: float

    def __str__(self) -> str:
        return f"{self.plugin}·{self.weight:g}"


class Profile(Struct, frozen=True, rename="camel"):
    """A scheduling profile, in the order in which it runs."""

    name: str
    filters: tuple[Named, ...]
    scorers: tuple[Scored, ...]
    pickers: tuple[Named, ...]

    def __str__(self) -> str:
        parts = [*map(str, self.filters)]
        if self.scorers:
            parts.append(" + ".join(map(str, self.scorers)))
        return " → ".join([*parts, *map(str, self.pickers)])


class Source(Struct, frozen=True, rename="camel"):
    """A data source and what reads it."""

    plugin: Named
    extractors: tuple[Named, ...]

    def __str__(self) -> str:
        return f"{self.plugin} → {', '.join(map(str, self.extractors)) or 'nobody: it is not asked'}"


class Stale(Struct, frozen=True, rename="camel"):
    """What stale metrics are, and what scorers make of them."""

    after: float
    policy: str


class Description(Struct, frozen=True, kw_only=True, rename="camel"):
    """All that a configuration runs."""

    revision: str
    """What tells its document from others, as every process that uses it shows."""
    profiles: tuple[Profile, ...]
    profile_handler: Named
    parsers: tuple[Named, ...]
    producers: tuple[Named, ...]
    saturation_detector: Named
    sources: tuple[Source, ...]
    discovery: Named | None
    others: tuple[Named, ...]
    """What works by being there."""
    stale_metrics: Stale
    feature_gates: dict[str, bool]
    tiers: dict[str, tuple[str, ...]]
    """What runs where."""
    without_part: tuple[Named, ...]
    """Listed, and used by nothing."""

    def lines(self) -> list[str]:
        """For humans: a line each, a label and what it is."""
        rows = [
            ("revision", self.revision),
            *((f"profile {profile.name}", str(profile)) for profile in self.profiles),
            ("profile handler", str(self.profile_handler)),
            ("parsers", _list(self.parsers)),
            ("data producers", _list(self.producers)),
            ("saturation detector", str(self.saturation_detector)),
            *(("data source", str(source)) for source in self.sources or ("none: no metrics are scraped",)),
            ("endpoint discovery", str(self.discovery or "")),
            ("also", _list(self.others)),
            ("stale metrics", f"after {format_duration(self.stale_metrics.after)}: {self.stale_metrics.policy}"),
            ("feature gates", ", ".join(name for name, on in self.feature_gates.items() if on)),
            *((f"runs in the {tier}", ", ".join(names)) for tier, names in self.tiers.items()),
            ("has no part", _list(self.without_part)),
        ]
        width = max(len(label) for label, _ in rows)
        lines = [f"{label:<{width}}  {text}" for label, text in rows if text]
        if any("*" in line for line in lines):
            lines.append("* added by default")
        return lines


def describe(config: LoadedConfig) -> Description:
    """What the configuration runs."""

    def named(name: str) -> Named:
        return _named(config.plugins[name])

    others = [spec for spec in config.plugins.values() if not spec.kind.ROLES <= _PLACED]
    used = {
        *(member.plugin.name for profile in config.profiles for member in profile.members),
        *(config.profile_handler, config.saturation_detector, *config.parsers, *config.producers),
        *(name for source in config.sources for name in (source.source, *source.extractors)),
        *(() if config.discovery is None else (config.discovery,)),
        *(spec.name for spec in others),
    }
    tiers = {
        tier.value: tuple(name for name, spec in config.plugins.items() if name in used and spec.kind.runs_in(tier))
        for tier in Tier
    }
    return Description(
        revision=config.revision,
        profiles=tuple(map(_profile, config.profiles)),
        profile_handler=named(config.profile_handler),
        parsers=tuple(map(named, config.parsers)),
        producers=tuple(map(named, config.producers)),
        saturation_detector=named(config.saturation_detector),
        sources=tuple(Source(named(source.source), tuple(map(named, source.extractors))) for source in config.sources),
        discovery=None if config.discovery is None else named(config.discovery),
        others=tuple(map(_named, others)),
        stale_metrics=Stale(config.stale_metrics.after, config.stale_metrics.policy),
        feature_gates=dict(config.gates),
        tiers={tier: names for tier, names in tiers.items() if names},
        without_part=tuple(_named(spec) for name, spec in config.plugins.items() if name not in used),
    )


def _named(spec: PluginSpec) -> Named:
    return Named(spec.name, spec.kind.TYPE, spec.injected)


def _profile(spec: ProfileSpec) -> Profile:
    return Profile(
        spec.name,
        tuple(_named(member.plugin) for member in spec.having(Role.FILTER)),
        tuple(Scored(_named(member.plugin), member.weight) for member in spec.having(Role.SCORER)),
        tuple(_named(member.plugin) for member in spec.having(Role.PICKER)),
    )


def _list(plugins: Iterable[Named]) -> str:
    return ", ".join(map(str, plugins))
