"""The EndpointPickerConfig among the documents, validated with every tier's plugins before it is published."""

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from msgspec.structs import replace

from services.watcher.documents import Documents
from services.watcher.plugins import FileDiscovery
from services.watcher.positions import with_lines
from shared.config.loaded import LoadedConfig
from shared.config.loader import load
from shared.config.problems import Invalid
from shared.config.schema import BOUNDS, Bounds
from shared.plugin import Registry

Registries: TypeAlias = Callable[[], Registry]
"""Returns the plugin types. Called only if there is a configuration: finding them imports every tier."""


@cache
def installed() -> Registry:
    """The plugin types of the installed distributions."""
    return Registry.installed()


def validate(
    documents: Documents, registries: Registries, *, allow_experimental: bool = False, bounds: Bounds = BOUNDS
) -> LoadedConfig | None:
    """The loaded configuration of a file; None if it has none.

    Raises `Invalid` with every problem, each with its line in the file.
    """
    configuration = documents.configuration
    if configuration is None:
        return None
    try:
        return load(
            configuration.text,
            registries(),
            configuration.origin,
            allow_experimental=allow_experimental,
            bounds=bounds,
        )
    except Invalid as error:
        before = documents.configuration_line - 1
        located = with_lines(configuration.text, 0, error.problems)
        moved = [replace(problem, line=problem.line + before) if problem.line else problem for problem in located]
        raise Invalid(moved, configuration.origin) from error


def discovery(loaded: LoadedConfig | None) -> FileDiscovery | None:
    """The `file-discovery` plugin that the configuration names under `dataLayer.discovery`, if any."""
    if loaded is None or loaded.discovery is None:
        return None
    plugin = loaded.plugins[loaded.discovery].create()
    return plugin if isinstance(plugin, FileDiscovery) else None
