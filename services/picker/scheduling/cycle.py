"""The state of one scheduling cycle: the request, the view, and what plugins have produced so far.

Plugins read attributes through the cycle, which records what they read. So the explanation of a decision shows the
numbers that it was made with.
"""

from collections.abc import Callable, Collection, Mapping
from math import inf
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct

from services.picker.request import BYTES_PER_TOKEN, Refusal, Request, prompt_tokens
from services.picker.scheduling.record import PluginFailure, ProfileRun
from services.picker.state.layout import Floats, Layout, Mask, Rows
from services.picker.state.view import View
from shared.attributes import AttributeKey
from shared.config.schema import StaleMetrics
from shared.plugin import Plugin, Role
from shared.plugin_failures import reason_of

T = TypeVar("T")

FLOAT = np.dtype(np.float64)
EVER = np.finfo(np.float64).min
"""A time before which nothing was sampled, and after which everything that ever was."""


_NOTHING: Mapping[Plugin, Any] = MappingProxyType({})

OnPluginFailure = Callable[[str, Exception, str], None]
"""Hears of a plugin's failure: the plugin's name, the exception, the request's id."""


class PrefixMatch(Struct, frozen=True):
    """How much of the prompt each endpoint probably has in its KV cache."""

    matched: Floats
    """Leading blocks held, by the layout's positions."""
    total: int
    """Blocks of the prompt."""
    block_tokens: int


def _check(key: AttributeKey[Any], match: PrefixMatch, size: int) -> None:
    """Raises ValueError for a match of other endpoints than there are, or with numbers that none can be."""
    matched, total = match.matched, match.total
    if type(matched) is not np.ndarray or matched.dtype is not FLOAT or matched.ndim != 1:
        raise ValueError(f"{key}: matched must be a one-dimensional float64 array")
    if len(matched) != size:
        raise ValueError(f"{key} has values of {len(matched)} endpoints; there are {size}")
    # a NaN is the least and the most
    if size and not (matched.item(matched.argmin()) >= 0.0 and matched.item(matched.argmax()) <= total < inf):
        raise ValueError(f"{key}: every value of matched must be from 0 to the total of {total} blocks")
    if not 0 <= match.block_tokens < inf:
        raise ValueError(f"{key}: block_tokens is {match.block_tokens}; it must be 0 or more")


PREFIX_MATCH = AttributeKey("PrefixCacheMatchInfo", "approx-prefix-cache-producer", PrefixMatch)
"""Made for each request by `approx-prefix-cache-producer`."""


class MediaTokens(Struct, frozen=True):
    """Tokens of a prompt's pictures and videos, which its bytes don't show."""

    ends: Floats
    """Bytes of the prompt up to the end of each, ascending."""
    tokens: Floats
    """Tokens of all up to each."""


TOKENIZED_PROMPT = AttributeKey("TokenizedPrompt", "token-producer", MediaTokens)
"""Made by `token-producer` for prompts with pictures or videos; it has raised `Cycle.prompt_tokens` by them."""
IN_FLIGHT_LOAD = AttributeKey("InFlightLoad", "inflight-load-producer", float)
"""Requests and tokens in flight, of all pickers; kept by the view, weighed by `inflight-load-producer`."""


class Samples(Struct, frozen=True):
    """Numbers as a plugin read them, for some rows. Without times: the picker's own, of the moment."""

    rows: Rows
    values: Floats
    at: Floats | None = None
    """Sample times; minus infinity where the endpoint doesn't have the attribute."""
    fresh: Mask | None = None
    """Which are known and not stale."""


MAX_KEPT = 64
"""Results by one attribute that are kept until it changes: of each plugin, and of the endpoints it looked at."""


class _CachedResult(Struct, frozen=True):
    """What was made of some rows' values, which were all fresh."""

    made: Floats | Rows
    samples: Samples
    oldest: float
    """The oldest sample time among them: while that is fresh, they all are."""


class Cycle:
    """The state of one decision that plugins see."""

    def __init__(
        self,
        request: Request,
        view: View,
        now: float,
        random: np.random.Generator,
        stale: StaleMetrics,
        *,
        model: str,
        priority: int = 0,
        candidates: Rows,
        failed: OnPluginFailure = lambda *_: None,
        tokens: int = 0,
    ) -> None:
        """`tokens` are the prompt's, where they have been counted."""
        self.request = request
        self.view = view
        self.layout: Layout = view.layout
        self.now = now
        self.random = random
        self.stale = stale
        self.model = model
        """The target model: the request's, after rewriting."""
        self.priority = priority
        self.candidates = candidates
        self.prompt_tokens = tokens or prompt_tokens(request)
        self.ranked_last: Mapping[int, str] = view.health.unhealthy
        """Rows that are picked only where no other is left, each with the reason."""
        self._oldest = EVER if stale.policy == "lastKnown" else now - stale.after
        self.refusal: Refusal | None = None
        """The answer to the client if a filter leaves no endpoint, instead of the usual one."""
        self.prepared: Mapping[Plugin, Any] = _NOTHING
        """Results of `Producer.prepare`, by the producer."""
        self.unprepared: Collection[str] = ()
        """Producers whose `prepare` failed."""
        self.remembered: Mapping[Plugin, Any] = _NOTHING
        """What plugins remember until the request is over, by plugin."""
        self.runs: Mapping[str, ProfileRun] = {}
        """The profiles that have run so far, by name."""
        self._products: dict[str, Any] = {}
        self.samples: dict[str, Samples] = {}
        """What was read, by name; of several samples of one attribute that of the most endpoints stands."""
        self.reads: list[str] = []
        """The names in the order in which they were read."""
        self.failed = failed
        """Hears of every failure of a plugin."""
        self.failures: list[PluginFailure] = []
        """Plugins that failed on this request."""

    def plugin_failed(self, plugin: Plugin, role: Role, error: Exception) -> None:
        """Record that the plugin raised, or that its result can't be used. The decision goes on without it."""
        self.failures.append(PluginFailure(plugin.name, role.value, reason_of(error)))
        self.failed(plugin.name, error, self.request.id)

    def remember(self, plugin: Plugin, value: Any) -> None:
        """Keep what a plugin needs until the request is over. Its response has it: `exchange.remembered[plugin]`."""
        self.remembered = {**self.remembered, plugin: value}

    def put(self, key: AttributeKey[T], value: T) -> None:
        """Store what a producer found out about this request."""
        self._products[key.wire] = value

    def check(self, key: AttributeKey[Any]) -> None:
        """Raises ValueError for a prefix match that scores can't be made of."""
        value = self._products.get(key.wire)
        if isinstance(value, PrefixMatch):
            _check(key, value, len(self.layout.endpoints))

    def drop(self, key: AttributeKey[Any]) -> None:
        """Discard the product of a producer that failed."""
        self._products.pop(key.wire, None)

    def get(self, key: AttributeKey[T]) -> T | None:
        """What a producer found out; None when none did."""
        found: T | None = self._products.get(key.wire)
        return found

    def read(self, key: AttributeKey[float], rows: Rows, after: float | None = None) -> Samples:
        """The attribute's values for the rows; `after` is the age in seconds from which they are stale.

        Under `lastKnown` a stale value counts as fresh; one that never was doesn't.
        """
        column = self.view.columns.numbers(key.wire)
        values, at = column.values, column.at
        if rows is not self.layout.all_rows:
            values, at = values.take(rows), at.take(rows)
        samples = Samples(rows, values, at, at >= self.oldest(after))
        self.keep(key.wire, samples)
        return samples

    def oldest(self, after: float | None = None) -> float:
        """The sample time before which an attribute is stale."""
        return self._oldest if after is None or self.stale.policy == "lastKnown" else self.now - after

    def note(self, name: str, rows: Rows, values: Floats) -> None:
        """Record a number for the explanation that isn't a scraped attribute: load in flight, matched blocks. Raises
        ValueError where there isn't one for each row."""
        if len(values) != len(rows):
            raise ValueError(f"{name}: {len(values)} values of {len(rows)} endpoints")
        self.keep(name, Samples(rows, values))

    def keep(self, name: str, samples: Samples) -> None:
        """Record what was read for the explanation, even if it was read for an earlier decision. What a filter read of
        the endpoints that it removed isn't lost when a scorer reads the same of the others."""
        self.reads.append(name)
        before = self.samples.get(name)
        if before is None or len(before.rows) <= len(samples.rows):
            self.samples[name] = samples

    def score_by(self, key: AttributeKey[float], rows: Rows, formula: Callable[[Floats], Floats]) -> Floats:
        """Scores by an attribute: the formula over the fresh values, the configured policy for the others. Not to be
        changed: requests come more often than metrics, so the scores of rows that nobody can change, such as all
        endpoints, are kept until a value changes."""
        if rows.flags.writeable:
            return self._score(self.read(key, rows), formula)
        kept: Floats | None = self._cached(key, rows, formula)
        if kept is not None:
            return kept
        samples = self.read(key, rows)
        scores = self._score(samples, formula)
        self._cache_result(key, samples, formula, scores)
        return scores

    def rows_by(self, key: AttributeKey[float], rows: Rows, condition: Callable[[Floats], Mask]) -> Rows | None:
        """Those of the rows whose values of an attribute the condition holds for; None unless all values are fresh.
        Kept, and not to be changed, as scores are."""
        kept: Rows | None = self._cached(key, rows, condition)
        if kept is not None:
            return kept
        samples = self.read(key, rows)
        if samples.fresh is not None and not np.logical_and.reduce(samples.fresh):
            return None
        passes = condition(samples.values)
        found: Rows = rows if np.logical_and.reduce(passes) else rows[passes]
        self._cache_result(key, samples, condition, found)
        return found

    def _cached(self, key: AttributeKey[float], rows: Rows, by: Callable[[Floats], Any]) -> Any:
        """What was made of these rows before, if no value has changed or got stale since."""
        if rows.flags.writeable:
            return None
        known: _CachedResult | None = self.view.columns.numbers(key.wire).derived.get((by, id(rows)))
        if known is None or known.oldest < self._oldest:
            return None
        self.keep(key.wire, known.samples)
        return known.made

    def _cache_result(
        self, key: AttributeKey[float], samples: Samples, by: Callable[[Floats], Any], made: Floats | Rows
    ) -> None:
        """Keep what was made of all fresh values. It holds its rows, so that no others get their identity."""
        rows, at = samples.rows, samples.at
        if rows.flags.writeable or at is None or not len(rows):
            return
        if (oldest := float(np.minimum.reduce(at))) >= self._oldest:
            derived = self.view.columns.numbers(key.wire).derived
            if len(derived) >= MAX_KEPT:
                derived.clear()
            made.flags.writeable = False
            derived[by, id(rows)] = _CachedResult(made, samples, oldest)

    def _score(self, samples: Samples, formula: Callable[[Floats], Floats]) -> Floats:
        fresh = samples.fresh
        if fresh is None or np.logical_and.reduce(fresh):
            return formula(samples.values)
        return self.fill(fresh, formula(samples.values[fresh]))

    def fill(self, fresh: Mask, scores: Floats) -> Floats:
        """Scores of the fresh rows, spread over all rows: the others get 0, or under `ignore` the mean."""
        rest = float(scores.mean()) if self.stale.policy == "ignore" and len(scores) else 0.0
        filled = np.full(len(fresh), rest)
        filled[fresh] = scores
        return filled

    def uncached_tokens(self, rows: Rows) -> Floats:
        """Prompt tokens that each endpoint would have to compute. Shape: (rows,)."""
        match = self.get(PREFIX_MATCH)
        if match is None:
            return np.full(len(rows), float(self.prompt_tokens))
        cached = match.matched.take(rows) * match.block_tokens
        if (media := self.get(TOKENIZED_PROMPT)) is not None:
            before = np.searchsorted(media.ends, cached * BYTES_PER_TOKEN, "right")
            cached = cached + np.concatenate(([0.0], media.tokens))[before]
        return np.maximum(self.prompt_tokens - cached, 0.0)

    def uncached_tokens_at(self, row: int) -> int:
        """Prompt tokens that this endpoint has to compute."""
        if self.get(TOKENIZED_PROMPT) is not None:
            return int(self.uncached_tokens(np.array([row], np.intp))[0])
        match = self.get(PREFIX_MATCH)
        cached = 0 if match is None else int(match.matched[row]) * match.block_tokens
        return max(self.prompt_tokens - cached, 0)

    def __repr__(self) -> str:
        return f"<Cycle {self.request.id!r}: {len(self.candidates)} candidates>"
