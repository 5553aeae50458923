"""What docs/metrics.md says: every Prometheus metric of the three tiers, read from their registries.

The services are made with their defaults and not started. Label names come from where a metric was declared, so that
one without samples has its labels too.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct
from prometheus_client import CollectorRegistry, Metric

from services.collector.app import CollectorService
from services.collector.settings import CollectorSettings
from services.picker.app import PickerService
from services.picker.settings import PickerSettings
from services.watcher.app import WatcherService
from services.watcher.settings import WatcherSettings

LIBRARY = ("process_", "python_")
"""What the client library tells of every Python process."""
ENDINGS = {"counter": "_total", "info": "_info"}
"""What the exposition format appends to a metric's name, by type."""
PRESENT = ("llm_d_epp_",)
FORMER = ("inference_objective_", "inference_pool_", "inference_extension_")

INTRODUCTION = """\
# Metrics

Every process serves Prometheus metrics at `/metrics` of its admin port, including those of its Python process
(`process_…`, `python_…`). [Operations](operations.md#what-to-watch) lists which ones to watch. Histograms have
`_bucket`, `_sum` and `_count` series. Labels that clients choose are bounded: after `--metrics-models` models, further
models are `other`. So is the model of a refused request, until a resource names the model or a request for it was
routed. `make docs` generates this page from the code.
"""
PRESENT_TEXT = """\
These metrics have the names and meanings of the Go original's current generation, so its dashboards work. They don't
have the label `fairness_id`, because clients choose its value, and have `priority` only where the table shows it.
"""
FORMER_TEXT = """\
The same metrics under the names of the Go original's earlier generations. `--former-metric-names=false` omits them.
"""


class Described(Struct, frozen=True):
    """One metric as the page shows it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def described(registry: CollectorRegistry) -> Iterator[Described]:
    """The metrics of a registry but the library's, in their order."""
    for collector in list(registry._collector_to_names):
        declared = getattr(collector, "_labelnames", ())  # of a Counter, Gauge, …: their families don't know it
        for family in collector.collect():
            if not family.name.startswith(LIBRARY):
                name = family.name + ENDINGS.get(family.type, "")
                yield Described(name, family.type, _labels(family, declared), family.documentation)


def _labels(family: Metric, declared: Iterable[str]) -> tuple[str, ...]:
    names = getattr(family, "_labelnames", None) or declared
    if family.type == "info":
        names = family.samples[0].labels
    return tuple(names)


def registries() -> dict[str, CollectorRegistry]:
    """A registry for each tier, by its name."""
    return {
        "watcher": WatcherService(WatcherSettings()).registry,
        "collector": CollectorService(CollectorSettings()).registry,
        "picker": PickerService(PickerSettings()).registry,
    }


def metrics_page() -> str:
    """docs/metrics.md."""
    tiers = {tier: list(described(registry)) for tier, registry in registries().items()}
    everywhere = [one for one in tiers["picker"] if all(one in found for found in tiers.values())]
    shared = [
        one
        for one in tiers["picker"]
        if one not in everywhere and any(one in found for tier, found in tiers.items() if tier != "picker")
    ]
    sections = [INTRODUCTION, _section("Every tier", everywhere), _section("Collectors and pickers", shared)]
    for tier, found in tiers.items():
        own = [one for one in found if one not in everywhere and one not in shared]
        sections.append(_section(f"`pointsman {tier}`", [one for one in own if one.name.startswith("pointsman_")]))
        present = [one for one in own if one.name.startswith(PRESENT)]
        former = [one for one in own if one.name.startswith(FORMER)]
        if present:
            sections.append(_section(f"`pointsman {tier}`: the Go original's", present, PRESENT_TEXT))
            sections.append(_section(f"`pointsman {tier}`: the Go original's former names", former, FORMER_TEXT))
    return "\n".join(sections)


def _section(title: str, metrics: list[Described], text: str = "") -> str:
    lines = [
        f"## {title}",
        "",
        *([text] if text else []),
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for one in metrics:
        labels = ", ".join(f"`{name}`" for name in one.labels) or "–"
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.meaning.replace('|', '&#124;')} |")
    return "\n".join(lines) + "\n"
