"""A request in the engine: its prompt and answer, its progress, its blocks; and the steps that compute it."""

from msgspec import Struct

from services.simulator.counters import FinishReason
from services.simulator.tokens import BYTES_PER_TOKEN, Prompt, block_hashes, chain_seed


class EngineRequest(Struct, frozen=True, kw_only=True):
    """A prompt to read and an answer to write, which is known beforehand."""

    id: str
    prompt: Prompt
    output: bytes = b""
    """The answer, `BYTES_PER_TOKEN` bytes a token; empty for an embedding, which ends with the prefill."""
    finish: FinishReason = FinishReason.LENGTH
    adapter: str = ""
    stream: bool = False
    """Whether to report every token, or only the end."""
    max_tokens: int = 0
    """The client's limit of output tokens."""
    choices: int = 1
    """The client's `n` in its first choice, 0 in the others, because metrics count it once."""
    transferred: int = 0
    """Prompt tokens that a prefill server has computed: their blocks are here when the request is admitted."""
    remote_cached: int | None = None
    """Prompt tokens that the prefill server had in its cache, which the usage reports instead of this one's."""

    @property
    def output_tokens(self) -> int:
        return len(self.output) // BYTES_PER_TOKEN


class RequestOutput(Struct, frozen=True):
    """The progress of a request: reported for every token of a stream, and at the end of every request."""

    id: str
    at: int
    """Nanoseconds of the engine's clock."""
    tokens: int
    """Output tokens so far."""
    cached_tokens: int
    """Prompt tokens that the prefix cache had."""
    finished: bool


class Sequence:
    """The state of a request. Times are nanoseconds of the engine's clock."""

    def __init__(self, request: EngineRequest, now: int) -> None:
        self.request = request
        self.data = request.prompt.data + request.output
        self.prompt_tokens = request.prompt.tokens
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
        """Tokens to compute before a prefill gives the next output token."""
        self.cached_tokens = 0
        self.preemptions = 0
        self.blocks = 0
        """All blocks that it holds."""
        self.held: list[int] = []
        """The hashes of its full blocks."""
        self._chain: list[int] = []

    @property
    def decoding(self) -> bool:
        return self.computed >= self.target

    @property
    def remaining(self) -> int:
        """Output tokens still to come."""
        return self.request.output_tokens - self.generated

    def hashes(self, count: int, block_tokens: int) -> list[int]:
        """The hashes of its first `count` blocks, over prompt and answer."""
        have = len(self._chain)
        if have < count:
            size = block_tokens * BYTES_PER_TOKEN
            parent = self._chain[-1] if have else chain_seed(self.request.adapter)
            self._chain += block_hashes(self.data[have * size : count * size], block_tokens, parent)
        return self._chain[:count]

    def full_blocks(self, block_tokens: int) -> int:
        """Blocks that are full of computed tokens."""
        beyond = max(0, self.computed - self.prompt_tokens) * BYTES_PER_TOKEN
        known = min(self.computed * BYTES_PER_TOKEN, len(self.request.prompt.data)) + beyond
        return known // (block_tokens * BYTES_PER_TOKEN)

    def __repr__(self) -> str:
        state = "waiting" if not self.running else "decoding" if self.decoding else "prefilling"
        return (
            f"<Sequence {self.request.id} {state}, {self.computed} computed, "
            f"{self.generated} of {self.request.output_tokens} generated, {self.blocks} blocks>"
        )


class Step(Struct):
    """One step of the engine: requests that decode, and prompts to read, each with a number of tokens."""

    end: int
    duration: int
    decoders: list[Sequence]
    chunks: list[tuple[Sequence, int]]
    disturbed: bool = False
    """Whether the next step will differ: a request has left, or the speed has changed."""
