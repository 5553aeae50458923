"""What a saturation detector costs flow control, by number of endpoints.

    python -m tests.benchmarks.bench_detectors

Prints CPU microseconds of the saturation, of the room below it, and of both for the first time after a frame of
metrics, for 100 and 1 000 endpoints. Each figure is the best of several rounds, interleaved.
"""

from collections.abc import Callable

import numpy as np

from services.picker.flow_control.concurrency import ConcurrencyDetector, ConcurrencyParameters
from services.picker.flow_control.utilization import UtilizationDetector
from services.picker.request import Headers, Request
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import SaturationDetector
from shared.config.schema import StaleMetrics
from tests.benchmarks.bench_attributes import BUDGET, NOW, ROUNDS, view
from tests.benchmarks.bench_decide import seconds

SIZES = (100, 1_000)
CEILING = 9.0
"""Above the saturation, whatever the metrics are: else there is no room, and nothing to compute."""
DETECTORS: dict[str, Callable[[], SaturationDetector]] = {
    "utilization-detector": lambda: UtilizationDetector("detector"),
    "concurrency-detector, requests": lambda: ConcurrencyDetector("detector"),
    "concurrency-detector, hybrid": lambda: ConcurrencyDetector(
        "detector", ConcurrencyParameters(concurrency_mode="hybrid")
    ),
}


def calls(size: int, make: Callable[[], SaturationDetector]) -> list[Callable[[], object]]:
    pool = view(size)
    rows = pool.layout.all_rows
    request = Request(id="request", headers=Headers())
    cycle = Cycle(request, pool, NOW + 0.1, np.random.default_rng(7), StaleMetrics(), model="", candidates=rows)
    detector = make()

    def first() -> None:
        new = make()
        new.saturation(cycle, rows)
        new.room(cycle, rows, CEILING, 100.0)

    return [lambda: detector.saturation(cycle, rows), lambda: detector.room(cycle, rows, CEILING, 100.0), first]


def main() -> None:
    print("endpoints  saturation  room  first of both")
    for size in SIZES:
        for name, make in DETECTORS.items():
            subjects = calls(size, make)
            rounds = [[seconds(call, BUDGET) for call in subjects] for _ in range(ROUNDS)]
            saturation, room, first = (min(times) * 1e6 for times in zip(*rounds, strict=True))
            print(f"{size:9}  {saturation:10.1f}  {room:4.1f}  {first:13.1f}  {name}")


if __name__ == "__main__":
    main()
