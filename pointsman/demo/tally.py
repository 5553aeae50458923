"""What became of the requests: counts and times, kept as responses arrive. It has no clock of its own.

A request fails if it gets a status other than 200, a wrong response or none, or if its response breaks off. One case is
no failure: the demo killed the server that had begun to respond, or that computed its prompt. Nothing can save such a
response, so the client sends the request again; it is counted, and shown with the kill that interrupted it. The client
has seen the beginning itself, or Envoy reports it. A request that ended without a response should have gone to another
server, so it has failed.
"""

from collections import Counter, deque

from msgspec import Struct

from pointsman.demo.responses import Usage
from pointsman.demo.stats import Samples

WINDOW = 10.0
"""Seconds that recent figures cover."""
_REASONS = 20
"""Reasons of failures that are counted apart; further ones count as `OTHER`."""
OTHER = "other reasons"


class Kill(Struct):
    """A model server that the demo killed."""

    server: str
    at: float
    interrupted: int = 0
    """Responses that the server had begun."""
    unseen: int = 0
    """Interrupted responses of which Envoy had passed nothing on."""
    prefills: bool = False
    """Whether it only computes prompts. Decode servers answer 502 if it is gone."""
    back: float | None = None
    """When it ran again."""


class LoadFigures(Struct, frozen=True, kw_only=True):
    """The load at one moment: counts since its start, the other figures of the last `WINDOW` seconds."""

    succeeded: int = 0
    open: int = 0
    failed: int = 0
    interrupted: int = 0
    rate: float = 0.0
    """Right responses per second."""
    first_token: tuple[float | None, float | None] = (None, None)
    """p50 and p99 of the time to the first token of streamed responses, in seconds."""
    duration: tuple[float | None, float | None] = (None, None)
    """p50 and p99 of the time to the end of a response, in seconds."""
    cached: float | None = None
    """Share of the prompt tokens that a prefix cache held."""


class Tally:
    """Counts of requests, times in seconds, and the prompt tokens that caches held."""

    def __init__(self) -> None:
        self.sent = 0
        self.succeeded = 0
        self.failed = 0
        self.throttled = 0
        """Requests that waited because too many were open."""
        self.interrupted = 0
        self.unseen = 0
        self.kills: deque[Kill] = deque(maxlen=50)
        self.reasons: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        """Right responses by server."""
        self.first_token = Samples()
        self.duration = Samples()
        self._prompt_tokens = Samples()
        self._cached_tokens = Samples()

    @property
    def open(self) -> int:
        """Requests without an outcome."""
        return self.sent - self.succeeded - self.failed

    def cached_share(self, since: float = 0.0) -> float | None:
        """Share of the prompt tokens that a prefix cache held."""
        prompts = sum(self._prompt_tokens.values(since))
        return sum(self._cached_tokens.values(since)) / prompts if prompts else None

    def figures(self, now: float, elapsed: float) -> LoadFigures:
        """The figures now, `elapsed` seconds after the first request."""
        since = now - WINDOW
        return LoadFigures(
            succeeded=self.succeeded,
            open=self.open,
            failed=self.failed,
            interrupted=self.interrupted,
            rate=len(self.duration.values(since)) / max(min(WINDOW, elapsed), 1.0),
            first_token=(self.first_token.quantile(0.5, since), self.first_token.quantile(0.99, since)),
            duration=(self.duration.quantile(0.5, since), self.duration.quantile(0.99, since)),
            cached=self.cached_share(since),
        )

    def add_success(self, server: str, usage: Usage, first_token: float | None, duration: float, now: float) -> None:
        """A request got its right response; only a streamed one has a time to the first token."""
        self.succeeded += 1
        self.served[server] += 1
        self.duration.add(duration, now)
        if first_token is not None:
            self.first_token.add(first_token, now)
        self._prompt_tokens.add(usage.prompt_tokens, now)
        self._cached_tokens.add(usage.cached_tokens, now)

    def add_failure(self, reason: str) -> None:
        self.failed += 1
        self.reasons[reason if reason in self.reasons or len(self.reasons) < _REASONS else OTHER] += 1

    def add_kill(self, server: str, now: float, *, prefills: bool = False) -> Kill:
        """The demo is about to kill this server."""
        kill = Kill(server, now, prefills=prefills)
        self.kills.append(kill)
        return kill

    def killed_since(self, started: float) -> bool:
        return any(kill.at >= started for kill in self.kills)

    def count_interrupted(self, server: str, started: float, *, unseen: bool = False) -> bool:
        """Whether a kill of this server interrupted the response to an attempt that started then; counts it if so.

        `unseen`: Envoy reports that the response had begun; the client has seen nothing of it.
        """
        for kill in reversed(self.kills):
            if kill.at >= started and kill.server == server:
                kill.interrupted += 1
                kill.unseen += unseen
                self.interrupted += 1
                self.unseen += unseen
                return True
        return False

    def count_unprefilled(self, started: float) -> bool:
        """Whether a prefill server was gone during an attempt that started then; counts the attempt if so."""
        for kill in reversed(self.kills):
            if kill.prefills and (kill.back is None or started <= kill.back):
                kill.interrupted += 1
                self.interrupted += 1
                return True
        return False

    def __repr__(self) -> str:
        return f"<Tally {self.sent} sent, {self.succeeded} succeeded, {self.failed} failed, {self.open} open>"
