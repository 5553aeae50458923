"""The collector's part of a configuration: polling sources and their extractors.

A source without extractors isn't polled.
"""

from functools import cached_property
from typing import Any, TypeAlias

from msgspec import Struct

from services.collector.interfaces import Extractor, PollingSource
from shared.attributes import AttributeKey
from shared.config.loaded import LoadedConfig
from shared.config.problems import Problems
from shared.datalayer.endpoints import EndpointExtractor, EndpointExtractors, EndpointNotificationSource
from shared.datalayer.wiring import SourceExtractors, plan
from shared.datalayer.wiring import feeds as endpoint_feeds
from shared.plugin import Tier

PolledSource: TypeAlias = SourceExtractors[PollingSource, Extractor]


class Pipeline(Struct, frozen=True, dict=True):
    """Everything that a collector does by a configuration."""

    sources: tuple[PolledSource, ...] = ()
    plan: tuple[Any, ...] = ()
    """The configuration that it was built from, comparable."""
    endpoint_feeds: tuple[EndpointExtractors, ...] = ()
    """The plugins that receive endpoint events."""

    @cached_property
    def keys(self) -> frozenset[AttributeKey[Any]]:
        """The attributes that the extractors produce."""
        extractors = [extractor for polled in self.sources for extractor in polled.extractors]
        return frozenset(key for each in extractors for key in each.produces(each.name, each.parameters))

    def describe(self) -> list[dict[str, Any]]:
        """The sources and extractors, for the debug pages."""
        return [polled.describe() for polled in self.sources]


def build(config: LoadedConfig) -> Pipeline:
    """Builds the pipeline. Raises `Invalid` when plugins refuse their parameters or don't match."""
    instances = config.instances(Tier.COLLECTOR)
    problems = Problems()
    sources: list[PolledSource] = []
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
            # The loader has checked what the types declare, but not what they are.
            if isinstance(extractor, Extractor) and extractor.INPUT == source.OUTPUT:
                extractors.append(extractor)
            else:
                problems.error(
                    f"{path}.extractors[{position}].pluginRef",
                    f"{name!r} is a {config.plugins[name].kind.TYPE}, which can't read what {spec.source!r} polls",
                )
        sources.append(PolledSource(source, tuple(extractors)))
    problems.raise_if_any(config.origin)
    notified = endpoint_feeds(config, instances, EndpointNotificationSource, EndpointExtractor)
    pipeline = Pipeline(tuple(sources), plan(config, PollingSource), notified)
    _ = pipeline.keys  # can take long, and is used in the event loop
    return pipeline
