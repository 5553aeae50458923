"""Real pickers, and Envoys before them whose configuration a test has changed; the model servers are the test's own."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from pointsman.local.envoy import Envoy
from pointsman.local.ports import Ports
from pointsman.local.stack import LocalStack, StackPlan
from tests.protocol.watcher.harness import model_servers
from tests.waiting import eventually

Document: TypeAlias = dict[str, Any]


class System:
    """NATS, a watcher and a picker. No collector: what a pool's servers publish plays no part here."""

    def __init__(self, stack: LocalStack, ports: Ports, life: AsyncExitStack) -> None:
        self.stack = stack
        self.ports = ports
        self._life = life
        self._envoys: list[Envoy] = []

    async def endpoints(self, servers: Mapping[str, str]) -> None:
        """Make these the pool, by name and `address:port`; returns when the picker and Envoys with a list have them."""
        entries = [
            {"name": name, "address": authority.rpartition(":")[0], "port": int(authority.rpartition(":")[2])}
            for name, authority in servers.items()
        ]
        text = f"{yaml.safe_dump({'endpoints': entries})}---\n{self.stack.plan.resources}"
        draft = self.stack.endpoints_file.with_suffix(".new")
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, self.stack.endpoints_file)
        await eventually(lambda: self._known(servers), "the endpoints", step=0.02)

    async def _known(self, servers: Mapping[str, str]) -> bool:
        state = await self.stack.pickers[0].state()
        if {endpoint["id"] for endpoint in state["endpoints"]} != {f"default/{name}" for name in servers}:
            return False
        ports = {authority.rpartition(":")[2] for authority in servers.values()}
        if not self.stack.eds_file.exists() or not all(port in self.stack.eds_file.read_text() for port in ports):
            return False
        return all([await model_servers(envoy.places.admin_port) == set(servers.values()) for envoy in self._envoys])

    async def envoy(self, name: str, document: Document) -> Envoy:
        path = self.stack.directory / f"{name}-form.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        envoy = await self._life.enter_async_context(self.stack.further_envoy(name, path))
        if named(document, "clusters", "model-servers")["type"] == "EDS":  # a gateway's takes any that is picked
            self._envoys.append(envoy)
        return envoy


@asynccontextmanager
async def system(
    directory: Path, servers: Mapping[str, str], configuration: str, resources: str = "", **picker: str
) -> AsyncIterator[System]:
    """The processes for this pool. `picker` are further flags, with underscores for dashes."""
    flags = {"drain-delay": "0s", **{name.replace("_", "-"): value for name, value in picker.items()}}
    plan = StackPlan(
        simulators=(),
        collectors=0,
        pickers=1,
        configuration=configuration,
        resources=resources,
        envoy=None,
        flags={"picker": flags},
    )
    with Ports() as ports:
        async with LocalStack(plan, directory) as stack, AsyncExitStack() as life:
            started = System(stack, ports, life)
            await started.endpoints(servers)
            yield started


def manager(listener: Document) -> Document:
    """The HTTP connection manager of a listener."""
    found: Document = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def ext_proc(listener: Document) -> Document:
    """The ext_proc filter of a listener."""
    found: Document = next(
        http_filter["typed_config"]
        for http_filter in manager(listener)["http_filters"]
        if http_filter["name"] == "envoy.filters.http.ext_proc"
    )
    return found


def named(document: Document, kind: str, name: str) -> Document:
    """One of the `listeners` or `clusters`."""
    found: Document = next(resource for resource in document["static_resources"][kind] if resource["name"] == name)
    return found
