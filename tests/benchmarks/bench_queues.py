"""Flow control of 1, 2 and 4 pickers behind the real Envoy, while clients ask for 1.5 times what the pool serves.

    python -m tests.benchmarks.bench_queues [--pickers 1,2,4] [--seconds 60] [--plot queues.svg] …

Each picker has an Envoy of its own, so that the clients choose the picker. There are three bands: `urgent` (priority
10, a tenth of the pool's capacity), 50 flows of priority 0, one of which asks for ten times as much as each other, and
`batch` (-1, 5 % of the capacity). Half of the small flows' requests come to the first picker, a quarter to the second,
and so on; those of the great flow the other way round.

Every case has three parts, in one stack: `maximum`, the tokens a second with flow control off and more requests than
fit; `idle`, only the urgent requests; and the load. It prints

- throughput: tokens a second under load, as a share of the maximum;
- TTFT of the urgent band under load, p50 and p99, over that of the idle pool;
- Jain's index of the tokens that the flows of priority 0 got, each as a share of what is max-min fair;
- great: what the great flow got, as a share of what is fair;
- CPU idle, pickers: the share of the machine that was idle under load, and the cores that all pickers took.

The last two cases are the contrasts, with the most pickers: they ignore each other's queues (`hearing load`), or their
load, too (`hearing nothing`). All cases take a quarter of an hour.

`--peer EPP` names a binary of the Go endpoint picker (go_peer.py says how to build it), and compares one replica of it,
behind the configuration of a gateway, with one picker. With endpoints from a file it reads no InferenceObjectives, so
both get the flows of priority 0 alone.

`concurrency-detector` is sized to the servers' slots. `--held` slots are held back from the lower bands by
`priority-holdback-policy`; with 0, an urgent request waits for the end of another one.
"""

import argparse
import asyncio
import math
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from msgspec import Struct

from pointsman.lab.plot import Panel, draw
from pointsman.local.envoy import GATEWAY, STANDALONE, Envoy, EnvoyPlaces, PickerAddress
from pointsman.local.ports import Ports
from pointsman.local.process import Process
from pointsman.local.stack import LocalStack, StackPlan, simulators
from services.picker.flow_control.shares import water_fill
from shared.service import logs
from tests.benchmarks.go_peer import GoPeer
from tests.benchmarks.queue_load import Flow, Load, Record
from tests.waiting import eventually

URGENT, GREAT, SMALL, BATCH = "urgent", "great", 49, "batch"
TICK = os.sysconf("SC_CLK_TCK")
HEAD = f"{'':28}{'throughput':>11}{'TTFT, p50':>11}{'p99':>7}{'Jain':>9}{'great':>8}"
CPU_HEAD = f"{'CPU idle':>10}{'pickers':>9}"
CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [{gate}]
plugins:
- {{type: concurrency-detector, parameters: {{maxConcurrency: {slots}}}}}
- type: active-request-scorer
- type: round-robin-fairness-policy
- {{type: priority-holdback-policy, parameters: {{minCeiling: {least}}}}}
- type: static-usage-limit-policy
schedulingProfiles:
- {{name: default, plugins: [{{pluginRef: active-request-scorer}}]}}
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  usageLimitPolicyPluginRef: {limits}
  defaultPriorityBand: {{fairnessPolicyRef: round-robin-fairness-policy}}
  defaultRequestTTL: 115s
"""
OBJECTIVES = "---\n".join(
    f"""\
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {{name: {name}}}
spec: {{priority: {priority}, poolRef: {{name: default}}}}
"""
    for name, priority in ((URGENT, 10), (BATCH, -1))
)


class Result(Struct, frozen=True):
    """What one case has shown."""

    title: str
    maximum: float
    """Tokens a second."""
    idle: list[float]
    """TTFTs of the idle pool."""
    record: Record
    begin: float
    end: float
    fair: dict[str, float]
    """Each flow's share of what the flows of priority 0 get."""
    idle_cpu: float = math.nan
    picker_cpu: float = math.nan
    """Cores."""


def configuration(given: argparse.Namespace, *, flow_control: bool) -> str:
    """The EndpointPickerConfig."""
    held = given.held / (given.slots * given.servers)
    return CONFIGURATION.format(
        gate="flowControl" if flow_control else "",
        slots=given.slots,
        least=1 - 2 * held if held else 0,  # that of the band in the middle is `held`
        limits="priority-holdback-policy" if held else "static-usage-limit-policy",
    )


def estimate(given: argparse.Namespace) -> float:
    """Requests a second that the servers can serve, by the simulator's arithmetic."""
    step = given.decode_ms * (1 + given.decode_growth * (given.slots - 1))
    prefill = given.prefill_ms * (given.urgent * given.urgent_prompt + (1 - given.urgent) * given.prompt)
    rate = given.slots / (given.tokens * step)
    return float(given.servers * 1000 * rate / (1 + rate * prefill))


def flows_of(given: argparse.Namespace, pickers: int, capacity: float, urgent: float) -> list[Flow]:
    """The urgent flow first, the batch flow last. `capacity` is in requests a second."""
    uneven = tuple(0.5 ** min(number, pickers - 2) if pickers > 1 else 1.0 for number in range(pickers))
    even = (1.0,) * pickers
    small = (given.load - urgent - given.batch) * capacity / (10 + SMALL)
    return [
        Flow(name=URGENT, objective=URGENT, rate=urgent * capacity, prompt=given.urgent_prompt, weights=even),
        Flow(name=GREAT, rate=10 * small, prompt=given.prompt, weights=uneven[::-1]),
        *(Flow(name=f"small-{number}", rate=small, prompt=given.prompt, weights=uneven) for number in range(SMALL)),
        Flow(name=BATCH, objective=BATCH, rate=given.batch * capacity, prompt=given.prompt, weights=even),
    ]


def fair(flows: Sequence[Flow], left: float, capacity: float) -> dict[str, float]:
    """What is a max-min fair share of what these flows get, by flow: they are left this share of the capacity."""
    demands = np.array([flow.rate for flow in flows])
    parts = water_fill(left * capacity, demands, np.ones(len(demands)))
    return {flow.name: float(part) for flow, part in zip(flows, parts / parts.sum(), strict=True)}


def title(pickers: int, hear: str) -> str:
    named = "1 picker" if pickers == 1 else f"{pickers} pickers"
    return named if hear == "all" else f"{named}, hearing {hear}"


class Case:
    """A stack with so many pickers, and its three parts."""

    ENVOY = STANDALONE

    def __init__(
        self, arguments: argparse.Namespace, pickers: int, hear: str, directory: Path, *, one_band: bool = False
    ) -> None:
        self._arguments, self._hear, self._directory, self._one_band = arguments, hear, directory, one_band
        given = arguments
        flags = {
            "slots": given.slots,
            "prefill_time": f"{given.prefill_ms}ms",
            "decode_time": f"{given.decode_ms}ms",
            "decode_growth": given.decode_growth,
            "prefix_caching": "false",
            "stream_interval": max(given.tokens // 4, 1),
        }
        plan = StackPlan(
            simulators=simulators(given.servers, **flags),
            collectors=1,
            pickers=pickers,
            configuration=configuration(arguments, flow_control=False),
            resources=OBJECTIVES,
            envoy=None,
            flags={
                "watcher": {"allow-experimental-plugins": "true"},
                "picker": {"allow-experimental-plugins": "true", "drain-delay": "0s", "drain-timeout": "3s"},
            },
            log_level="warning",
        )
        self._stack = LocalStack(plan, directory)
        for picker in self._stack.pickers:
            picker.command[1:3] = ["-m", __spec__.name, f"--listen={hear}"]  # instead of -m pointsman

    @property
    def title(self) -> str:
        return f"{title(len(self._addresses), self._hear)}{', one band' if self._one_band else ''}"

    @property
    def _processes(self) -> Sequence[Process]:
        return self._stack.pickers

    @property
    def _addresses(self) -> Sequence[PickerAddress]:
        return [picker.address for picker in self._stack.pickers]

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        async with self._stack:
            yield

    def _flows(self, capacity: float, urgent: float) -> list[Flow]:
        given = self._arguments
        if not self._one_band:
            return flows_of(given, len(self._addresses), capacity, urgent)
        alone = argparse.Namespace(**{**vars(given), "batch": 0.0})
        return flows_of(alone, len(self._addresses), capacity, 0.0)[1:-1]

    async def run(self) -> Result:
        given, pickers = self._arguments, self._processes
        async with self._running(), self._envoys() as urls:
            load = Load(urls, self._flows(estimate(given), given.urgent * given.load), given.tokens)
            maximum = (await load.run(given.settle + given.part)).throughput(given.settle, given.settle + given.part)
            await self._nothing_in_flight()
            await self._switch_on()
            flows = self._flows(maximum / given.tokens, given.urgent)
            urgent = flows_of(given, len(pickers), maximum / given.tokens, given.urgent)[:1]
            idle = await Load(urls, urgent, given.tokens).run(given.part)
            await self._nothing_in_flight()
            load = Load(urls, flows, given.tokens)
            running = asyncio.create_task(load.run(given.settle + given.seconds))
            await asyncio.sleep(given.settle)
            machine, own = _machine(), [_cpu(picker) for picker in pickers]
            await asyncio.sleep(given.seconds - 0.5)
            passed, used = _machine(), sum(map(_cpu, pickers)) - sum(own)
            record = await running
        return Result(
            title=self.title,
            maximum=maximum,
            idle=idle.ttft(URGENT, 0, given.part - 2),
            record=record,
            begin=given.settle,
            end=given.settle + given.seconds,
            fair=fair(
                flows if self._one_band else flows[1:-1],
                1.0 if self._one_band else 1 - given.urgent,
                maximum / given.tokens,
            ),
            idle_cpu=(passed[0] - machine[0]) / (passed[1] - machine[1]),
            picker_cpu=used / (given.seconds - 0.5),
        )

    async def _switch_on(self) -> None:
        """Have the pickers control flows."""
        self._stack.write_configuration(configuration(self._arguments, flow_control=True))
        await eventually(self._flow_control, "flow control is on")

    @asynccontextmanager
    async def _envoys(self) -> AsyncIterator[list[str]]:
        """The URL of an Envoy for each picker."""
        stack = self._stack
        await eventually(stack.eds_file.exists, "Envoy's endpoints")
        async with AsyncExitStack() as exits:
            ports = exits.enter_context(Ports())
            urls = []
            for number, address in enumerate(self._addresses, 1):
                places = EnvoyPlaces(
                    port=ports.take("Envoy"),
                    admin_port=ports.take("Envoy's admin"),
                    stats_port=ports.take("Envoy's statistics"),
                    pickers=(address,),
                    eds_file=stack.eds_file if self.ENVOY is STANDALONE else None,
                    picker_tls=False,
                )
                envoy = Envoy(self._directory, self.ENVOY, places, name=f"envoy-{number}")
                urls.append((await exits.enter_async_context(envoy)).url)
            yield urls

    async def _nothing_in_flight(self) -> None:
        async def so() -> bool:
            states = [await picker.state() for picker in self._stack.pickers]
            return not any(endpoint["inflight"]["requests"] for state in states for endpoint in state["endpoints"])

        await eventually(so, "nothing in flight", step=0.1)

    async def _flow_control(self) -> bool:
        return all([(await picker.state())["flow_control"] for picker in self._stack.pickers])


class PeerCase(Case):
    """One replica of the Go endpoint picker in place of the pickers."""

    ENVOY = GATEWAY

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        super().__init__(arguments, 0, "all", directory, one_band=True)
        self._ports = Ports()
        self._peer = GoPeer(Path(arguments.peer), directory, self._ports, self._stack.simulators)

    @property
    def title(self) -> str:
        return "the Go original, one band"

    @property
    def _processes(self) -> Sequence[Process]:
        return [self._peer]

    @property
    def _addresses(self) -> Sequence[PickerAddress]:
        return [self._peer.address]

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        self._peer.configure(configuration(self._arguments, flow_control=False))
        with self._ports:
            async with self._stack, self._peer:
                yield

    async def _switch_on(self) -> None:
        await self._peer.stop()
        self._peer.configure(configuration(self._arguments, flow_control=True))
        await self._peer.start()
        await asyncio.sleep(3)  # Envoy's health check

    async def _nothing_in_flight(self) -> None:
        async def so() -> bool:
            states = [await server.state() for server in self._stack.simulators]
            return not any(state["running"] or state["waiting"] for state in states)

        await eventually(so, "nothing in flight", step=0.1)


def _machine() -> tuple[float, float]:
    """CPU time of the machine: idle, and all."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return ticks[3] + ticks[4], sum(ticks[:8])


def _cpu(picker: Process) -> float:
    """CPU seconds of the process."""
    fields = Path(f"/proc/{picker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 if all are equal, 1/n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def row(result: Result) -> str:
    record, begin, end = result.record, result.begin, result.end
    served = record.served(begin, end)
    total = sum(served[name] for name in result.fair)
    shares = {name: served[name] / total / fair for name, fair in result.fair.items()}
    before = np.percentile(result.idle, [50, 99])
    urgent = record.ttft(URGENT, begin, end)
    under = np.percentile(urgent or [math.nan], [50, 99])
    cpu = "" if math.isnan(result.idle_cpu) else f"{result.idle_cpu:10.0%}{result.picker_cpu:9.2f}"
    return (
        f"{result.title:28}{record.throughput(begin, end) / result.maximum:11.1%}"
        f"{under[0] / before[0]:11.2f}{under[1] / before[1]:7.2f}{jain([*shares.values()]):9.3f}{shares[GREAT]:8.2f}"
        f"{cpu}   (maximum {result.maximum:.0f} tokens/s, idle TTFT {before[0] * 1e3:.0f}, {before[1] * 1e3:.0f} ms,"
        f" {len(urgent)} urgent requests"
        f"{', failures ' + str(dict(record.failures)) if record.failures else ''})"
    )


def panels(result: Result) -> list[Panel]:
    """What is drawn of a case, second by second."""
    record, length = result.record, int(result.end)
    seconds = list(range(length))
    by_flow = [record.served(second, second + 1) for second in seconds]
    totals = [sum(served.values()) / result.maximum for served in by_flow]
    idle = float(np.median(result.idle))
    first = [[value / idle for value in record.ttft(URGENT, second, second + 1)] for second in seconds]
    served = {
        name: np.cumsum([flows[name] for flows in by_flow]).tolist() for name in (*list(result.fair)[::-1], BATCH)
    }
    return [
        Panel(f"{result.title}: throughput / maximum", {"all": totals}, 1.2),
        Panel("urgent band: largest TTFT / idle", {URGENT: [max(values, default=0) for values in first]}, 3.0),
        Panel("tokens by flow", served, None),
    ]


async def measure(arguments: argparse.Namespace) -> list[list[Panel]]:
    """Runs the cases, and prints their rows; what is to be drawn of each."""
    print(HEAD + CPU_HEAD)
    columns = []
    numbers = [int(word) for word in arguments.pickers.split(",")]
    if arguments.peer:
        for peer in (False, True):
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory)
                case = PeerCase(arguments, path) if peer else Case(arguments, 1, "all", path, one_band=True)
                print(row(await case.run()), flush=True)
        return []
    for hear in arguments.hear.split(","):
        for pickers in numbers if hear == "all" else [max(numbers)]:
            with tempfile.TemporaryDirectory() as directory:
                result = await Case(arguments, pickers, hear, Path(directory)).run()
            print(row(result), flush=True)
            columns.append(panels(result))
    return columns


def listen(heard: str, words: list[str]) -> int:
    """A picker that ignores what it isn't to hear of its peers."""
    from pointsman.cli import main as pointsman
    from services.picker.flow_control.admission import FlowAdmission
    from shared.bus.subjects import Subjects

    if heard == "nothing":
        Subjects.loads = lambda self, pool: f"{self.prefix}.{pool}.nobody"  # type: ignore[method-assign]
    elif heard == "load":
        FlowAdmission.apply = lambda *_: None  # type: ignore[method-assign]
    return pointsman(words)


def parser(text: str | None) -> argparse.ArgumentParser:
    """The flags of this benchmark."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)

    def flag(name: str, default: Any, text: str) -> None:
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} (default: {default})")

    flag("pickers", "1,2,4", "numbers of pickers")
    flag("hear", "all,load,nothing", "what pickers hear of each other")
    flag("seconds", 60.0, "seconds under load that count")
    flag("settle", 20.0, "seconds before them")
    flag("part", 25.0, "seconds for the maximum, and for the idle pool")
    flag("load", 1.5, "requests, as a multiple of the maximum")
    flag("urgent", 0.1, "share of the maximum that is urgent")
    flag("batch", 0.05, "requests of the batch band, as a share of the maximum")
    flag("held", 4, "slots held back from priority 0, and twice as many from priority -1")
    flag("servers", 4, "simulated model servers")
    flag("slots", 32, "requests that a server runs at once")
    flag("tokens", 340, "tokens of an answer")
    flag("prompt", 20, "tokens of a prompt")
    flag("urgent-prompt", 500, "tokens of an urgent one")
    flag("prefill-ms", 0.8, "time of a prompt token")
    flag("decode-ms", 12.0, "time of a step with one request")
    flag("decode-growth", 0.045, "what each further request adds to a step, as a share")
    flag("plot", "", "an SVG file to draw")
    flag("peer", "", "a binary of the Go endpoint picker to compare with")
    return parser


def main() -> None:
    if sys.argv[1:] and sys.argv[1].startswith("--listen="):
        sys.exit(listen(sys.argv[1].partition("=")[2], sys.argv[2:]))
    logs.configure("warning", "console")
    arguments = parser(__doc__).parse_args()
    columns = uvloop.run(measure(arguments))
    if arguments.plot:
        Path(arguments.plot).write_text(draw(columns), encoding="utf-8")


if __name__ == "__main__":
    main()
