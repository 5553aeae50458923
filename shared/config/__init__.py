"""EndpointPickerConfig: its schema, its loading with every error at once, its defaults.

`load(text, registry)` gives a `LoadedConfig` or raises `Invalid`. Each tier loads the same document with the same
registry, and instantiates the plugins that run in it.
"""

from shared.config.loaded import LoadedConfig, PluginSpec, ProfileMember, ProfileSpec, SourceSpec
from shared.config.loader import load
from shared.config.problems import Invalid, Problem, Problems

__all__ = [
    "Invalid",
    "LoadedConfig",
    "PluginSpec",
    "Problem",
    "Problems",
    "ProfileMember",
    "ProfileSpec",
    "SourceSpec",
    "load",
]
