"""docs/metrics.md: every Prometheus metric of the three tiers, read from their registries.

The services are created with default settings and not started. Label names come from the declarations, because a metric
without samples shows none.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct
from prometheus_client import CollectorRegistry, Metric

from pointsman.markdown import code, table
from services.collector.app import CollectorService
from services.collector.settings import CollectorSettings
from services.picker.app import PickerService
from services.picker.settings.picker import PickerSettings
from services.picker.workers.exposition import MIN, SUM
from services.picker.workers.supervisor import Supervisor
from services.watcher.app import WatcherService
from services.watcher.settings import WatcherSettings

LIBRARY = ("process_", "python_")
"""Prefixes of the client library's metrics of the process."""
ENDINGS = {"counter": "_total", "info": "_info"}
"""Suffixes of the exposition format by type."""
PRESENT = ("llm_d_epp_",)
FORMER = ("inference_objective_", "inference_pool_", "inference_extension_", "llm_d_inference_scheduler_")

INTRODUCTION = """\
# Metrics

Every process serves Prometheus metrics at `/metrics` of its admin port, including those of its Python process
(`process_…`, `python_…`). [Operations](operations.md#what-to-watch) lists which ones to watch. Histograms have
`_bucket`, `_sum` and `_count` series.

Clients choose model names, so at most `--metrics-models` of them have series. A model has series of its own when a
resource names it, or when a model server has answered a request for it with a status below 400. All other models are
counted as `other`, and so is a model with the name `other`. A request for a model without series is counted when its
response begins. When the limit is reached, the pool's models replace names that only occur in rewritten requests, and
names from resources replace any other name. A model without requests for an hour can be replaced, too. The same limit
holds for pairs of a client's model and a different target model. Pairs from resources replace pairs that clients choose
with a header.

The series of a plugin or a source end with the last configuration that has it. A counter continues while successive
configurations have the name.

`make docs` generates this page from the code.
"""
PRESENT_TEXT = """\
These metrics have the names and meanings of the Go original's current generation, so its dashboards work. Only the
sizes of queues have the label `fairness_id`, because clients choose its value, and only the series in the table with
`priority` have that label.
"""
FORMER_TEXT = """\
The same metrics under the names of the Go original's earlier generations. `--legacy-metric-names=false` omits them.
"""


WORKERS_TEXT = """\
The admin port of a picker with [workers](operations.md#several-cores---workers) serves one page for all
workers. It has these additional metrics, whose label `worker` is the worker's number. Counters and histograms are sums.
They include the last known values of workers that have ended, or that don't answer at the moment.

These gauges are sums:

{sums}

Of these gauges, the page has the least value of all workers:

{least}

Of all other gauges, the page has the greatest value of all workers. Examples are what every worker knows of the pool
and of the load of all pickers, ages, and shares of a limit. Gauges don't include workers that don't answer.
"""


class MetricFamily(Struct, frozen=True):
    """A metric family as the page shows it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def described(registry: CollectorRegistry) -> Iterator[MetricFamily]:
    """The metrics of a registry in their order, without the library's."""
    for collector in list(registry._collector_to_names):
        declared = getattr(collector, "_labelnames", ())  # of a Counter or Gauge, whose families have no label names
        for family in collector.collect():
            if not family.name.startswith(LIBRARY):
                name = family.name + ENDINGS.get(family.type, "")
                yield MetricFamily(name, family.type, _labels(family, declared), family.documentation)


def _labels(family: Metric, declared: Iterable[str]) -> tuple[str, ...]:
    names = getattr(family, "_labelnames", None) or declared
    if family.type == "info":
        names = family.samples[0].labels
    return tuple(names)


def registries() -> dict[str, CollectorRegistry]:
    """The registry of each tier."""
    return {
        "watcher": WatcherService(WatcherSettings()).registry,
        "collector": CollectorService(CollectorSettings()).registry,
        "picker": PickerService(PickerSettings()).registry,
    }


def metrics_page() -> str:
    """docs/metrics.md."""
    tiers = {tier: list(described(registry)) for tier, registry in registries().items()}
    users: dict[MetricFamily, list[str]] = {}
    for tier, metrics in tiers.items():
        for metric in metrics:
            users.setdefault(metric, []).append(tier)
    everywhere = [metric for metric in tiers["picker"] if len(users[metric]) == len(tiers)]
    shared = [metric for metric in tiers["picker"] if len(users[metric]) == 2]
    sections = [INTRODUCTION, _section("Every tier", everywhere), _section("Collectors and pickers", shared)]
    for tier, metrics in tiers.items():
        own = [metric for metric in metrics if len(users[metric]) == 1]
        for title, prefixes, text in (
            (f"`pointsman {tier}`", ("pointsman_",), ""),
            (f"`pointsman {tier}`: the Go original's", PRESENT, PRESENT_TEXT),
            (f"`pointsman {tier}`: the Go original's former names", FORMER, FORMER_TEXT),
        ):
            if chosen := [metric for metric in own if metric.name.startswith(prefixes)]:
                sections.append(_section(title, chosen, text))
    supervisor = described(Supervisor(PickerSettings(workers=2)).registry)
    workers = [metric for metric in supervisor if metric not in users]
    sums, least = (", ".join(map(code, sorted(names))) for names in (SUM, MIN))
    sections.append(_section("`pointsman picker --workers`", workers, WORKERS_TEXT.format(sums=sums, least=least)))
    return "\n".join(sections)


def _section(title: str, metrics: list[MetricFamily], text: str = "") -> str:
    rows = [(code(metric.name), metric.kind, ", ".join(map(code, metric.labels)), metric.help) for metric in metrics]
    parts = [f"## {title}\n", text, table(("metric", "type", "labels", "meaning"), rows)]
    return "\n".join(part for part in parts if part)
