"""Fuzzes the request parsers with atheris, which needs `pip install 'pointsman[fuzz]'`.

    make fuzz SECONDS=300

Half of the inputs are changed byte by byte, half value by value, which keeps JSON whole. What is found is written to
`.run/`: a file that crashes can be given as the only argument, and belongs into the corpus when the fault is mended.
"""

import json
import random
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["services.picker"]):
    from tests.fuzz.parsing import check

VALUES: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**53 + 1, 2**64, 10**40, 1e308, "", "x", "\u00e9", "\ud83d\ude00", "x" * 5000),
    *([], {}, [[]], [1], [-1], [2**32], [[1], [2]], ["a", 1], {"text": "t"}, [{"text": None}], {"role": 5}),
    *({"mm_hashes": {"image": ["h"]}, "mm_placeholders": {"image": [{"offset": 0, "length": 2}]}}, [{"source": {}}]),
]
KEYS = ["model", "messages", "content", "prompt", "input", "items", "system", "token_ids", "features", "stream", "n"]


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Another input. `most` is its largest size in bytes."""
    chance = random.Random(seed)
    line, _, body = data.partition(b"\n")
    if chance.random() < 0.5:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            changed = line + b"\n" + json.dumps(_changed(value, chance), ensure_ascii=False).encode("utf-8", "replace")
            return changed[:most]
    return atheris.Mutate(data, most)  # type: ignore[no-any-return]


def _changed(value: Any, chance: random.Random) -> Any:
    """The value with something in it changed: a field or an item set, removed, or changed itself."""
    if isinstance(value, dict):
        if not value or chance.random() < 0.2:
            return {**value, chance.choice(KEYS): chance.choice(VALUES)}
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {name: one for name, one in value.items() if name != key}
        return {**value, key: _changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        changed = [] if chance.random() < 0.1 else [_changed(value[at], chance)]
        return [*value[:at], *changed, *value[at + 1 :]]
    return chance.choice(VALUES)


def main() -> None:
    atheris.Setup(sys.argv, check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
