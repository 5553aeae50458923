"""How an input becomes another one: byte by byte, line by line, or value by value, which keeps JSON and YAML whole.

The keys and values that are put in are those of the corpus, and such as no sound sender would choose.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import yaml

STRANGE: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**53 + 1, 2**64, 10**40, 1e308, float("nan"), float("inf")),
    *("", "x", "\u00e9", "\ud83d\ude00", "\ud800", "a\nb", "x" * 5000),
    *([], {}, [[]], [1], [-1], [2**32], [[1], [2]], ["a", 1], {"text": "t"}, [{"text": None}], {"role": 5}),
]
_MAX_YAML = 4000


class Mutator:
    """The custom mutator of a target's fuzzer. `bytewise` is the fuzzer's own."""

    def __init__(self, corpus: Iterable[bytes], bytewise: Callable[[bytes, int], bytes]) -> None:
        self._bytewise = bytewise
        self._keys: list[str] = []
        self._values: list[Any] = []
        lines: set[bytes] = set()
        for data in corpus:
            lines.update(data.splitlines(keepends=True))
            for start, end in _pieces(data):
                if (found := _read(data[start:end])) is not None:
                    self._learn(found)
        self._keys = sorted(set(self._keys)) or ["x"]
        self._lines = sorted(lines) or [b"\n"]

    def __call__(self, data: bytes, most: int, seed: int) -> bytes:
        """Another input. `most` is its largest size in bytes."""
        chance = random.Random(seed)
        way = chance.random()
        try:
            changed = self._by_value(data, chance) if way < 0.5 else None
        except RecursionError:
            changed = None
        if changed is not None:
            return changed[:most]
        if way < 0.6:
            return self._by_line(data, chance)[:most]
        return self._bytewise(data, most)

    def _by_value(self, data: bytes, chance: random.Random) -> bytes | None:
        start, end = chance.choice(list(_pieces(data)))
        value = _read(data[start:end])
        if not isinstance(value, dict | list):
            return None
        text = json.dumps(self._changed(value, chance), ensure_ascii=chance.random() < 0.5, default=str)
        return data[:start] + text.encode("utf-8", "replace") + data[end:]

    def _changed(self, value: Any, chance: random.Random) -> Any:
        """The value with something in it changed: a field or an item set, removed, repeated, or changed itself."""
        if isinstance(value, dict):
            if not value or chance.random() < 0.2:
                return {**value, chance.choice(self._keys): self._any(chance)}
            key = chance.choice(list(value))
            if chance.random() < 0.1:
                return {name: item for name, item in value.items() if name is not key}
            return {**value, key: self._changed(value[key], chance)}
        if isinstance(value, list) and value and chance.random() < 0.8:
            at = chance.randrange(len(value))
            changed = chance.choice(([], [value[at], value[at]], *[[self._changed(value[at], chance)]] * 6))
            return [*value[:at], *changed, *value[at + 1 :]]
        return self._any(chance)

    def _any(self, chance: random.Random) -> Any:
        return chance.choice(self._values if self._values and chance.random() < 0.6 else STRANGE)

    def _by_line(self, data: bytes, chance: random.Random) -> bytes:
        """A line removed, repeated elsewhere, or put in from the corpus."""
        lines = data.splitlines(keepends=True) or [b""]
        at, to = chance.randrange(len(lines)), chance.randrange(len(lines) + 1)
        match chance.randrange(3):
            case 0:
                del lines[at]
            case 1:
                lines.insert(to, lines[at])
            case _:
                lines.insert(to, chance.choice(self._lines))
        return b"".join(lines)

    def _learn(self, value: Any) -> None:
        self._values.append(value)
        if isinstance(value, dict):
            self._keys += map(str, value)
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            self._learn(item)


def _pieces(data: bytes) -> Iterator[tuple[int, int]]:
    """Where JSON or YAML may stand: the whole input, what follows the first line, each line from its first brace."""
    yield 0, len(data)
    begin = 0
    for line in data.splitlines(keepends=True):
        end = begin + len(line.rstrip(b"\r\n"))
        if (brace := data.find(b"{", begin, end)) >= 0:
            yield brace, end
        if begin == 0:
            yield len(line), len(data)
        begin += len(line)


def _read(text: bytes) -> Any:
    """The value that a text states; None for one that states none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if len(text) > _MAX_YAML or b"\n" not in text:
        return None
    try:
        # without what JSON can't say, such as a list within itself
        return json.loads(json.dumps(yaml.safe_load(text), default=str))
    except (yaml.YAMLError, ValueError, RecursionError, TypeError):
        return None
