"""`python -m pointsman.docs`: writes what is generated: pages, the Envoy configuration, dashboards, alerting rules.

A test compares them with what the code generates."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from pointsman.chart_page import chart_page
from pointsman.compatibility_page import PUBLISHED, compatibility_page
from pointsman.grafana_board import BOARDS, grafana_board
from pointsman.local.envoy import STANDALONE, STANDALONE_CLOSED
from pointsman.local.envoy_closed import closed
from pointsman.markdown import code, table
from pointsman.metrics_page import metrics_page
from pointsman.up.systemd import units
from services.collector.settings import CollectorSettings
from services.console.settings import ConsoleSettings
from services.picker.settings.picker import PickerSettings
from services.simulator.settings import SimulatorSettings
from services.watcher.settings import WatcherSettings
from shared.plugin import Registry
from shared.service.settings import CommonSettings, describe

FIXTURES = "POINTSMAN_FIXTURES"
"""The environment variable with the folder of published documents."""
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RULES = ROOT / "deploy/prometheus/rules.yml"
"""The alerting rules, for Prometheus' `rule_files`."""

TIERS: tuple[tuple[str, type[Struct]], ...] = (
    ("watcher", WatcherSettings),
    ("collector", CollectorSettings),
    ("picker", PickerSettings),
    ("console", ConsoleSettings),
    ("simulator", SimulatorSettings),
)


def settings_page() -> str:
    """docs/settings.md: every flag and environment variable of every process."""
    common = {row[0] for row in describe(CommonSettings)}
    parts = [
        "# Settings\n\nEach setting is a flag and an environment variable. The flag takes precedence. Write durations "
        "as `200ms`, `2s` or `1m30s`, sizes as `4096`, `64Mi` or `1G`, and lists with commas. If there are errors, the "
        "process reports all of them and doesn't start. `make docs` generates this page from the code.\n",
        _section("Every tier", describe(CommonSettings)),
    ]
    for name, kind in TIERS:
        rows = [row for row in describe(kind) if row[0] not in common or not issubclass(kind, CommonSettings)]
        parts.append(_section(f"`pointsman {name}`", rows))
    return "\n".join(parts)


def _section(title: str, settings: list[tuple[str, str, str, str]]) -> str:
    rows = [(code(flag), code(variable), code(default), text) for flag, variable, default, text in settings]
    return f"## {title}\n\n{table(('flag', 'environment', 'default', 'meaning'), rows)}"


def _compatibility() -> str:
    """docs/compatibility.md, with its generated parts replaced."""
    page = (DOCS / "compatibility.md").read_text(encoding="utf-8")
    return compatibility_page(page, os.environ.get(FIXTURES, ""), Registry.installed())


def _rules() -> Any:
    return yaml.safe_load(RULES.read_text(encoding="utf-8"))


def _copy_of_rules(document: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)
    return f"# `make docs` generates this file from deploy/prometheus/rules.yml.\n{text}"


def prometheus_rule() -> str:
    """The alerting rules as a PrometheusRule of the Prometheus operator."""
    names = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/part-of")
    return _copy_of_rules(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "pointsman", "labels": dict.fromkeys(names, "pointsman")},
            "spec": _rules(),
        }
    )


PAGES: dict[str, Callable[[], str]] = {
    "docs/settings.md": settings_page,
    "docs/metrics.md": metrics_page,
    "docs/chart-values.md": chart_page,
    "docs/compatibility.md": _compatibility,
    **{f"deploy/grafana/boards/{name}.json": partial(grafana_board, name) for name in BOARDS},
    "deploy/kubernetes/chart/files/rules.yml": lambda: _copy_of_rules(_rules()),
    "deploy/kubernetes/components/alerts/prometheus-rule.yaml": prometheus_rule,
    str(STANDALONE_CLOSED.relative_to(ROOT)): lambda: closed(STANDALONE.read_text(encoding="utf-8")),
    **{f"deploy/systemd/{name}": partial(units().__getitem__, name) for name in units()},
}
"""The content of each file."""


def main() -> None:
    for name, render in PAGES.items():
        (ROOT / name).write_text(render(), encoding="utf-8")
    if not os.environ.get(FIXTURES):
        print(f"compatibility.md: {PUBLISHED} not updated, because {FIXTURES} isn't set", file=sys.stderr)


if __name__ == "__main__":
    main()
