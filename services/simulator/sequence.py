"""One request in the engine: what it asks for, how far it is, which blocks it holds."""

from msgspec import Struct

from services.simulator.counters import FinishReason
from services.simulator.tokens import BYTES_PER_TOKEN, Prompt, block_hashes, chain_seed


class Work(Struct, frozen=True, kw_only=True):
    """What the engine is asked to do: read a prompt and write an answer that is known beforehand."""

    id: str
    prompt: Prompt
    output: bytes = b""
    """The answer, `BYTES_PER_TOKEN` bytes a token; empty for an embedding, which is done when the prompt is read."""
    finish: FinishReason = FinishReason.LENGTH
    adapter: str = ""
    stream: bool = False
    """Whether every token is reported, or only the end."""
    max_tokens: int = 0
    """Output tokens that the client allowed."""
    choices: int = 1
    """The request's `n` with its first choice, 0 with the others: metrics count requests once."""

    @property
    def output_tokens(self) -> int:
        return len(self.output) // BYTES_PER_TOKEN


class Progress(Struct, frozen=True):
    """How far a request is: reported at every token of a stream, and at the end of every request."""

    id: str
    at: int
    """When, in nanoseconds of the engine's clock."""
    tokens: int
    """Output tokens so far."""
    cached_tokens: int
    """Prompt tokens that the prefix cache had."""
    finished: bool


class Sequence:
    """The state of one piece of work. Times are nanoseconds of the engine's clock."""

    def __init__(self, work: Work, now: int) -> None:
        self.work = work
        self.data = work.prompt.data + work.output
        self.prompt_tokens = work.prompt.tokens
        self.arrived_at = now
        self.admitted_at = -1
        self.first_token_at = -1
        self.last_token_at = -1
        self.running = False
        self.deferred = False
        """Whether it waits for its adapter."""
        self.generated = 0
        self.computed = 0
        """Tokens whose keys and values are in the cache."""
        self.target = self.prompt_tokens
        """Tokens to compute before the next output token comes out of a prefill."""
        self.cached_tokens = 0
        self.preemptions = 0
        self.blocks = 0
        """Blocks that it holds, in all."""
        self.held: list[int] = []
        """Those of them that are full, by their hashes."""
        self._chain: list[int] = []

    @property
    def decoding(self) -> bool:
        return self.computed >= self.target

    @property
    def remaining(self) -> int:
        """Output tokens still to come."""
        return self.work.output_tokens - self.generated

    def hashes(self, count: int, block_tokens: int) -> list[int]:
        """The hashes of its first `count` blocks, prompt and answer in one run."""
        have = len(self._chain)
        if have < count:
            size = block_tokens * BYTES_PER_TOKEN
            parent = self._chain[-1] if have else chain_seed(self.work.adapter)
            self._chain += block_hashes(self.data[have * size : count * size], block_tokens, parent)
        return self._chain[:count]

    def full_blocks(self, block_tokens: int) -> int:
        """Blocks that are full of computed tokens."""
        beyond = max(0, self.computed - self.prompt_tokens) * BYTES_PER_TOKEN
        known = min(self.computed * BYTES_PER_TOKEN, len(self.work.prompt.data)) + beyond
        return known // (block_tokens * BYTES_PER_TOKEN)

    def __repr__(self) -> str:
        state = "waiting" if not self.running else "decoding" if self.decoding else "prefilling"
        return (
            f"<Sequence {self.work.id} {state}, {self.computed} computed, "
            f"{self.generated} of {self.work.output_tokens} generated, {self.blocks} blocks>"
        )
