"""What the plugins of a configuration require of each other, and whether the others provide it."""

from collections.abc import Iterable, Mapping
from typing import Any

from shared.attributes import AttributeKey
from shared.config.inputs import active_producers
from shared.config.loaded import PluginSpec, SourceSpec
from shared.config.problems import Problems, join
from shared.config.schema import StaleMetrics
from shared.plugin import Demand


def demands(
    plugins: Mapping[str, PluginSpec],
    sources: Iterable[SourceSpec],
    inputs: Mapping[str, Mapping[str, AttributeKey[Any]]],
    stale: StaleMetrics,
) -> dict[str, Demand]:
    """What is wanted of each plugin that makes attributes, by its name; `inputs` as in a `LoadedConfig`."""
    required: dict[AttributeKey[Any], list[str]] = {}
    used: dict[AttributeKey[Any], list[str]] = {}
    for spec in plugins.values():
        named = inputs.get(spec.name, {})
        for wanted in spec.consumes:
            key = wanted.key or named.get(wanted.parameter)
            readers = used if wanted.optional else required
            if key is not None and spec.name not in readers.setdefault(key, []):
                readers[key].append(spec.name)
    return {
        spec.name: Demand(
            required={key: tuple(required[key]) for key in spec.produces if key in required},
            used={key: tuple(used[key]) for key in spec.produces if key in used},
            stale_after=stale.limit,
        )
        for spec in active_producers(plugins, sources)
    }


def check(
    plugins: Mapping[str, PluginSpec],
    sources: Iterable[SourceSpec],
    inputs: Mapping[str, Mapping[str, AttributeKey[Any]]],
    stale: StaleMetrics,
    problems: Problems,
) -> None:
    """Note the requirements that plugins don't meet."""
    for name, demand in demands(plugins, sources, inputs, stale).items():
        spec = plugins[name]
        for concern in spec.kind.check(spec.parameters, demand):
            at = join(spec.path or spec.name, "parameters")
            path = join(at, concern.parameter) if concern.parameter else at
            if concern.fatal:
                problems.error(path, concern.message)
            else:
                problems.warn(path, concern.message)
