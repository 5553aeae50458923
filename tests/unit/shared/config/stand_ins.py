"""Stand-ins for plugin types that documents name and that aren't installed: so the rest of a document can be judged.

A stand-in plays its type's roles (an extractor's where the document lists it as one) and takes the parameters that the
document gives it, whatever they are. A type that is installed is never replaced.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from msgspec import defstruct

from services.picker.scheduling.cycle import PREFIX_MATCH
from shared.plugin import Plugin, Registry, Role

_ROLES = {
    "slo-aware-routing": {Role.SCORER},
    "test-plugin": {Role.FILTER},
    "test-one": {Role.FILTER},
}
_ROLES_BY_ENDING = {
    "-filter": Role.FILTER,
    "-scorer": Role.SCORER,
    "-picker": Role.PICKER,
    "-profile-handler": Role.PROFILE_HANDLER,
    "-parser": Role.PARSER,
    "-producer": Role.DATA_PRODUCER,
    "-admitter": Role.ADMITTER,
    "-source": Role.DATA_SOURCE,
    "-extractor": Role.EXTRACTOR,
    "-file-discovery": Role.DISCOVERY,
}
_PRODUCES = {"precise-prefix-cache-producer": (PREFIX_MATCH,)}


def entries(text: str) -> list[dict[str, Any]]:
    """The `plugins` of a document, as they are written."""
    return [plugin for plugin in yaml.safe_load(text).get("plugins") or () if isinstance(plugin, dict)]


def missing(text: str, registry: Registry) -> dict[str, str]:
    """Where the document names types that aren't installed: `plugins[2].type`, and the type."""
    named = ((f"plugins[{at}].type", entry.get("type", "")) for at, entry in enumerate(entries(text)))
    return {path: name for path, name in named if name and registry.find(name) is None}


def completed(text: str, registry: Registry) -> Registry:
    """The registry's types, and a stand-in for each that the document names besides."""
    return Registry([*registry, *(_stand_in(name, text) for name in sorted(set(missing(text, registry).values())))])


def _stand_in(name: str, text: str) -> type[Plugin]:
    instances = [entry for entry in entries(text) if entry.get("type") == name]
    roles = set(_ROLES.get(name) or {role for ending, role in _ROLES_BY_ENDING.items() if name.endswith(ending)})
    if _extractors(text) & {instance.get("name", name) for instance in instances}:
        roles.add(Role.EXTRACTOR)
    fields: list[Any] = [
        (key, Any, None) for key in sorted({key for instance in instances for key in _given(instance)})
    ]
    body = {
        "TYPE": name,
        "ROLES": frozenset(roles),
        "PRODUCES": _PRODUCES.get(name, ()),
        "Parameters": defstruct("Parameters", fields, frozen=True),
        "__doc__": f"Stands in for {name}.",
    }
    return type("StandIn", (Plugin,), body)


def _given(entry: Mapping[str, Any]) -> Iterator[str]:
    parameters = entry.get("parameters")
    return iter(parameters) if isinstance(parameters, dict) else iter(())


def _extractors(text: str) -> set[str]:
    """Names that the document lists as extractors."""
    section = yaml.safe_load(text).get("dataLayer") or {}
    return {ref.get("pluginRef") for source in section.get("sources") or () for ref in source.get("extractors") or ()}
