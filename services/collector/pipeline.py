"""What a configuration asks of the collector: its polling sources, each with the extractors that it feeds.

A source that feeds no extractor isn't asked at all.
"""

from typing import Any

from msgspec import Struct

from services.collector.interfaces import Extractor, PollingSource
from shared.attributes import AttributeKey
from shared.config.loaded import LoadedConfig, PluginSpec
from shared.config.problems import Problems
from shared.datalayer.endpoints import EndpointExtractor, EndpointFeed, EndpointNotificationSource
from shared.datalayer.wiring import feeds as endpoint_feeds
from shared.plugin import Tier


class PolledSource(Struct, frozen=True):
    """A source and its extractors."""

    source: PollingSource
    extractors: tuple[Extractor, ...]


class Pipeline(Struct, frozen=True):
    """All that is polled and extracted."""

    feeds: tuple[PolledSource, ...] = ()
    plan: tuple[Any, ...] = ()
    """What it was built from: pipelines with equal plans do the same."""
    endpoint_feeds: tuple[EndpointFeed, ...] = ()
    """Who hears of endpoints that come, change and go."""

    @property
    def keys(self) -> frozenset[AttributeKey[Any]]:
        """The attributes that are found on pages, as far as the configuration says."""
        extractors = (one for feed in self.feeds for one in feed.extractors)
        return frozenset(key for one in extractors for key in one.produces(one.name, one.parameters))

    def describe(self) -> list[dict[str, Any]]:
        """For the debug pages: what is polled."""
        return [
            {"source": feed.source.name, "extractors": [extractor.name for extractor in feed.extractors]}
            for feed in self.feeds
        ]


def plan(config: LoadedConfig) -> tuple[Any, ...]:
    """What of a configuration concerns the collector, comparable."""
    return tuple(
        (_identity(config.plugins[one.source]), tuple(_identity(config.plugins[name]) for name in one.extractors))
        for one in config.sources
        if config.plugins[one.source].kind.polled() and one.extractors
    )


def build(config: LoadedConfig) -> Pipeline:
    """The pipeline of a configuration. Raises `Invalid` when plugins refuse their parameters or don't fit together."""
    instances = config.instances(Tier.COLLECTOR)
    problems = Problems()
    feeds: list[PolledSource] = []
    for index, spec in enumerate(config.sources):
        path = f"dataLayer.sources[{index}]"
        kind = config.plugins[spec.source].kind
        if not kind.polled() or not spec.extractors:
            continue
        source = instances[spec.source]
        if not isinstance(source, PollingSource):
            problems.error(f"{path}.pluginRef", f"{spec.source!r} is a {kind.TYPE}, which can't be polled")
            continue
        extractors: list[Extractor] = []
        for position, name in enumerate(spec.extractors):
            extractor = instances.get(name)
            # The loader has compared what they declare; here it is what they are.
            if isinstance(extractor, Extractor) and extractor.INPUT == source.OUTPUT:
                extractors.append(extractor)
            else:
                problems.error(
                    f"{path}.extractors[{position}].pluginRef",
                    f"{name!r} is a {config.plugins[name].kind.TYPE}, which can't read what {spec.source!r} polls",
                )
        feeds.append(PolledSource(source, tuple(extractors)))
    problems.raise_if_any(config.origin)
    hearing = endpoint_feeds(config, instances, EndpointNotificationSource, EndpointExtractor)
    return Pipeline(tuple(feeds), plan(config), hearing)


def _identity(spec: PluginSpec) -> tuple[Any, ...]:
    return spec.name, spec.kind, spec.parameters
