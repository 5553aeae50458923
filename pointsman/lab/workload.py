"""The requests of a simulation: a seeded workload of prompts that share prefixes, or a trace of one's own.

A trace is a file of JSON lines, one a request, in the order of their arrivals. Its prompts are texts, or hashes of
blocks that stand for equal texts where they are equal, as in published traces (Mooncake's field names are read, too).
"""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

BYTES_PER_TOKEN = 4
"""As the picker and the simulated servers count."""


class Arrival(Struct, frozen=True):
    """One request."""

    at: float
    """Seconds from the beginning."""
    prompt: bytes
    """`BYTES_PER_TOKEN` bytes a token."""
    output_tokens: int
    model: str = "simulated"


class Groups(Struct, frozen=True, kw_only=True):
    """Groups of prompts with a common prefix, some much more frequent than others (Zipf's law), at random times."""

    rate: float = 50.0
    """Requests a second, on average."""
    seconds: float = 60.0
    groups: int = 96
    skew: float = 0.6
    """Exponent of Zipf's law; 0: all groups are as frequent."""
    prefix_tokens: int = 1000
    own_tokens: int = 50
    """Tokens of a prompt after its prefix, on average; uniform from half to one and a half, as is the output."""
    output_tokens: int = 16

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """The same requests for the same seed."""
        random = Random(f"arrivals {seed}")
        shares = list(accumulate((number + 1) ** -self.skew for number in range(self.groups)))
        prefixes = [Random(f"{seed} {number}").randbytes(self.prefix_tokens * BYTES_PER_TOKEN) for number in shares]
        at = 0.0
        while (at := at + random.expovariate(self.rate)) < self.seconds:
            [prefix] = random.choices(prefixes, cum_weights=shares)
            own = random.randbytes(_about(random, self.own_tokens) * BYTES_PER_TOKEN)
            yield Arrival(at, prefix + own, max(_about(random, self.output_tokens), 1))


def _about(random: Random, mean: int) -> int:
    return random.randint(mean - mean // 2, mean + mean // 2)


class TraceError(ValueError):
    """A line of a trace can't be used."""


MAX_LINE = 64 * 2**20
"""Bytes of a line."""
MAX_TOKENS = 10_000_000
"""Of a prompt, or an output."""
MAX_SECONDS = 86_400.0
"""From the first request of a trace to its last: idle time is simulated, too, at some 10 ms a second."""
Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class _Line(Struct, frozen=True):
    """A line of a trace. One of `arrival` and `timestamp`, and one of `prompt` and the hashes, are needed."""

    arrival: Annotated[float, Meta(ge=0)] | None = None
    """Seconds."""
    timestamp: Annotated[float, Meta(ge=0)] | None = None
    """Milliseconds."""
    prompt: str | None = None
    hashes: list[int] | None = None
    hash_ids: list[int] | None = None
    tokens: Count | None = None
    """Of the prompt."""
    input_length: Count | None = None
    output_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    output_length: Count | None = None
    model: str = field(default="simulated")


class Trace(Struct, frozen=True, kw_only=True):
    """A file of requests."""

    path: str
    hash_tokens: int = 512
    """Tokens for which a hash stands."""
    speed: float = 1.0
    """How much faster the requests come than they did."""

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """The requests; the first one comes at once. Raises `TraceError`, or OSError."""
        first = last = -1.0
        with Path(self.path).open("rb") as lines:
            for number, text in enumerate(iter(lambda: lines.readline(MAX_LINE + 1), b""), 1):
                if not text.strip():
                    continue
                try:
                    if len(text) > MAX_LINE:
                        raise ValueError(f"more than {MAX_LINE} bytes")
                    line = msgspec.json.decode(text, type=_Line)
                    at = self._at(line)
                    if at < last:
                        raise ValueError("it arrives before the request of the line above")
                    first, last = at if first < 0 else first, at
                    since = (at - first) / self.speed
                    if since > MAX_SECONDS:
                        field = "timestamp" if line.arrival is None else "arrival"
                        raise ValueError(
                            f"`{field}` {getattr(line, field):.15g} is {since:.6g} s after the first request, at speed"
                            f" {self.speed:g}; at most {MAX_SECONDS:g} s are simulated"
                        )
                    output = line.output_tokens or line.output_length or 1
                    yield Arrival(since, self._prompt(line, number), output, line.model)
                except ValueError as error:
                    raise TraceError(f"{self.path}, line {number}: {error}") from error

    def _at(self, line: _Line) -> float:
        if line.arrival is not None:
            return line.arrival
        if line.timestamp is None:
            raise ValueError("neither `arrival` (seconds) nor `timestamp` (milliseconds)")
        return line.timestamp / 1000.0

    def _prompt(self, line: _Line, number: int) -> bytes:
        if line.prompt is not None:
            return line.prompt.encode()
        hashes = line.hash_ids if line.hashes is None else line.hashes
        if hashes is None:
            raise ValueError("neither `prompt` nor `hashes`")
        if len(hashes) * self.hash_tokens > MAX_TOKENS:
            raise ValueError(f"the hashes stand for more than {MAX_TOKENS} tokens")
        size = self.hash_tokens * BYTES_PER_TOKEN
        prompt = b"".join(_filled(f"hash {hash} ", size) for hash in hashes)
        tokens = line.input_length if line.tokens is None else line.tokens
        wanted = len(prompt) if tokens is None else tokens * BYTES_PER_TOKEN
        return prompt[:wanted] + _filled(f"line {number} ", max(wanted - len(prompt), 0))


def _filled(text: str, size: int) -> bytes:
    """The text, again and again."""
    word = text.encode()
    return (word * (size // len(word) + 1))[:size]
