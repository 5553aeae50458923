"""The collector's settings.

The metric flags are those of all releases of the Go EPP, in kebab case and in camel case, with further ones for metrics
from which attributes can be derived.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from services.collector.http.response import HEADER_LIMIT
from services.collector.page.spec import SpecError, parse_spec
from services.collector.sources.http import MIN_INTERVAL, check_path
from shared.quantities import Duration, PositiveDuration, Size, format_duration
from shared.service.settings import MAX_TEXT, CommonSettings

METRIC_FLAGS: Mapping[str, str] = {
    "total_queued_requests_metric": "queued_requests_spec",
    "total_running_requests_metric": "running_requests_spec",
    "all_requests_metric": "all_requests_spec",
    "kv_cache_usage_percentage_metric": "kv_usage_spec",
    "used_kv_cache_blocks_metric": "used_kv_blocks_spec",
    "max_kv_cache_blocks_metric": "max_kv_blocks_spec",
    "used_kv_cache_tokens_metric": "used_kv_tokens_spec",
    "max_kv_cache_tokens_metric": "max_kv_tokens_spec",
    "lora_info_metric": "lora_spec",
    "cache_info_metric": "cache_info_spec",
}
"""By setting: the field of `EngineConfig` that it sets."""


def _metric(description: str, *aliases: str) -> Meta:
    return Meta(description=description, extra={"aliases": aliases})


class CollectorSettings(CommonSettings, frozen=True, kw_only=True):
    """Scrapes its share of the model servers and publishes their attributes."""

    config_file: Annotated[
        str,
        Meta(
            description="an EndpointPickerConfig, whose changes are followed; default: the published one, or else"
            " the built-in one"
        ),
    ] = ""
    max_file_size: Annotated[
        Size, Meta(description="maximum bytes of a file that a flag names; a larger one is refused")
    ] = MAX_TEXT
    allow_experimental_plugins: Annotated[bool, Meta(description="load plugin types of alpha stability")] = False
    interval: Annotated[
        PositiveDuration,
        Meta(description="interval between scrapes of an endpoint, unless the data source sets one"),
    ] = 0.1
    scrape_timeout: Annotated[PositiveDuration, Meta(description="time limit of a scrape")] = 1.0
    page_limit: Annotated[Size, Meta(description="maximum bytes of a page")] = 16 * 2**20
    header_limit: Annotated[
        Size,
        Meta(description="maximum bytes of a page's HTTP headers, including interim responses (1xx)"),
    ] = HEADER_LIMIT
    backoff_limit: Annotated[
        Duration,
        Meta(description="longest time between attempts at a failing endpoint, unless the interval is longer"),
    ] = 1.0
    failure_threshold: Annotated[
        int,
        Meta(
            ge=1,
            description="after so many scrapes in a row that are refused or time out, pickers rank the model server"
            " behind all others, until a scrape returns a page",
        ),
    ] = 3
    frame_linger: Annotated[
        Duration,
        Meta(
            description="longest time for which a change waits for the pages of scrapes that started with its own, so"
            " that they share a frame"
        ),
    ] = 0.001
    refresh_interval: Annotated[
        PositiveDuration, Meta(description="interval at which unchanged values are confirmed while scrapes succeed")
    ] = 0.1
    heartbeat: Annotated[
        PositiveDuration, Meta(description="longest interval between two publications of all values")
    ] = 0.5
    total_queued_requests_metric: Annotated[
        str | None,
        _metric(
            "specification of the waiting requests: name or name{label=value}. Each of these metric "
            "flags defines a part of the default engine; an empty value disables the quantity",
            "--totalQueuedRequestsMetric",
            "--waiting-requests-metric",
            "--waitingRequestsMetric",
        ),
    ] = None
    total_running_requests_metric: Annotated[
        str | None,
        _metric(
            "specification of the running requests",
            "--totalRunningRequestsMetric",
            "--running-requests-metric",
            "--runningRequestsMetric",
        ),
    ] = None
    all_requests_metric: Annotated[
        str | None,
        _metric(
            "specification of the waiting and running requests; minus the running ones, it gives the waiting ones",
            "--allRequestsMetric",
        ),
    ] = None
    kv_cache_usage_percentage_metric: Annotated[
        str | None,
        _metric(
            "specification of the share of the KV cache in use, 0 to 1",
            "--kvCacheUsagePercentageMetric",
            "--kv-cache-usage-metric",
            "--kvCacheUsageMetric",
            "--kVCacheUsageMetric",
        ),
    ] = None
    used_kv_cache_blocks_metric: Annotated[
        str | None,
        _metric(
            "specification of the used KV cache blocks; divided by all blocks, it gives the usage",
            "--usedKvCacheBlocksMetric",
            "--usedKVCacheBlocksMetric",
        ),
    ] = None
    max_kv_cache_blocks_metric: Annotated[
        str | None,
        _metric(
            "specification of the total KV cache blocks",
            "--maxKvCacheBlocksMetric",
            "--maxKVCacheBlocksMetric",
        ),
    ] = None
    used_kv_cache_tokens_metric: Annotated[
        str | None,
        _metric(
            "specification of the used tokens of the KV cache; divided by its capacity, it gives the usage",
            "--usedKvCacheTokensMetric",
            "--usedKVCacheTokensMetric",
        ),
    ] = None
    max_kv_cache_tokens_metric: Annotated[
        str | None,
        _metric(
            "specification of the KV cache's capacity in tokens",
            "--maxKvCacheTokensMetric",
            "--maxKVCacheTokensMetric",
        ),
    ] = None
    lora_info_metric: Annotated[
        str | None,
        _metric(
            "specification of the series with the LoRA adapters as labels",
            "--loraInfoMetric",
            "--lora-request-info-metric",
            "--loraRequestInfoMetric",
        ),
    ] = None
    cache_info_metric: Annotated[
        str | None,
        _metric("specification of the series with the KV cache's dimensions as labels", "--cacheInfoMetric"),
    ] = None
    model_server_metrics_scheme: Annotated[
        Literal["http", "https"] | None,
        _metric(
            "deprecated: scheme of the metrics page, unless the metrics-data-source sets one",
            "--modelServerMetricsScheme",
        ),
    ] = None
    model_server_metrics_path: Annotated[
        str | None,
        _metric(
            "deprecated: path of the metrics page, unless the metrics-data-source sets one",
            "--modelServerMetricsPath",
        ),
    ] = None
    model_server_metrics_port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        _metric(
            "deprecated: port of the metrics page, unless the metrics-data-source or the endpoint "
            "sets one; only in a pool with one port per pod",
            "--modelServerMetricsPort",
        ),
    ] = None

    @classmethod
    def problems(cls, sound: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
        yield from super().problems(sound)
        if sound.get("interval", MIN_INTERVAL) < MIN_INTERVAL:
            yield (("interval",), f"is below {format_duration(MIN_INTERVAL)}")
        for name in METRIC_FLAGS:
            try:
                parse_spec(sound.get(name) or "")
            except SpecError as error:
                yield (name,), str(error)
        if (path := sound.get("model_server_metrics_path")) is not None:
            try:
                check_path(path)
            except ValueError as error:
                yield (("model_server_metrics_path",), str(error).removeprefix("path: "))
