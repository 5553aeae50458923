"""Requests and responses by model: the series of the Go original."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from services.picker.admin.families import Names
from services.picker.admin.model_labels import OTHER, Labels, ModelLabels, Rank
from services.picker.decision import Decision, RoutedRequest
from services.picker.request import Refusal
from services.picker.responses.usage import Usage
from services.picker.state.histogram import Histogram

FORGOTTEN_AT_ONCE = 20_000
"""Counts that are looked at at once for those of endpoints that have gone: some 2 ms."""
MODELS = 100
"""Models with series of their own. Each takes up to 600 lines of a page; the Go original's limit is 1 000."""

_LATENCY = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0),
    *(30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0),
)
_PER_TOKEN = (
    *(0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5),
    *(2.0, 3.0, 4.5, 6.0, 12.0, 18.0, 24.0, 30.0, 36.0, 48.0, 60.0, 90.0, 120.0, 180.0, 270.0, 360.0),
)
_NORMALIZED = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# The Go original has these bounds, and 32778 instead of 32768: dashboards name them as they are.
_REQUEST_BYTES = tuple(float(64 << power) for power in range(25))
_TO_64K = (1.0, *(float(1 << power) for power in range(3, 15)), 32778.0, 65536.0)
_RESPONSE_BYTES = (*_TO_64K, *(float(1 << power) for power in range(18, 27, 2)))
"""Up to 64 kB the Go original's, which ends there."""
_TOKENS = (*_TO_64K, *(float(1 << power) for power in range(17, 21)))
"""The Go original's; for generated tokens it has only those up to 8192."""

# A member through its enum costs eight times as much as a name of the module in Python 3.11.
_CHOSEN, _REWRITTEN, _SERVED = Rank.CHOSEN, Rank.REWRITTEN, Rank.SERVED
_CODES = {404: "NotFound", 412: "PreconditionFailed", 429: "ResourceExhausted", 503: "ServiceUnavailable"}
_MODEL_SERVER = "ModelServerError"


_HISTOGRAMS = (
    ("duration", "request_duration_seconds", "Time from a request's headers to the end of its response"),
    ("request_bytes", "request_size_bytes", "Sizes of request bodies, as sent by clients"),
    ("response_bytes", "response_size_bytes", "Sizes of response bodies, if the proxy shows them"),
    ("prompt", "request_input_tokens", "Prompt tokens, as reported by responses"),
    ("completion", "request_output_tokens", "Generated tokens, as reported by responses"),
    ("cached", "request_cached_tokens", "Prompt tokens found in the KV cache, as reported by responses"),
    ("normalized", "request_ntpot_seconds", "A request's duration divided by its generated tokens"),
    (
        "first_token",
        "request_ttft_seconds",
        "Time from a request's headers to the first chunk of its streamed response",
    ),
    ("per_token", "request_streaming_tpot_seconds", "Time per token of a stream after the first"),
)
"""Histograms of `Series`: attribute, metric, meaning."""


class Series:
    """The requests for one client's model that went to one target model."""

    def __init__(self, picked: dict[str, int]) -> None:
        self.running = 0
        """Routed requests under way."""
        self.requests: dict[int, int] = {}
        """Routed requests, by priority."""
        self.picked = picked
        """Routed requests, by the id of the endpoint that was their first choice; those of all series of the target."""
        self.errors: dict[str, int] = {}
        self.duration = Histogram(_LATENCY)
        self.request_bytes = Histogram(_REQUEST_BYTES)
        self.response_bytes = Histogram(_RESPONSE_BYTES)
        self.prompt = Histogram(_TOKENS)
        self.completion = Histogram(_TOKENS)
        self.cached = Histogram(_TOKENS)
        self.normalized = Histogram(_NORMALIZED)
        self.first_token = Histogram(_LATENCY)
        self.per_token = Histogram(_PER_TOKEN)

    def failed(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1


class RequestMetrics:
    """Counts requests by model. Not for several threads."""

    def __init__(
        self,
        models: int = MODELS,
        named: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Up to `models` models have series of their own; `named` says which of them a resource names."""
        self._labels = ModelLabels(models, named, self._forget_model, clock)
        self._pairs = Labels[tuple[str, str]](models, self._forget_pair, clock)
        """Keys of series whose two models differ."""
        self.series: dict[tuple[str, str], Series] = {}
        """By client's model and target model."""
        self.rewrites: dict[tuple[str, str, str], int] = {}
        """Rewritten requests, by resource, client's model and target."""
        self.picks: dict[str, int] = {}
        """How often each endpoint was the first choice, by its id."""
        self.scheduled: dict[str, dict[str, int]] = {}
        """The same by target model."""
        self.stages: dict[tuple[str, str], int] = {}
        """Routed requests of disaggregated serving, by target model and the stages that serve them."""
        self.unscheduled: dict[str, int] = {}
        """Requests that scheduling left no endpoint for, by target model."""

    def decided(self, decision: Decision, routed: RoutedRequest | None) -> "OpenRequest | None":
        """Count a decision. The result counts what follows of a routed request."""
        key = model, target = self._key(decision)
        if routed is not None:
            endpoint = routed.picked[0].id
            self.picks[endpoint] = self.picks.get(endpoint, 0) + 1
            if decision.stages:
                stages = target, decision.stages
                self.stages[stages] = self.stages.get(stages, 0) + 1
            if OTHER in key:
                return OpenRequest(self, self._series_of((model, model)), decision.target_model, routed)
            return OpenRequest(self, self._count(routed, key), decision.target_model)
        assert isinstance(decision.outcome, Refusal)
        self._series_of(self._placed(decision, key)).failed(_code(decision.outcome.status))
        if decision.runs and not decision.picked:
            self.unscheduled[target] = self.unscheduled.get(target, 0) + 1
        return None

    def refused(self, status: int) -> None:
        """Count a request that was refused before its model was known."""
        self._series_of(("", "")).failed(_code(status))

    def answered(self, routed: RoutedRequest, status: int | None) -> Series:
        """Count a routed request that waited for its response's status, which may give its models labels. Returns the
        series of its models."""
        if status is not None and status < 400:
            self._labels.answered(routed.request.model, _REWRITTEN)
        return self._count(routed, self._key(routed))

    def served(self, model: str) -> None:
        """A model server has answered a request for this target model without an error."""
        self._labels.answered(model, _SERVED)

    def _key(self, decision: Decision | RoutedRequest) -> tuple[str, str]:
        """The labels of the client's model and of the target model."""
        asked, target = decision.request.model, decision.target_model
        model = self._labels.of(asked)
        if target == asked and not decision.rewrite:
            return model, model
        return model, self._labels.of(target, named=bool(decision.rewrite))

    def _placed(self, decision: Decision | RoutedRequest, key: tuple[str, str]) -> tuple[str, str]:
        """The key of the request's series: these labels, or `OTHER` if there is no room for the pair."""
        if key[0] == key[1]:
            return key
        rank = min(map(self._labels.rank, key)) if decision.rewrite else _CHOSEN
        return key if self._pairs.take(key, rank) else (OTHER, OTHER)

    def _count(self, routed: RoutedRequest, key: tuple[str, str]) -> Series:
        key = self._placed(routed, key)
        series = self.series.get(key) or self._series_of(key)
        series.requests[routed.priority] = series.requests.get(routed.priority, 0) + 1
        endpoint = routed.picked[0].id
        series.picked[endpoint] = series.picked.get(endpoint, 0) + 1
        series.request_bytes.note(routed.request.body_bytes)
        if routed.rewrite:
            rewrite = routed.rewrite, *key
            self.rewrites[rewrite] = self.rewrites.get(rewrite, 0) + 1
        return series

    def fold(self) -> None:
        """Count what was noted."""
        for series in self.series.values():
            series.duration.fold()
            series.request_bytes.fold()

    def running(self) -> Counter[str]:
        """Requests under way, by the client's model."""
        found: Counter[str] = Counter()
        for (model, _), series in self.series.items():
            if model:
                found[model] += series.running
        return found

    def forget_endpoints(self, known: Mapping[str, object], targets: int) -> int:
        """Drop the counts of all other endpoints; of so many target models, if they are few, those first whose turn was
        the longest ago. For how many it is still to be done: there may be a million counts."""
        left = FORGOTTEN_AT_ONCE
        while targets and left > 0 and self.scheduled:
            target, picked = next(iter(self.scheduled.items()))
            self.scheduled[target] = self.scheduled.pop(target)
            left -= len(picked)
            for id in picked.keys() - known.keys():
                del picked[id]
            targets -= 1
        return targets if self.scheduled else 0

    def _forget_model(self, label: str) -> None:
        self._pairs.drop([key for key in self.series if label in key])
        self.series = {key: series for key, series in self.series.items() if label not in key}
        self.rewrites = {key: count for key, count in self.rewrites.items() if label not in key[1:]}
        self.unscheduled.pop(label, None)
        self.scheduled.pop(label, None)
        self.stages = {key: count for key, count in self.stages.items() if key[0] != label}

    def _forget_pair(self, pair: tuple[str, str]) -> None:
        self.series.pop(pair, None)
        self.rewrites = {key: count for key, count in self.rewrites.items() if key[1:] != pair}

    def _series_of(self, key: tuple[str, str]) -> Series:
        series = self.series.get(key)
        if series is None:
            series = self.series[key] = Series(self.scheduled.setdefault(key[1], {}))
        return series

    def __repr__(self) -> str:
        return f"<RequestMetrics {len(self.series)} series, {self.running().total()} running>"


class OpenRequest:
    """A routed request until its end. `uncounted` is what was decided if it waits for its response's status."""

    __slots__ = ("_first_at", "_metrics", "_series", "_target", "_uncounted", "status")

    def __init__(
        self, metrics: RequestMetrics, series: Series, target: str, uncounted: RoutedRequest | None = None
    ) -> None:
        self._metrics = metrics
        self._series = series
        self._target = target
        self._uncounted = uncounted
        self._first_at: float | None = None
        self.status: int | None = None
        """Of the response, once it is known."""
        series.running += 1

    def answered(self, status: int | None) -> None:
        """The response's headers have come, or the request is over."""
        self.status = status
        if status is not None and status < 400:
            self._metrics.served(self._target)
        if self._uncounted is not None:
            self._series.running -= 1
            self._series = self._metrics.answered(self._uncounted, status)
            self._series.running += 1
            self._uncounted = None

    def first_token(self, seconds: float) -> None:
        """Count the first chunk of a streamed response, `seconds` after the request's headers."""
        self._first_at = seconds
        self._series.first_token.observe(seconds)

    def completed(self, seconds: float, usage: Usage | None, response_bytes: int, *, aborted: bool = False) -> None:
        """Count the end of the response. If it broke off (`aborted`), its tokens count, but not its time and size."""
        if self.status is None:
            self.answered(None)
        series = self._series
        series.running -= 1
        if self.status is None:
            return
        if self.status >= 400:
            series.failed(_MODEL_SERVER)
        if not aborted:
            series.duration.note(seconds)
            if response_bytes:
                series.response_bytes.observe(response_bytes)
        if usage is None:
            return
        if usage.prompt:
            series.prompt.observe(usage.prompt)
        if usage.cached is not None:
            series.cached.observe(usage.cached)
        if usage.completion:
            series.completion.observe(usage.completion)
            if aborted:
                return
            series.normalized.observe(seconds / usage.completion)
            if self._first_at is not None and usage.completion > 1:
                series.per_token.observe((seconds - self._first_at) / (usage.completion - 1))


def request_families(metrics: RequestMetrics, names: Names) -> Iterator[Metric]:
    """Requests by model."""
    series, models = list(metrics.series.items()), ("model_name", "target_model_name")
    yield from names(
        CounterMetricFamily,
        "request",
        "Routed requests",
        (*models, "priority"),
        [((*key, str(priority)), count) for key, each in series for priority, count in each.requests.items()],
    )
    yield from names(
        CounterMetricFamily,
        "request_error",
        "Refused and failed requests",
        (*models, "error_code"),
        [((*key, code), count) for key, each in series for code, count in each.errors.items()],
    )
    running = (((model,), count) for model, count in metrics.running().items())
    yield from names(GaugeMetricFamily, "request_running", "Requests in progress", models[:1], running)
    for field, name, meaning in _HISTOGRAMS:
        found = ((key, getattr(each, field)) for key, each in series)
        some = ((key, histogram) for key, histogram in found if histogram.count)
        yield from names(HistogramMetricFamily, name, meaning, models, some)
    yield from names(
        CounterMetricFamily,
        "model_rewrite_decisions",
        "Requests whose model was rewritten",
        ("model_rewrite_name", "model_name", "target_model"),
        list(metrics.rewrites.items()),
    )


def _code(status: int) -> str:
    return _CODES.get(status, "BadRequest" if status < 500 else "Internal")
