"""deploy/grafana/boards/pointsman.json: what docs/operations.md names as worth watching, as a Grafana dashboard."""

import json
from typing import Any

from msgspec import Struct


class Panel(Struct, frozen=True):
    """A time series panel. Two or three in a row, in the order of the list."""

    title: str
    unit: str
    """Grafana's name of the unit: `reqps`, `s`, `percentunit`, `short`."""
    queries: dict[str, str]
    """PromQL by its legend."""


def _quantile(quantile: float, metric: str, by: str = "") -> str:
    return f"histogram_quantile({quantile}, sum by ({by or 'le'}) (rate({metric}_bucket[$__rate_interval])))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        Panel(
            "Decisions",
            "reqps",
            {"{{status}}": "sum by (status) (rate(pointsman_picker_decisions_total[$__rate_interval]))"},
        ),
        Panel(
            "Time from the end of a request's body to the pick",
            "s",
            {
                "p50": _quantile(0.5, "pointsman_picker_decision_seconds"),
                "p99": _quantile(0.99, "pointsman_picker_decision_seconds"),
            },
        ),
        Panel(
            "Time to the first token of a stream",
            "s",
            {
                "p50": _quantile(0.5, "llm_d_epp_request_ttft_seconds"),
                "p99": _quantile(0.99, "llm_d_epp_request_ttft_seconds"),
            },
        ),
        Panel(
            "Envoy's responses",
            "reqps",
            {
                "{{envoy_response_code_class}}xx": "sum by (envoy_response_code_class) "
                '(rate(envoy_cluster_upstream_rq_xx{envoy_cluster_name="model-servers"}[$__rate_interval]))',
                "retries": 'sum(rate(envoy_cluster_upstream_rq_retry{envoy_cluster_name="model-servers"}'
                "[$__rate_interval]))",
            },
        ),
        Panel(
            "Served by",
            "reqps",
            {"{{by}}": "sum by (by) (rate(pointsman_picker_served_total[$__rate_interval]))"},
        ),
        Panel(
            "Requests that wait for room",
            "short",
            {"priority {{priority}}": "max by (priority) (pointsman_picker_queue_requests)"},
        ),
    ),
    "Endpoints": (
        Panel(
            "Requests in flight, of all pickers",
            "short",
            {"{{endpoint}}": "max by (endpoint) (pointsman_picker_inflight_requests)"},
        ),
        Panel(
            "First choices",
            "reqps",
            {"{{endpoint}}": "sum by (endpoint) (rate(pointsman_picker_picks_total[$__rate_interval]))"},
        ),
        Panel(
            "Age of the metrics",
            "s",
            {"{{endpoint}}": "max by (endpoint) (pointsman_picker_attribute_age_seconds)"},
        ),
        Panel(
            "Share of prompts' blocks that the endpoint held",
            "percentunit",
            {
                "mean": "sum(rate(llm_d_epp_prefix_indexer_hit_ratio_sum[$__rate_interval])) "
                "/ sum(rate(llm_d_epp_prefix_indexer_hit_ratio_count[$__rate_interval]))"
            },
        ),
        Panel(
            "KV cache and queues, mean of the endpoints",
            "short",
            {
                "cache in use": "max(llm_d_epp_average_kv_cache_utilization)",
                "queue": "max(llm_d_epp_average_queue_size)",
                "running": "max(llm_d_epp_average_running_requests)",
            },
        ),
        Panel(
            "Endpoints that seem to be down",
            "short",
            {"{{endpoint}}": "1 - min by (endpoint) (pointsman_picker_endpoint_healthy)"},
        ),
    ),
    "Tiers": (
        Panel(
            "Connected to NATS",
            "short",
            {"{{tier}}": "sum by (tier) (pointsman_bus_connected)"},
        ),
        Panel(
            "Age of the view",
            "s",
            {"{{tier}} {{instance}}": "pointsman_view_age_seconds"},
        ),
        Panel(
            "CPU",
            "percentunit",
            {"{{tier}} {{instance}}": "rate(process_cpu_seconds_total[$__rate_interval])"},
        ),
        Panel(
            "Scrapes",
            "ops",
            {
                "pages": "sum(rate(pointsman_collector_pages_total[$__rate_interval]))",
                "without a page: {{kind}}": "sum by (kind) "
                "(rate(pointsman_collector_scrape_failures_total[$__rate_interval]))",
            },
        ),
        Panel(
            "Should stay 0",
            "short",
            {
                "tasks that crashed": "sum(pointsman_task_crashes_total)",
                "malformed messages": "sum(pointsman_bus_malformed_messages_total)",
                "implausible messages": "sum(pointsman_bus_implausible_messages_total)",
                "processes with the same id": "sum(pointsman_bus_namesake_messages_total)",
            },
        ),
        Panel(
            "Longest pause of the event loop",
            "s",
            {"{{tier}} {{instance}}": "pointsman_event_loop_longest_pause_seconds"},
        ),
    ),
}

_COLUMNS = 3
_WIDTH, _HEIGHT = 24 // _COLUMNS, 8


def grafana_board() -> str:
    """The dashboard's JSON."""
    board = {
        "uid": "pointsman",
        "title": "Pointsman",
        "schemaVersion": 41,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "panels": list(_panels()),
    }
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})
        for number, panel in enumerate(row):
            down, across = divmod(number, _COLUMNS)
            place = {"x": across * _WIDTH, "y": top + 1 + down * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(panel, place))
        top += 1 + -(-len(row) // _COLUMNS) * _HEIGHT
    return [{"id": number, **panel} for number, panel in enumerate(panels, 1)]


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend}
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }
