"""The EndpointPickerConfig in a ConfigMap, as an event of the source.

Validating a large one takes seconds, longer than the lease allows: a thread does it, and nothing waits for it. The
result depends on nothing but the text, so other changes of the object cost nothing.
"""

import asyncio
from collections.abc import Callable

import structlog
from msgspec import Struct

from services.watcher.documents import Documents
from services.watcher.kubernetes.informers import Informer
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


def find_configuration(place: ConfigMapKey, item: JsonObject | None) -> Configuration | Rejected:
    """The document in the object at this place; None if there is no object."""
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
    return configuration


def read_configuration(place: ConfigMapKey, configuration: Configuration, validate: Validate) -> Reset | Rejected:
    """What the document states, validated."""
    origin = str(place)
    try:
        loaded = validate(configuration)
    except Invalid as error:
        return Rejected(origin, error.problems)
    except Exception as error:  # whatever a plugin does with a document, it doesn't end the watcher
        log.exception("config.failed", origin=origin)
        return Rejected(origin, (Problem("", f"it can't be loaded: {type(error).__name__}: {error}"),))
    return Reset(origin, Documents(configuration=configuration), loaded)


class ConfigMapReader:
    """Reads one form of the object after the other. While one is validated, what was read before holds."""

    def __init__(self, place: ConfigMapKey, informer: Informer, validate: Validate, ready: Callable[[], None]) -> None:
        """`ready` is called when `read` has something new."""
        self.informer = informer
        self._place = place
        self._validate = validate
        self._ready = ready
        self._validated: tuple[Configuration, Reset | Rejected] | None = None
        """The last document that was validated, and what it states."""
        self._validating: tuple[JsonObject | None, Configuration, asyncio.Future[Reset | Rejected]] | None = None
        self.item: JsonObject | None = None
        """The form of the object that was read last; None if there was no object."""
        self.outcome: Reset | Rejected | None = None
        """What it states; None before the first is read."""

    def read(self) -> Reset | Rejected | None:
        """What the object states, as far as it is known now."""
        if self.informer.synced:
            self._read(self.informer.objects.get((self._place.namespace, self._place.name)))
        return self.outcome

    def _read(self, item: JsonObject | None) -> None:
        """Read this form of the object, or begin to, unless another one is being validated."""
        if self._validating is not None:
            former, configuration, validating = self._validating
            if not validating.done():
                return
            self._validating = None
            self._validated = configuration, validating.result()
            self.item, self.outcome = former, self._validated[1]
        found = find_configuration(self._place, item)
        if isinstance(found, Rejected):
            self.item, self.outcome = item, found
        elif self._validated is not None and self._validated[0] == found:
            self.item, self.outcome = item, self._validated[1]
        else:
            loop = asyncio.get_running_loop()
            validating = loop.run_in_executor(None, read_configuration, self._place, found, self._validate)
            validating.add_done_callback(lambda _: self._ready())
            self._validating = item, found, validating

    def __repr__(self) -> str:
        state = "nothing read yet" if self.outcome is None else type(self.outcome).__name__
        return f"<ConfigMapReader {self._place}: {state}{', validating' if self._validating else ''}>"
