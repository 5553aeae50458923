"""`pointsman lab PROFILE…`: simulates profiles and numbers of pickers, and compares the results."""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from pointsman.command import Format, parse_options, print_json, refuse, usage_errors
from pointsman.lab.report import Figures, figures, plot, table
from pointsman.lab.simulation import STREAM_INTERVAL, Result, Scenario, Simulation
from pointsman.lab.workload import Groups, Trace
from services.simulator.settings import SimulatorSettings
from shared.config import LoadedConfig, load
from shared.plugin import Registry
from shared.quantities import Duration
from shared.service.settings import read_text

DEFAULT = "default"
"""The built-in default configuration."""
_GROUPS, _SERVERS = Groups(), Scenario().settings
MAX_FILE = 4 * 2**20


class LabOptions(Struct, frozen=True, kw_only=True):
    """Simulates profiles with several pickers and model servers, and compares the results.

    The decisions are those of real pickers; servers, messages and time are simulated. Equal seeds give equal results.
    """

    profiles: Annotated[
        tuple[str, ...],
        Meta(description="EndpointPickerConfigs, or default for the built-in one", extra={"argument": "PROFILE…"}),
    ] = (DEFAULT,)
    pickers: Annotated[tuple[int, ...], Meta(description="numbers of pickers")] = (1, 2, 4)
    contrast: Annotated[
        bool,
        Meta(
            description="add two cases with the most pickers: one picker is killed midway; pickers share no placements"
        ),
    ] = True
    seed: Annotated[int, Meta(ge=0, description="seed of the requests and of all random choices")] = 1
    runs: Annotated[
        int, Meta(ge=1, description="runs of each case, with consecutive seeds; their figures are combined")
    ] = 1
    jobs: Annotated[int, Meta(ge=1, description="runs at a time, each in a process of its own")] = 1
    warmup: Annotated[Duration, Meta(description="time at the beginning that isn't counted")] = 15.0
    trace: Annotated[str, Meta(description="JSON lines with the requests; default: the workload below")] = ""
    hash_tokens: Annotated[int, Meta(ge=1, description="number of tokens that a hash of the trace stands for")] = 512
    speed: Annotated[
        float,
        Meta(
            ge=0.001,
            le=1000,
            description="factor by which the requests of the trace come faster, from 0.001 to 1000; after it, the trace"
            " may last a day",
        ),
    ] = 1.0
    rate: Annotated[float, Meta(gt=0, description="requests a second")] = _GROUPS.rate
    duration: Annotated[Duration, Meta(description="time for which requests arrive")] = _GROUPS.seconds
    groups: Annotated[int, Meta(ge=1, description="groups of prompts with a common prefix")] = _GROUPS.groups
    skew: Annotated[float, Meta(ge=0, description="exponent of Zipf's law over the groups")] = _GROUPS.skew
    prefix_tokens: Annotated[int, Meta(ge=0, description="tokens of a common prefix")] = _GROUPS.prefix_tokens
    own_tokens: Annotated[int, Meta(ge=0, description="mean tokens of a prompt after the prefix")] = _GROUPS.own_tokens
    output_tokens: Annotated[int, Meta(ge=1, description="mean tokens of a response")] = _GROUPS.output_tokens
    servers: Annotated[int, Meta(ge=1, description="model servers")] = 8
    slots: Annotated[int, Meta(ge=1, description="requests in a server's batch")] = _SERVERS.slots
    kv_blocks: Annotated[int, Meta(ge=1, description="KV cache blocks of a server")] = _SERVERS.kv_blocks
    block_tokens: Annotated[int, Meta(ge=1, description="tokens in a KV cache block")] = _SERVERS.block_tokens
    prefill_time: Annotated[Duration, Meta(description="time for an uncached prompt token")] = _SERVERS.prefill_time
    decode_time: Annotated[Duration, Meta(description="time for an output token of a request that runs alone")] = (
        _SERVERS.decode_time
    )
    decode_growth: Annotated[
        float, Meta(ge=0, description="share of decode-time that every further request in the batch adds")
    ] = _SERVERS.decode_growth
    plot: Annotated[str, Meta(description="an SVG file to write")] = ""
    format: Format = "text"

    def __post_init__(self) -> None:
        if not self.pickers or min(self.pickers) < 1:
            raise ValueError("--pickers: at least one picker is needed")

    @property
    def source(self) -> Groups | Trace:
        """Where requests come from."""
        if self.trace:
            return Trace(path=self.trace, hash_tokens=self.hash_tokens, speed=self.speed)
        return Groups(
            rate=self.rate,
            seconds=self.duration,
            groups=self.groups,
            skew=self.skew,
            prefix_tokens=self.prefix_tokens,
            own_tokens=self.own_tokens,
            output_tokens=self.output_tokens,
        )

    @property
    def settings(self) -> SimulatorSettings:
        """Of each server."""
        return SimulatorSettings(
            slots=self.slots,
            kv_blocks=self.kv_blocks,
            block_tokens=self.block_tokens,
            prefill_time=self.prefill_time,
            decode_time=self.decode_time,
            decode_growth=self.decode_growth,
            stream_interval=STREAM_INTERVAL,
        )

    def cases(self, end: float) -> Iterator[tuple[str, Scenario]]:
        """What is simulated of each profile, by name. `end` is when the last request comes."""
        scenario = Scenario(servers=self.servers, settings=self.settings)
        for pickers in self.pickers:
            yield f"{pickers} picker{'s' if pickers > 1 else ''}", replace(scenario, pickers=pickers)
        most = max(self.pickers)
        if self.contrast and most > 1:
            yield f"{most}, one killed", replace(scenario, pickers=most, kill_at=end / 2)
            yield f"{most}, not sharing", replace(scenario, pickers=most, sharing=False)


def simulate(text: str, origin: str, scenario: Scenario, source: Groups | Trace) -> Result:
    """One run of a profile, which is a document."""
    return Simulation(_loaded(text, origin), scenario, source.arrivals(scenario.seed)).run()


def _loaded(text: str, origin: str) -> LoadedConfig:
    return load(text, Registry.installed(), origin, allow_experimental=True)


def compare(options: LabOptions, profiles: dict[str, str]) -> Iterator[Figures]:
    """The figures of all profiles, which are documents by their names, case by case. Raises `TraceError`, OSError."""
    source = options.source
    end = max((arrival.at for arrival in source.arrivals(options.seed)), default=0.0)
    seeds = range(options.seed, options.seed + options.runs)
    runs = [
        (name, case, text, [replace(scenario, seed=seed) for seed in seeds])
        for name, text in profiles.items()
        for case, scenario in options.cases(end)
    ]
    if options.jobs == 1:
        for name, case, text, scenarios in runs:
            results = [simulate(text, name, scenario, source) for scenario in scenarios]
            yield figures(name, case, results, options.warmup)
        return
    with ProcessPoolExecutor(options.jobs) as pool:
        begun = [
            (name, case, [pool.submit(simulate, text, name, scenario, source) for scenario in scenarios])
            for name, case, text, scenarios in runs
        ]
        for name, case, futures in begun:
            yield figures(name, case, [future.result() for future in futures], options.warmup)


def main(argv: Sequence[str]) -> int:
    """`pointsman lab`: 0, or 2 for wrong options, profiles or traces."""
    options = parse_options(LabOptions, argv, "lab")
    profiles: dict[str, str] = {}
    with usage_errors():
        for path in options.profiles:
            text = "" if path == DEFAULT else read_text(path, path, MAX_FILE)
            name = Path(path).stem
            _loaded(text, path)
            profiles[name if name not in profiles else path] = text
    try:
        rows = list(compare(options, profiles))
    except (ValueError, OSError) as error:
        refuse(ValueError(str(error)))
    if options.plot:
        Path(options.plot).write_text(plot(rows), encoding="utf-8")
    if options.format == "json":
        print_json(rows)
    else:
        print("\n".join(table(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
