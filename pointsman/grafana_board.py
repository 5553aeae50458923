"""deploy/grafana/boards: what docs/operations.md names as worth watching, as Grafana dashboards."""

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


Rows = dict[str, tuple[Panel, ...]]

POOL: Rows = {
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
            "Prompt and generated tokens",
            "short",
            {
                "prompt": "sum(rate(llm_d_epp_request_input_tokens_sum[$__rate_interval]))",
                "generated": "sum(rate(llm_d_epp_request_output_tokens_sum[$__rate_interval]))",
            },
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
}

TIERS: Rows = {
    "Processes": (
        Panel(
            "CPU",
            "percentunit",
            {"{{tier}} {{instance}}": "rate(process_cpu_seconds_total[$__rate_interval])"},
        ),
        Panel(
            "Memory",
            "bytes",
            {"{{tier}} {{instance}}": "process_resident_memory_bytes"},
        ),
        Panel(
            "Longest pause of the event loop",
            "s",
            {"{{tier}} {{instance}}": "pointsman_event_loop_longest_pause_seconds"},
        ),
        Panel(
            "Should stay 0",
            "short",
            {
                "tasks that crashed": "sum(pointsman_task_crashes_total)",
                "failed calls of plugins": "sum(pointsman_plugin_failures_total)",
                "malformed messages": "sum(pointsman_bus_malformed_messages_total)",
                "implausible messages": "sum(pointsman_bus_implausible_messages_total)",
                "refused messages": "sum(pointsman_bus_refused_messages_total)",
                "processes with the same id": "sum(pointsman_bus_duplicate_id_messages_total)",
            },
        ),
        Panel(
            "Processes by configuration",
            "short",
            {"{{pool}} {{revision}}": "count by (pool, revision) (pointsman_config_info)"},
        ),
        Panel(
            "Watchers that lead",
            "short",
            {"leaders": "sum(pointsman_watcher_leader)"},
        ),
    ),
    "What pickers know": (
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
            "Since Kubernetes or the files confirmed the endpoints",
            "s",
            {"{{tier}} {{instance}}": "pointsman_view_source_age_seconds"},
        ),
        Panel(
            "The view differs from what its owners announce",
            "s",
            {
                "facts {{instance}}": "pointsman_view_differs_seconds",
                "{{part}} {{instance}}": "pointsman_picker_view_differs_seconds",
            },
        ),
        Panel(
            "Peers of a picker",
            "short",
            {"{{instance}}": "pointsman_picker_peers"},
        ),
        Panel(
            "Prompt blocks in the prefix index",
            "short",
            {"{{instance}}": "pointsman_picker_prefix_blocks"},
        ),
    ),
    "Collectors": (
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
            "Endpoints of each collector",
            "short",
            {"{{instance}}": "pointsman_collector_assigned_endpoints"},
        ),
        Panel(
            "Age of an endpoint's oldest attribute",
            "s",
            {"{{endpoint}}": "max by (endpoint) (pointsman_collector_oldest_value_age_seconds)"},
        ),
    ),
}

FLOW_CONTROL: Rows = {
    "Queues": (
        Panel(
            "Requests that wait, at all pickers",
            "short",
            {"priority {{priority}}": "max by (priority) (pointsman_picker_queue_requests)"},
        ),
        Panel(
            "The oldest has waited",
            "s",
            {"priority {{priority}}": "max by (priority) (pointsman_picker_queue_oldest_seconds)"},
        ),
        Panel(
            "Prompt tokens that wait, at all pickers",
            "short",
            {"priority {{priority}}": "max by (priority) (pointsman_picker_queue_tokens)"},
        ),
        Panel(
            "How waits end",
            "reqps",
            {"{{outcome}}": "sum by (outcome) (rate(llm_d_epp_flow_control_requests_total[$__rate_interval]))"},
        ),
        Panel(
            "Time that requests waited",
            "s",
            {
                "p50": _quantile(0.5, "llm_d_epp_flow_control_request_queue_duration_seconds"),
                "p99": _quantile(0.99, "llm_d_epp_flow_control_request_queue_duration_seconds"),
            },
        ),
        Panel(
            "The flows with the most requests that wait",
            "short",
            {"{{fairness_id}}": "topk(10, sum by (fairness_id) (llm_d_epp_flow_control_queue_size))"},
        ),
    ),
    "Room": (
        Panel(
            "Saturation of the pool: 1 is full",
            "percentunit",
            {"{{stage}}": "max by (stage) (llm_d_epp_flow_control_pool_saturation)"},
        ),
        Panel(
            "Used share of the queues' limits",
            "percentunit",
            {
                "requests, priority {{priority}}": "max by (priority) "
                "(llm_d_epp_flow_control_capacity_utilization_requests)",
                "bytes, priority {{priority}}": "max by (priority) (llm_d_epp_flow_control_capacity_utilization_bytes)",
                "requests, all": "max(llm_d_epp_flow_control_global_capacity_utilization_requests)",
                "bytes, all": "max(llm_d_epp_flow_control_global_capacity_utilization_bytes)",
            },
        ),
        Panel(
            "Running requests that were evicted",
            "reqps",
            {"evicted": "sum(rate(llm_d_epp_flow_control_revocations_issued_total[$__rate_interval]))"},
        ),
    ),
}

BOARDS: dict[str, tuple[str, Rows]] = {
    "pool": ("Pointsman: pool", POOL),
    "tiers": ("Pointsman: tiers", TIERS),
    "flow-control": ("Pointsman: flow control", FLOW_CONTROL),
}
"""Titles and rows by the names of the files."""

_COLUMNS = 3
_WIDTH, _HEIGHT = 24 // _COLUMNS, 8


def grafana_board(name: str) -> str:
    """The JSON of one of the `BOARDS`."""
    title, rows = BOARDS[name]
    board = {
        "uid": f"pointsman-{name}",
        "title": title,
        "tags": ["pointsman"],
        "schemaVersion": 41,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [{"type": "dashboards", "title": "Pointsman", "tags": ["pointsman"], "keepTime": True}],
        "panels": list(_panels(rows)),
    }
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def _panels(rows: Rows) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in rows.items():
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
