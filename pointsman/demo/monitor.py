"""Observes the running system as an operator could: the bus, the tiers' `/debug/state` and `/metrics`, Envoy's
statistics."""

from collections.abc import Mapping
from typing import Any

import httpx

from pointsman.demo.stats import Buckets, Counters
from pointsman.local.process import Process, ProcessError
from pointsman.local.services import ServiceProcess
from pointsman.local.stack import LocalStack
from pointsman.top.snapshot import Snapshot, snapshot
from shared.pool_view.reader import PoolReader
from shared.pool_view.rows import EndpointRow

SECONDS = "pointsman_picker_decision_seconds_bucket"
SKIPPED = "pointsman_picker_skipped_stages_total"
RETRIES: Mapping[str, str] = {
    "servers": "cluster.model-servers.upstream_rq_retry",
    "pickers": "cluster.pickers.upstream_rq_retry",
}
"""Envoy's counters: requests that it sent to another server, and streams that it opened again at another picker."""


class Monitor:
    """Knows what the demo does to the stack's processes, and reads how they are."""

    def __init__(self, stack: LocalStack, reader: PoolReader, pool: str) -> None:
        self._stack = stack
        self._reader = reader
        self._pool = pool
        self._stopped: set[str] = set()
        """Names of the processes that the demo has stopped."""
        self._counters = {picker.name: Counters({SECONDS: "le", SKIPPED: "stage"}) for picker in stack.pickers}

    def stopped(self, process: Process) -> None:
        """The demo is about to stop this process."""
        self._stopped.add(process.name)

    def started(self, process: Process) -> None:
        """The process is up again."""
        self._stopped.discard(process.name)

    def look(self) -> Snapshot:
        """The pool now. Raises ProcessError if a process has ended that the demo didn't stop."""
        for process in self._stack.processes:
            if process.name not in self._stopped and not process.running:
                raise ProcessError(process, f"ended by itself, with exit code {process.exit_code}")
        return snapshot(self._reader, self._pool)

    def rows(self) -> dict[str, EndpointRow]:
        """The model servers by name."""
        return {row.name: row for row in self._reader.rows()}

    async def read(self, picker: ServiceProcess) -> Buckets:
        """All decision times of a picker so far. Those since the last reading before a restart are lost."""
        try:
            self._counters[picker.name].read(await picker.metrics())
        except httpx.HTTPError:  # it is down, so the last reading holds
            pass
        return self._counters[picker.name].by_label(SECONDS)

    async def skipped(self, stage: str) -> int:
        """Requests that had to do without this stage, at all pickers."""
        for picker in self._stack.pickers:
            await self.read(picker)
        return int(sum(counters.by_label(SKIPPED).get(stage, 0.0) for counters in self._counters.values()))

    async def state(self, service: ServiceProcess) -> Any:
        """Its `/debug/state`; None if it doesn't respond."""
        try:
            return await service.state()
        except httpx.HTTPError:
            return None

    async def retries(self) -> dict[str, int]:
        """Envoy's retries so far, by the names in `RETRIES`."""
        assert self._stack.envoy is not None, "the demo's plan has an Envoy"
        pattern = "|".join(f"^{name}$".replace(".", r"\.") for name in RETRIES.values())
        async with httpx.AsyncClient(base_url=self._stack.envoy.admin_url, trust_env=False) as client:
            return retries((await client.get("/stats", params={"filter": pattern})).text)

    def __repr__(self) -> str:
        return f"<Monitor of {self._stack!r}>"


def retries(text: str) -> dict[str, int]:
    """Envoy's retries to model servers and to pickers, from its `/stats`: lines of `name: value`."""
    stats = dict(line.rsplit(": ", 1) for line in text.splitlines() if ": " in line)
    return {key: int(stats.get(name, 0)) for key, name in RETRIES.items()}
