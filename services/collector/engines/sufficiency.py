"""Whether a user-defined engine provides the attributes that the configured plugins read, and how to fix it if not.

Messages use the names under which the user configured the engine: fields of `engineConfigs`, or flags. An empty
specification switches a metric off on purpose. A missing one may be a mistake.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from services.collector.engines.builtin import DERIVATIONS
from services.collector.engines.configs import EngineConfig, spec_field
from shared.attributes import AttributeKey
from shared.plugin import Demand


class FieldNames(Struct, frozen=True):
    """The names of an engine's fields where the user configures it."""

    names: Mapping[str, str]
    """By field of `EngineConfig`; those without a name can't be configured there."""
    off: Callable[[str], str]
    """Given one of these names: the text that switches its metric off."""


class MissingAttribute(Struct, frozen=True):
    """Attributes that an engine doesn't provide."""

    field: str
    """The field of `EngineConfig` that gives them directly; empty for custom attributes."""
    message: str
    fatal: bool


def missing_attributes(config: EngineConfig, demand: Demand, field_names: FieldNames) -> list[MissingAttribute]:
    """The demanded attributes that the engine doesn't provide; one entry for those of the same field."""
    engine = config.engine()
    lacking: dict[tuple[str, bool], dict[AttributeKey[Any], tuple[str, ...]]] = {}
    for required, readers in ((True, demand.required), (False, demand.used)):
        for key, names in readers.items():
            if not engine.provides(key) and (required or key not in demand.required):
                lacking.setdefault((_direct(key), required), {})[key] = names
    found = [
        _missing_attribute(config, field, required, keys, field_names) for (field, required), keys in lacking.items()
    ]
    return [missing for missing in found if missing is not None]


def _missing_attribute(
    config: EngineConfig,
    field: str,
    required: bool,
    keys: Mapping[AttributeKey[Any], tuple[str, ...]],
    field_names: FieldNames,
) -> MissingAttribute | None:
    attributes = " and ".join(key.name for key in keys)
    readers = dict.fromkeys(name for names in keys.values() for name in names)
    verb = "require" if required else "use"
    lack = f"nothing gives {attributes}, which {' and '.join(map(repr, readers))} {verb}{'s' * (len(readers) == 1)}"
    if not field:
        return MissingAttribute(field, f"{lack}: endpoints of this engine don't have it", fatal=False)
    off = field_names.off(field_names.names[field])
    if getattr(config, field) == "":
        return MissingAttribute(field, f"{lack}: it is switched off by {off}", fatal=False) if required else None
    give = ", or ".join(_suggestions(config, next(iter(keys)), field_names))
    return MissingAttribute(field, f"{lack}; give {give}; or write {off} if there is none", fatal=required)


def _suggestions(config: EngineConfig, key: AttributeKey[Any], field_names: FieldNames) -> list[str]:
    """The fields to add. If a combination is configured partly, only the rest of it is suggested."""
    derivations = [tuple(map(spec_field, fields)) for fields in DERIVATIONS[key]]
    derivations = [fields for fields in derivations if all(field in field_names.names for field in fields)]
    partial = [fields for fields in derivations if any(getattr(config, field) for field in fields)]
    suggestions: list[str] = []
    for fields in [derivations[0], *partial] if partial else derivations:
        given = [field_names.names[field] for field in fields if getattr(config, field)]
        missing = [field_names.names[field] for field in fields if not getattr(config, field)]
        suggestions.append(" and ".join(missing) + (f" beside {' and '.join(given)}" if given else ""))
    return suggestions


def _direct(key: AttributeKey[Any]) -> str:
    return spec_field(DERIVATIONS[key][0][0]) if key in DERIVATIONS else ""
