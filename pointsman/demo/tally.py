"""What became of the load: counts and times, kept as the answers come in. No clock of its own.

A request has failed when it gets another status than 200, a wrong answer or none, or when its answer breaks off. One
thing only is no failure: an answer that a killed server had begun. Nobody can save that one, so the client sends the
request again; it is counted, and shown with the kill that it belongs to. That it had begun, the client has seen by its
head, or Envoy says so; a request that just ended without an answer should have gone to another server.
"""

from collections import Counter, deque

from msgspec import Struct

from pointsman.demo.answers import Usage
from pointsman.demo.stats import Distribution, Recent

SPAN = 10.0
"""Seconds that "now" means in figures of the last moments."""
_REASONS = 20
"""Reasons of failures that are kept apart; all further ones count as `OTHER`."""
OTHER = "other reasons"


class Kill(Struct):
    """A model server that was killed."""

    server: str
    at: float
    cut: int = 0
    """Answers that it had begun and that were cut off."""
    unseen: int = 0
    """Those of them whose head Envoy still held, so that the client saw nothing."""


class Tally:
    """Counts of requests, their times in seconds, and the prompt tokens that caches held."""

    def __init__(self) -> None:
        self.sent = 0
        self.right = 0
        self.failed = 0
        self.held = 0
        """Requests that had to wait because too many were open."""
        self.cut = 0
        self.unseen = 0
        self.kills: deque[Kill] = deque(maxlen=50)
        self.reasons: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        """Right answers by server."""
        self.first_token = Distribution()
        self.whole = Distribution()
        self.first_token_now = Recent(SPAN)
        self.whole_now = Recent(SPAN)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._prompt_now = Recent(SPAN)
        self._cached_now = Recent(SPAN)

    @property
    def open(self) -> int:
        """Requests that have no outcome yet."""
        return self.sent - self.right - self.failed

    @property
    def hit_share(self) -> float | None:
        """Share of all prompt tokens that a prefix cache held."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    def rate_now(self, now: float, running: float) -> float:
        """Right answers a second, lately; `running` is for how many seconds there has been load."""
        return len(self.whole_now.values(now)) / max(min(SPAN, running), 1.0)

    def hit_share_now(self, now: float) -> float | None:
        """`hit_share` of the answers that came lately."""
        prompt = sum(self._prompt_now.values(now))
        return sum(self._cached_now.values(now)) / prompt if prompt else None

    def is_right(self, server: str, usage: Usage, first: float | None, whole: float, now: float) -> None:
        """A request got its right answer, `whole` seconds after it was first sent; `first` is to a streamed answer's
        first token."""
        self.right += 1
        self.served[server] += 1
        self.whole.add(whole)
        self.whole_now.add(whole, now)
        if first is not None:
            self.first_token.add(first)
            self.first_token_now.add(first, now)
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self._prompt_now.add(usage.prompt_tokens, now)
        self._cached_now.add(usage.cached_tokens, now)

    def has_failed(self, reason: str) -> None:
        """A request is lost, and why."""
        self.failed += 1
        self.reasons[reason if reason in self.reasons or len(self.reasons) < _REASONS else OTHER] += 1

    def killed(self, server: str, now: float) -> Kill:
        """Note that the demo kills this server now; to be called before it does."""
        kill = Kill(server, now)
        self.kills.append(kill)
        return kill

    def killed_since(self, started: float) -> bool:
        """Whether a server was killed since."""
        return any(kill.at >= started for kill in self.kills)

    def is_cut(self, server: str, started: float, *, unseen: bool = False) -> bool:
        """An answer that this server had begun to an attempt of `started` broke off: whether because of a kill.

        `unseen`: Envoy says that it had begun; the client has not seen its head.
        """
        for kill in reversed(self.kills):
            if kill.at >= started and kill.server == server:
                kill.cut += 1
                kill.unseen += unseen
                self.cut += 1
                self.unseen += unseen
                return True
        return False

    def __repr__(self) -> str:
        return f"<Tally {self.sent} sent, {self.right} right, {self.failed} failed, {self.cut} cut, {self.open} open>"
