"""What a decision of a profile of eight plugins costs at 100 endpoints: docs/performance.md promises at most 0.1 ms.

    python -m tests.benchmarks.bench_profile

Prints CPU microseconds a decision, the best of several rounds: of a profile with five scorers and of one with four
filters; of the first one also while an endpoint drains, and while one starts slowly. Half of the prompts share a prefix
that endpoints hold, so that the affinity filter narrows the endpoints.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from services.picker.state.slow_start import SlowStart
from services.picker.state.view import View
from tests.benchmarks import bench_decide

ENDPOINTS, PROMPT = 100, 4_000
SCORERS = (
    "decode-filter",
    "prefix-cache-affinity-filter",
    "queue-scorer",
    "kv-cache-utilization-scorer",
    "prefix-cache-scorer",
    "active-request-scorer",
    "token-load-scorer",
    "max-score-picker",
)
FILTERS = (
    "decode-filter",
    "utilization-filter",
    "prefix-cache-affinity-filter",
    "low-queue-filter",
    "queue-scorer",
    "kv-cache-utilization-scorer",
    "token-load-scorer",
    "max-score-picker",
)
PARAMETERS = {
    "utilization-filter": "{conditions: [{metric: waiting-queue, maxValue: 18}], fallbackOnEmpty: true}",
    "max-score-picker": "{maxNumOfEndpoints: 3}",
}
KEY = "pool.endpoint.0"


def configuration(plugins: Sequence[str]) -> str:
    listed = "".join(f"- {{type: {name}, parameters: {PARAMETERS.get(name, '{}')}}}\n" for name in plugins)
    named = "".join(f"  - {{pluginRef: {name}}}\n" for name in plugins)
    head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
    return f"{head}plugins:\n{listed}schedulingProfiles:\n- name: default\n  plugins:\n{named}"


def decide(plugins: Sequence[str], *, drains: bool = False, starts: bool = False) -> Callable[[], None]:
    """A function that makes one decision."""

    def prepare(view: View) -> None:
        endpoint = next(iter(view.endpoints.values()))
        if starts:
            view.slow_start = SlowStart(3600.0)
            view.slow_start.relayout(view.layout)
            view.upsert(KEY, replace(endpoint, uid="another"))
        if drains:
            view.upsert(KEY, replace(endpoint, draining=True))

    return bench_decide.decide(ENDPOINTS, PROMPT, configuration(plugins), prepare)


def main() -> None:
    cases = {
        "five scorers": decide(SCORERS),
        "four filters": decide(FILTERS),
        "five scorers, an endpoint drains": decide(SCORERS, drains=True),
        "five scorers, an endpoint is new": decide(SCORERS, starts=True),
    }
    unit, decisions = bench_decide.measured([*cases.values()])
    for name, spent in zip(cases, decisions, strict=True):
        print(f"{name:32} {spent * 1e6:6.1f} µs a decision, {spent / unit:.1f} × reference")


if __name__ == "__main__":
    main()
