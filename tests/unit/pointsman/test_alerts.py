"""The alerting rules: their links, and with promtool when they fire."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from pointsman.docs import ROOT, RULES, prometheus_rule

RUNBOOK = "docs/operations.md"
NAMES = [rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]
HEALTHY = """\
pointsman_picker_decisions_total{instance="p1",status="200"} 0+100x60
pointsman_picker_decisions_total{instance="p1",status="503"} 0x60
pointsman_picker_decisions_total{instance="p1",status="429"} 0x60
llm_d_epp_flow_control_global_capacity_utilization_requests{instance="p1"} 0.5x60
pointsman_picker_served_total{instance="p1",by="first choice"} 0+100x60
pointsman_picker_served_total{instance="p1",by="fallback"} 0+1x60
pointsman_watcher_leader{instance="w1"} 1x60
pointsman_watcher_leader{instance="w2"} 0x60
pointsman_collector_assigned_endpoints{instance="c1"} 2x60
pointsman_picker_peers{instance="p1"} 1x60
pointsman_picker_peers{instance="p2"} 1x60
pointsman_view_age_seconds{instance="p1"} 1x60
pointsman_view_source_age_seconds{instance="p1"} 1x60
pointsman_collector_up{instance="c1",endpoint="a",source="s"} 1x60
pointsman_picker_attribute_age_seconds{instance="p1",endpoint="a"} 0.1x60
pointsman_picker_attribute_age_seconds{instance="p1",endpoint="never"} +Infx60
pointsman_view_differs_seconds{instance="p1"} 0x60
pointsman_config_info{instance="p1",pool="a",revision="1"} 1x60
pointsman_config_info{instance="p2",pool="a",revision="1"} 1x60
pointsman_config_info{instance="p3",pool="b",revision="2"} 1x60
pointsman_watcher_bad_files{instance="w1"} 0x60
pointsman_bus_connected{instance="p1"} 1x60
pointsman_bus_refused_messages_total{instance="p1"} 5x60
pointsman_certificate_expiration_timestamp_seconds{instance="p1",certificate="ext_proc"} 1300000x60
pointsman_event_loop_pause_seconds_sum{instance="p1"} 0+1x60
pointsman_plugin_failures_total{instance="p1",plugin="queue-scorer"} 3x60
pointsman_task_crashes_total{instance="p1",task="load"} 0x60
"""
"""Series of an hour, a sample a minute."""
FIRES = {
    "PointsmanRequestsFail": ('decisions_total{instance="p1",status="503"} 0x60', "0+2x60"),
    "PointsmanRequestsShed": ('decisions_total{instance="p1",status="429"} 0x60', "0+10x60"),
    "PointsmanQueueFull": ("utilization_requests", "0.9x60"),
    "PointsmanFallbacksServe": ('by="fallback"', "0+10x60"),
    "PointsmanNoLeader": ('leader{instance="w1"}', "0x60"),
    "PointsmanNoCollector": ("collector_assigned_endpoints", ""),
    "PointsmanViewOutdated": ("view_age_seconds", "+Infx60"),
    "PointsmanEndpointUnscraped": ("collector_up", "0x60"),
    "PointsmanMetricsStale": ('endpoint="a"} 0.1x60', "20x60"),
    "PointsmanViewsDiffer": ("view_differs", "20x60"),
    "PointsmanPickersApart": ('peers{instance="p2"}', "0x60"),
    "PointsmanConfigurationsDiffer": (
        'config_info{instance="p1"',
        'pointsman_config_info{instance="p1",pool="a",revision="2"} 1x60',
    ),
    "PointsmanConfigurationRefused": ("bad_files", "1x60"),
    "PointsmanDisconnected": ("bus_connected", "0x60"),
    "PointsmanLoginRefused": ("refused_messages", "0+1x60"),
    "PointsmanCertificateExpires": ("expiration", "1200000x60"),
    "PointsmanEventLoopPaused": ("pause_seconds_sum", "0+6x60"),
    "PointsmanPluginFails": ("plugin_failures", "0+1x60"),
    "PointsmanTaskCrashed": ("task_crashes", "0x50 1x10"),
}
"""For each alert: a part of a healthy line, and the samples, or the line, with which it fires; nothing: no series."""


def test_every_alert_links_to_its_section() -> None:
    headings = re.findall(r"^### (.+)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    named = [heading for heading in headings if heading.startswith("Pointsman")]
    assert named == NAMES
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (page, anchor) == (RUNBOOK, rule["alert"].lower())


def test_the_operator_gets_the_same_rules() -> None:
    assert yaml.safe_load(prometheus_rule())["spec"] == yaml.safe_load(RULES.read_text())


def series(lines: str) -> list[dict[str, str]]:
    split = (line.rpartition("} ") for line in lines.splitlines())
    return [
        {"series": f'{name},namespace="n",job="j"}}', "values": values.replace("+Infx60", "+Inf " * 61)}
        for name, _, values in split
    ]


def changed(part: str, values: str) -> str:
    found = [line for line in HEALTHY.splitlines() if part in line]
    assert len(found) == 1, (part, found)
    name = found[0][: found[0].index("} ") + 1]
    line = values if "{" in values else f"{name} {values}"
    return HEALTHY.replace(f"{found[0]}\n", f"{line}\n" if values else "")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool isn't installed: apt-get install prometheus")
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    assert FIRES.keys() == set(NAMES)
    (tmp_path / "rules.yml").write_text(RULES.read_text())
    quiet = [{"alertname": name, "eval_time": "55m", "exp_alerts": []} for name in NAMES]
    tests = [{"interval": "1m", "input_series": series(HEALTHY), "alert_rule_test": quiet}]
    for name, (part, values) in FIRES.items():
        count = {"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) > bool 0', "eval_time": "55m"}
        fires = {**count, "exp_samples": [{"labels": "{}", "value": 1}]}
        others = {
            "expr": f'count(ALERTS{{alertname!="{name}",alertstate="firing"}})',
            "eval_time": "55m",
            "exp_samples": [],
        }
        tests.append(
            {"interval": "1m", "input_series": series(changed(part, values)), "promql_expr_test": [fires, others]}
        )
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
