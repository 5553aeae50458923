"""Alerting rules: deploy/prometheus/rules.yml, the same for the Helm chart, and as a component of Kustomize.

Every expression groups by `namespace` and `job` at most, the labels that distinguish installations, and by labels of
the metrics themselves. Each alert links to its section in docs/operations.md.
"""

from typing import Any

import yaml
from msgspec import Struct

BY = "by (namespace, job)"
HEADER = "# `make docs` generates this file from pointsman/alerts.py.\n"
RUNBOOK = "docs/operations.md"


class Alert(Struct, frozen=True):
    """An alert. `expression` is PromQL."""

    name: str
    severity: str
    """`critical`: requests fail, or nothing keeps them from failing; `warning`: somebody should look today."""
    expression: str
    for_duration: str
    """How long it has to hold."""
    summary: str

    @property
    def anchor(self) -> str:
        """Of its section in `RUNBOOK`."""
        return self.name.lower()


def _refused_ratio(status: str) -> str:
    counted = "pointsman_picker_decisions_total"
    some, every = f'{counted}{{status=~"{status}"}}', counted
    return f"sum {BY} (rate({some}[5m])) / sum {BY} (rate({every}[5m]))"


def _increased(counter: str, minutes: int = 15) -> str:
    return f"increase({counter}[{minutes}m]) > 0"


ALERTS = (
    Alert(
        "PointsmanRequestsFail",
        "critical",
        f"{_refused_ratio('5..')} > 0.01",
        "5m",
        "{{ $value | humanizePercentage }} of the requests are refused with a 5xx status",
    ),
    Alert(
        "PointsmanRequestsShed",
        "warning",
        f"{_refused_ratio('429')} > 0.05",
        "10m",
        "{{ $value | humanizePercentage }} of the requests are refused because the pool is full",
    ),
    Alert(
        "PointsmanQueueFull",
        "warning",
        f"max {BY} (llm_d_epp_flow_control_global_capacity_utilization_requests) > 0.8 or "
        f"max {BY} (llm_d_epp_flow_control_global_capacity_utilization_bytes) > 0.8 or "
        "max by (namespace, job, priority) (llm_d_epp_flow_control_capacity_utilization_requests) > 0.8 or "
        "max by (namespace, job, priority) (llm_d_epp_flow_control_capacity_utilization_bytes) > 0.8",
        "5m",
        "a picker's queue uses {{ $value | humanizePercentage }} of its limit",
    ),
    Alert(
        "PointsmanFallbacksServe",
        "warning",
        f'sum {BY} (rate(pointsman_picker_served_total{{by=~"fallback|other"}}[5m])) / '
        f"sum {BY} (rate(pointsman_picker_served_total[5m])) > 0.05",
        "10m",
        "{{ $value | humanizePercentage }} of the requests aren't served by their first choice",
    ),
    Alert(
        "PointsmanNoLeader",
        "critical",
        f"sum {BY} (pointsman_watcher_leader) != 1 or absent(pointsman_watcher_leader)",
        "1m",
        "no watcher leads, or more than one does: changes of the endpoints don't reach the pickers",
    ),
    Alert(
        "PointsmanNoCollector",
        "critical",
        f"count {BY} (pointsman_picker_peers) unless count {BY} (pointsman_collector_assigned_endpoints)",
        "1m",
        "no collector runs: pickers have no fresh metrics",
    ),
    Alert(
        "PointsmanViewOutdated",
        "warning",
        "pointsman_view_age_seconds > 30 or pointsman_view_source_age_seconds > 120",
        "1m",
        "{{ $labels.instance }}: the set of endpoints was last confirmed {{ $value | humanizeDuration }} ago",
    ),
    Alert(
        "PointsmanEndpointUnscraped",
        "warning",
        "max by (namespace, job, endpoint, source) (pointsman_collector_up) == 0",
        "2m",
        "{{ $labels.endpoint }}: scrapes of {{ $labels.source }} return no page",
    ),
    Alert(
        "PointsmanMetricsStale",
        "warning",
        "(max by (namespace, job, endpoint) (pointsman_picker_attribute_age_seconds) > 10) < +Inf",
        "1m",
        "{{ $labels.endpoint }}: the newest metrics that pickers have are {{ $value | humanizeDuration }} old",
    ),
    Alert(
        "PointsmanViewsDiffer",
        "warning",
        "pointsman_view_differs_seconds > 10 or pointsman_picker_view_differs_seconds > 10",
        "1m",
        "{{ $labels.instance }} has decided by other facts than announced for {{ $value | humanizeDuration }}",
    ),
    Alert(
        "PointsmanPickersApart",
        "warning",
        f"pointsman_picker_peers < on (namespace, job) group_left () (count {BY} (pointsman_picker_peers) - 1)",
        "2m",
        "{{ $labels.instance }} receives the load of only {{ $value }} other pickers",
    ),
    Alert(
        "PointsmanConfigurationsDiffer",
        "warning",
        "count by (namespace, job, pool) (count by (namespace, job, pool, revision) (pointsman_config_info)) > 1",
        "2m",
        "the processes of pool {{ $labels.pool }} run {{ $value }} different configurations",
    ),
    Alert(
        "PointsmanConfigurationRefused",
        "warning",
        " or ".join(
            (
                "pointsman_watcher_bad_files > 0",
                _increased('pointsman_picker_config_loads_total{result="refused"}'),
                _increased('pointsman_collector_config_reloads_total{result="refused"}'),
            )
        ),
        "0m",
        "{{ $labels.instance }} refuses a configuration, file or resource; the last good one is in use",
    ),
    Alert(
        "PointsmanDisconnected",
        "warning",
        "pointsman_bus_connected == 0",
        "30s",
        "{{ $labels.instance }} isn't connected to NATS",
    ),
    Alert(
        "PointsmanLoginRefused",
        "warning",
        _increased("pointsman_bus_refused_messages_total"),
        "0m",
        "{{ $labels.instance }}: NATS refuses messages, because the login lacks the permission",
    ),
    Alert(
        "PointsmanCertificateExpires",
        "warning",
        "pointsman_certificate_expiration_timestamp_seconds - time() < 14 * 24 * 3600",
        "10m",
        "{{ $labels.instance }}: certificate {{ $labels.certificate }} expires in {{ $value | humanizeDuration }}",
    ),
    Alert(
        "PointsmanEventLoopPaused",
        "warning",
        "rate(pointsman_event_loop_pause_seconds_sum[5m]) > 0.05",
        "5m",
        "{{ $labels.instance }} stands still {{ $value | humanizePercentage }} of the time",
    ),
    Alert(
        "PointsmanPluginFails",
        "warning",
        _increased("pointsman_plugin_failures_total", 10),
        "10m",
        "{{ $labels.instance }}: plugin {{ $labels.plugin }} fails; decisions are made without it",
    ),
    Alert(
        "PointsmanTaskCrashed",
        "warning",
        _increased("pointsman_task_crashes_total"),
        "0m",
        "{{ $labels.instance }}: task {{ $labels.task }} has crashed",
    ),
)


def _groups() -> dict[str, Any]:
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.for_duration,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "runbook": f"{RUNBOOK}#{alert.anchor}"},
        }
        for alert in ALERTS
    ]
    return {"groups": [{"name": "pointsman", "rules": rules}]}


def _yaml(document: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)
    return HEADER + text


def rules_file() -> str:
    """The rules, for Prometheus' `rule_files` and for the Helm chart."""
    return _yaml(_groups())


def prometheus_rule() -> str:
    """The rules as a PrometheusRule of the Prometheus operator."""
    labels = {
        "app.kubernetes.io/name": "pointsman",
        "app.kubernetes.io/instance": "pointsman",
        "app.kubernetes.io/part-of": "pointsman",
    }
    return _yaml(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "pointsman", "labels": labels},
            "spec": _groups(),
        }
    )
