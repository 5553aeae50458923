"""The EndpointPickerConfig in a ConfigMap, as an event of the source."""

from collections.abc import Callable

import structlog
from msgspec import Struct

from services.watcher.documents import Documents
from services.watcher.kubernetes.resource import JsonObject
from services.watcher.sources import Rejected, Reset
from shared.bus.publishable import fault
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid, Problem
from shared.model import Configuration

log = structlog.get_logger(__name__)

Validate = Callable[[Configuration], LoadedConfig]
"""Loads a configuration with every tier's plugins. Raises `Invalid`."""


class ConfigMapKey(Struct, frozen=True):
    """Where the EndpointPickerConfig is."""

    namespace: str
    name: str
    key: str = ""
    """Empty: the only one, or the first that ends in `.yaml`."""

    def __str__(self) -> str:
        return f"ConfigMap {self.namespace}/{self.name}"


def read_config_map(place: ConfigMapKey, item: JsonObject | None, validate: Validate) -> Reset | Rejected:
    """What the object at this place states; None if there is no object."""
    origin = str(place)
    if item is None:
        return Rejected(origin, (Problem("", "it doesn't exist, and --config-map names it"),))
    data = item.get("data") or {}
    if not isinstance(data, dict) or not all(isinstance(text, str) for text in data.values()):
        return Rejected(origin, (Problem("data", "it isn't a map of texts"),))
    key = place.key or next((name for name in sorted(data) if len(data) == 1 or name.endswith(".yaml")), "")
    if key not in data:
        there = ", ".join(sorted(data)) or "none"
        return Rejected(origin, (Problem("data", f"{place.key or '*.yaml'!r} isn't among its keys: {there}"),))
    configuration = Configuration(text=data[key], origin=f"{origin} {key}")
    if reason := fault(configuration):
        return Rejected(origin, (Problem(f"data.{key}", reason),))
    try:
        loaded = validate(configuration)
    except Invalid as error:
        return Rejected(origin, error.problems)
    except Exception as error:  # whatever a plugin does with a document, it doesn't end the watcher
        log.exception("config.failed", origin=origin)
        return Rejected(origin, (Problem("", f"it can't be loaded: {type(error).__name__}: {error}"),))
    return Reset(origin, Documents(configuration=configuration), loaded)
