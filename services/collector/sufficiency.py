"""Whether an engine that a user defines can give what the configured plugins read, and if not, what would do.

Said in the words in which the engine was written, fields of `engineConfigs` or flags. What is switched off by an
explicitly empty specification is meant to be missing; what is only left out may have been forgotten.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from services.collector.engine_configs import FIELDS, EngineConfig
from services.collector.engines import WAYS
from shared.attributes import AttributeKey
from shared.plugin import Demand


class Shortfall(Struct, frozen=True):
    """An attribute that an engine can't give."""

    field: str
    """The field of the engine's configuration that would give it directly; empty for attributes of the user's own."""
    message: str
    fatal: bool


def shortfalls(
    config: EngineConfig, demand: Demand, words: Mapping[str, str], off: Callable[[str], str]
) -> list[Shortfall]:
    """What the engine can't give of what is demanded.

    `words` has what each field of the engine's configuration is called where the user writes it, those that can be
    given there; `off` spells such a field that is switched off.
    """
    engine = config.engine()
    found: list[Shortfall] = []
    for required, readers in ((True, demand.required), (False, demand.used)):
        for key, names in readers.items():
            if not engine.gives(key) and not (key in demand.required and not required):
                one = _shortfall(config, key, names, required, words, off)
                if one is not None:
                    found.append(one)
    return found


def _shortfall(
    config: EngineConfig,
    key: AttributeKey[Any],
    names: tuple[str, ...],
    required: bool,
    words: Mapping[str, str],
    off: Callable[[str], str],
) -> Shortfall | None:
    readers = " and ".join(map(repr, names))
    verb = ("requires" if required else "uses") if len(names) == 1 else ("require" if required else "use")
    lack = f"nothing gives {key.name}, which {readers} {verb}"
    if key not in WAYS:
        return Shortfall("", f"{lack}: endpoints of this engine don't have it", fatal=False)
    ways = [tuple(FIELDS[one] for one in way) for way in WAYS[key]]
    direct = ways[0][0]
    if getattr(config, direct) == "":
        if not required:
            return None
        return Shortfall(direct, f"{lack}; it is switched off by {off(words[direct])}", fatal=False)
    choices = [_choice(config, way, words) for way in ways if all(one in words for one in way)]
    what = ", or ".join(dict.fromkeys(choices))
    return Shortfall(direct, f"{lack}; give {what}; or {off(words[direct])}, if there is none", fatal=required)


def _choice(config: EngineConfig, way: tuple[str, ...], words: Mapping[str, str]) -> str:
    """What there is to give for one way, beside what is given."""
    there = [words[one] for one in way if getattr(config, one)]
    missing = [words[one] for one in way if not getattr(config, one)]
    return " and ".join(missing) + (f" beside {' and '.join(there)}" if there else "")
