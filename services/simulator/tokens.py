"""Tokens without a tokenizer: every four bytes are a token, as in the picker's estimate.

Answers consist of words of four bytes, so that the tokens of a prompt and its answer align. The blocks of a turn of a
conversation are then found again when the next turn repeats them.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
from msgspec import Struct
from xxhash import xxh3_64_intdigest

BYTES_PER_TOKEN = 4

_PIECES = tuple(
    word + b" "
    for word in (
        b"all and any are but can day did end far few fly for get got had has her him his how its let lot man "
        b"map may men met new not now off old one our out own pay put ran rod run saw say see set she six sky ten the "
        b"tie too top two use via was way who why yes yet you"
    ).split()
)


class Prompt(Struct, frozen=True):
    """A prompt: `BYTES_PER_TOKEN` bytes a token, the last one possibly shorter."""

    data: bytes

    @property
    def tokens(self) -> int:
        """Length in tokens, at least one."""
        return max(1, -(-len(self.data) // BYTES_PER_TOKEN))


def from_text(text: str) -> Prompt:
    """The prompt of a text. Lone surrogates, which JSON allows and UTF-8 doesn't, count as `?`."""
    return Prompt(text.encode("utf-8", "replace"))


def from_ids(ids: Sequence[int]) -> Prompt:
    """The prompt of token ids. Raises ValueError unless all fit into 32 bits."""
    try:
        return Prompt(struct.pack(f"<{len(ids)}I", *ids))
    except struct.error as error:
        bad = next((id for id in ids if not 0 <= id < 2**32), None)
        raise ValueError(f"{bad} isn't a token id; expected 0 to 4294967295") from error


class Message(Struct, frozen=True):
    """The fields of a chat message that a chat template reads."""

    role: str
    content: str | list[str | dict[str, Any]] | None = None
    tool_calls: Any = None


def from_messages(messages: Iterable[Message], tools: Any = None) -> Prompt:
    """The prompt of a chat in the ChatML layout.

    Parts that aren't text are replaced by their type and a digest: the same image has the same tokens.
    """
    turns = [f"<|im_start|>tools\n{json.dumps(tools, sort_keys=True)}<|im_end|>\n"] if tools else []
    for message in messages:
        turns.append(f"<|im_start|>{message.role}\n{_content(message)}<|im_end|>\n")
    turns.append("<|im_start|>assistant\n")
    return from_text("".join(turns))


def _content(message: Message) -> str:
    content = message.content
    text = "".join(map(_part, content)) if isinstance(content, list) else content or ""
    calls = message.tool_calls
    return f"{text}{json.dumps(calls, sort_keys=True)}" if calls else text


def _part(part: str | dict[str, Any]) -> str:
    if isinstance(part, str):
        return part
    if part.get("type") == "text":
        return str(part.get("text", ""))
    digest = xxh3_64_intdigest(json.dumps(part, sort_keys=True).encode())
    return f"<|{part.get('type', 'part')}:{digest:016x}|>"


def block_hashes(data: bytes, block_tokens: int, parent: int) -> Iterator[int]:
    """Chained xxh3 hashes of the full blocks of `data`; `parent` is the previous hash or the seed of the chain."""
    size = block_tokens * BYTES_PER_TOKEN
    for start in range(0, len(data) - size + 1, size):
        parent = xxh3_64_intdigest(data[start : start + size], seed=parent)
        yield parent


def chain_seed(adapter: str) -> int:
    """The seed of an adapter's hash chain: its KV values differ from the base model's."""
    return xxh3_64_intdigest(adapter.encode()) if adapter else 0


def fingerprint(prompt: Prompt, seed: int, choice: int = 0) -> int:
    """A hash of prompt, seed and choice, from which the answer is derived."""
    return xxh3_64_intdigest(prompt.data, seed=(seed * 0x9E3779B97F4A7C15 + choice) % 2**64)


def answer_length(mark: int, mean: int) -> int:
    """Tokens after which the model ends the answer itself: uniform from 0.5 to 1.5 times the mean."""
    low, high = max(1, mean // 2), max(1, mean + mean // 2)
    return low + mark % (high - low + 1)


def answer_bytes(mark: int, tokens: int) -> bytes:
    """An answer of that many tokens: words of four bytes, including the space."""
    return b"".join(Random(mark).choices(_PIECES, k=tokens))


def embedding(prompt: Prompt, seed: int, dimensions: int) -> list[float]:
    """A unit vector that depends only on the prompt and the seed."""
    generator = np.random.Generator(np.random.PCG64(fingerprint(prompt, seed)))
    vector = generator.standard_normal(dimensions)
    unit: list[float] = (vector / np.linalg.norm(vector)).tolist()
    return unit
