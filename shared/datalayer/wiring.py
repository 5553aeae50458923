"""Which extractors read which source in a tier: from the configuration and the tier's instances."""

from collections.abc import Mapping
from typing import Generic, TypeVar

from msgspec import Struct

from shared.config.loaded import LoadedConfig
from shared.config.problems import Problems, show
from shared.plugin import Plugin

S = TypeVar("S", bound=Plugin)
X = TypeVar("X", bound=Plugin)


class SourceExtractors(Struct, Generic[S, X], frozen=True):
    """A source and those of its extractors that run in this tier; at least one."""

    source: S
    extractors: tuple[X, ...]

    def describe(self) -> dict[str, object]:
        """For the debug pages."""
        return {"source": self.source.name, "extractors": [extractor.name for extractor in self.extractors]}


def feeds(
    config: LoadedConfig, instances: Mapping[str, Plugin], source_type: type[S], extractor_type: type[X]
) -> tuple[SourceExtractors[S, X], ...]:
    """The sources of this kind with extractors here. Raises `Invalid` for an extractor of another kind under one."""
    found: list[SourceExtractors[S, X]] = []
    problems = Problems()
    for index, spec in enumerate(config.sources):
        source = instances.get(spec.source)
        if not isinstance(source, source_type):
            continue
        extractors: list[X] = []
        for position, name in enumerate(spec.extractors):
            extractor = instances.get(name)
            if isinstance(extractor, extractor_type):
                extractors.append(extractor)
            elif extractor is not None:
                path = f"dataLayer.sources[{index}].extractors[{position}].pluginRef"
                kind = config.plugins[name].kind.TYPE
                problems.error(path, f"{show(name)} is a {kind}, which can't read {show(spec.source)}")
        if extractors:
            found.append(SourceExtractors(source, tuple(extractors)))
    problems.raise_if_any(config.origin)
    return tuple(found)


def plan(config: LoadedConfig, source_type: type[Plugin]) -> tuple[object, ...]:
    """What of a configuration concerns the sources of this kind, comparable: equal plans do the same."""
    return tuple(
        tuple(
            (spec.name, spec.kind, spec.parameters)
            for spec in map(config.plugins.__getitem__, (listed.source, *listed.extractors))
        )
        for listed in config.sources
        if issubclass(config.plugins[listed.source].kind, source_type)
    )
