"""What `Director.decide` costs with docs/profiles/weighted-sum.yaml, by number of endpoints and size of the prompt.

    python -m tests.benchmarks.bench_decide

Prints, for 8, 100 and 1 000 endpoints and a 1 kB prompt, and for 100 endpoints and a 220 kB prompt: CPU microseconds a
decision, decisions a second of one core, and the same as a ratio to a fixed loop of plain Python that is timed in the
same run, so that runs on different machines compare. Half of the prompts share a prefix that endpoints hold. Each
figure is the best of several rounds, interleaved, and counts what the process used, not what it waited.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from services.picker.admin.metrics import PickerMetrics
from services.picker.pipeline import Pipeline, build
from services.picker.request import Content, Headers, Request
from services.picker.state.view import View
from shared.attributes import CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.bus.columns import pack_ages, pack_floats
from shared.bus.messages import Frame
from shared.config import load
from shared.model import Endpoint
from shared.plugin import Registry

CASES = ((8, 1_000), (100, 1_000), (1_000, 1_000), (100, 220_000))
ROUNDS = 7
BUDGET = 0.25
"""CPU seconds of a round."""
REQUESTS = 64
NOW = 1_000.0
FRAME_EVERY = 10
"""Decisions after which the scores have to be made anew, as if a collector's frame had come."""


def reference() -> None:
    """A fixed piece of plain Python: dictionary look-ups, integer arithmetic, attribute access; about 20 µs."""
    counts: dict[int, int] = {}
    total = 0
    for step in range(200):
        key = (step * 7919) & 63
        counts[key] = counts.get(key, 0) + step
        total ^= counts[key]


WEIGHTED_SUM = Path(__file__).parents[2] / "docs" / "profiles" / "weighted-sum.yaml"
"""The default of the Go original, with which it is compared."""


def world(
    endpoints: int, random: np.random.Generator, configuration: str = ""
) -> tuple[View, PickerMetrics, Pipeline, Callable[[], None]]:
    """A view with metrics of every endpoint, and the weighted sum or another configuration on it; the last one ends
    what is kept of the scores, as a collector's frame does."""
    view = View()
    view.reset({f"pool.endpoint.{number}": _endpoint(number) for number in range(endpoints)})
    values = {
        WAITING_QUEUE_SIZE: random.integers(0, 20, endpoints),
        KV_CACHE_USAGE: random.random(endpoints),
        CACHE_BLOCK_SIZE: np.full(endpoints, 16),
        CACHE_NUM_BLOCKS: np.full(endpoints, 20_000),
    }
    frame = Frame(
        sender="bench",
        sent=0.0,
        sequence=1,
        ids=tuple(endpoint.id for endpoint in view.layout.endpoints),
        columns={key.wire: pack_floats(column) for key, column in values.items()},
        ages={key.wire: pack_ages(np.zeros(endpoints)) for key in values},
    )
    view.apply_frame(frame, NOW, 0.0)
    metrics = PickerMetrics(CollectorRegistry(), view)
    pipeline = build(
        load(configuration or WEIGHTED_SUM.read_text(), Registry.installed()),
        random,
        time.time,
        metrics.plugins.observe,
    )

    def frame_comes() -> None:
        for key in values:
            view.columns.numbers(key.wire).derived.clear()

    return view, metrics, pipeline, frame_comes


def decide(
    endpoints: int, prompt_bytes: int, configuration: str = "", prepare: Callable[[View], None] = lambda _: None
) -> Callable[[], None]:
    """A function that makes one decision, of a view with metrics of every endpoint that is `prepare`d first."""
    random = np.random.default_rng(7)
    view, _, pipeline, frame_comes = world(endpoints, random, configuration)
    prepare(view)
    shared = random.bytes(prompt_bytes // 2)
    requests = []
    for number in range(REQUESTS):
        prompt = (shared if number % 2 else b"") + random.bytes(prompt_bytes)
        content = Content(api="chat", model="model", prompt=prompt[:prompt_bytes])
        requests.append(Request(id=f"request-{number}", headers=Headers(), content=content, body_size=prompt_bytes))
    turn = 0

    def one() -> None:
        nonlocal turn
        turn += 1
        if turn % FRAME_EVERY == 0:
            frame_comes()
        pipeline.director.decide(requests[turn % REQUESTS], view, NOW + 0.1)

    return one


def _endpoint(number: int) -> Endpoint:
    name = f"server-{number}"
    return Endpoint(id=f"default/{name}", name=name, address=f"10.0.{number // 250}.{number % 250 + 1}", port=8000)


def seconds(call: Callable[[], object], budget: float) -> float:
    """CPU seconds of one call, over as many as fit into the budget."""
    calls = 0
    started = time.process_time()
    while (spent := time.process_time() - started) < budget:
        for _ in range(10):
            call()
        calls += 10
    return spent / calls


def measured(subjects: Sequence[Callable[[], object]]) -> tuple[float, list[float]]:
    """CPU seconds of one call of the reference, which is printed, and of each of these."""
    calls = [reference, *subjects]
    for call in calls:
        seconds(call, BUDGET / 5)
    rounds = [[seconds(call, BUDGET) for call in calls] for _ in range(ROUNDS)]
    unit, *spent = (min(times) for times in zip(*rounds, strict=True))
    print(f"reference loop: {unit * 1e6:.1f} µs")
    return unit, spent


def main() -> None:
    unit, decisions = measured([decide(*case) for case in CASES])
    print("endpoints  prompt bytes  µs a decision  decisions/s  × reference")
    for (endpoints, size), spent in zip(CASES, decisions, strict=True):
        print(f"{endpoints:9}  {size:12}  {spent * 1e6:13.1f}  {1 / spent:11.0f}  {spent / unit:11.2f}")


if __name__ == "__main__":
    main()
