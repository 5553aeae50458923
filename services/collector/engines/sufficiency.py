"""Whether an engine that a user defines can give what the configured plugins read, and if not, what would do.

Said in the words in which the engine was written, fields of `engineConfigs` or flags. What is switched off by an
explicitly empty specification is meant to be missing; what is only left out may have been forgotten.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from services.collector.engines.configs import FIELDS, EngineConfig
from services.collector.engines.known import WAYS
from shared.attributes import AttributeKey
from shared.plugin import Demand


class Words(Struct, frozen=True):
    """How an engine's fields are written where the user defines it."""

    names: Mapping[str, str]
    """By the fields of `EngineConfig`: those that can be given there."""
    off: Callable[[str], str]
    """How one of these names is written to switch its quantity off."""


class Shortfall(Struct, frozen=True):
    """What an engine can't give."""

    field: str
    """The field of the engine's configuration that would give it directly; empty for attributes of the user's own."""
    message: str
    fatal: bool


def shortfalls(config: EngineConfig, demand: Demand, words: Words) -> list[Shortfall]:
    """What the engine can't give of what is demanded; one for all attributes that one field would give."""
    engine = config.engine()
    lacking: dict[tuple[str, bool], dict[AttributeKey[Any], tuple[str, ...]]] = {}
    for required, readers in ((True, demand.required), (False, demand.used)):
        for key, names in readers.items():
            if not engine.gives(key) and (required or key not in demand.required):
                lacking.setdefault((_direct(key), required), {})[key] = names
    found = [_shortfall(config, field, required, keys, words) for (field, required), keys in lacking.items()]
    return [one for one in found if one is not None]


def _shortfall(
    config: EngineConfig, field: str, required: bool, keys: Mapping[AttributeKey[Any], tuple[str, ...]], words: Words
) -> Shortfall | None:
    attributes = " and ".join(key.name for key in keys)
    readers = dict.fromkeys(name for names in keys.values() for name in names)
    verb = "require" if required else "use"
    lack = f"nothing gives {attributes}, which {' and '.join(map(repr, readers))} {verb}{'s' * (len(readers) == 1)}"
    if not field:
        return Shortfall(field, f"{lack}: endpoints of this engine don't have it", fatal=False)
    off = words.off(words.names[field])
    if getattr(config, field) == "":
        return Shortfall(field, f"{lack}: it is switched off by {off}", fatal=False) if required else None
    give = ", or ".join(_choices(config, next(iter(keys)), words))
    return Shortfall(field, f"{lack}; give {give}; or write {off} where there is none", fatal=required)


def _choices(config: EngineConfig, key: AttributeKey[Any], words: Words) -> list[str]:
    """What would do. Where a part of something is given, that is gone on with."""
    ways = [tuple(FIELDS[one] for one in way) for way in WAYS[key]]
    ways = [way for way in ways if all(field in words.names for field in way)]
    begun = [way for way in ways if any(getattr(config, field) for field in way)]
    choices: list[str] = []
    for way in [ways[0], *begun] if begun else ways:
        there = [words.names[one] for one in way if getattr(config, one)]
        missing = [words.names[one] for one in way if not getattr(config, one)]
        choices.append(" and ".join(missing) + (f" beside {' and '.join(there)}" if there else ""))
    return choices


def _direct(key: AttributeKey[Any]) -> str:
    return FIELDS[WAYS[key][0][0]] if key in WAYS else ""
