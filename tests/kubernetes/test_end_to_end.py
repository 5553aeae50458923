"""The whole system on a cluster, under load: kube-apiserver, NATS, two watchers, a collector, two pickers, Envoy, and
simulators that are pods."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from pointsman.local.envoy import GATEWAY, STANDALONE
from pointsman.local.ports import Ports
from pointsman.local.services import Address, Simulator
from pointsman.local.stack import ENGINE_LABEL, LocalStack, StackPlan
from tests.faults.system.conftest import leading
from tests.faults.system.load import Load
from tests.kubernetes.api import Api
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.pods import Pods
from tests.kubernetes.watching import LABELS, POOL, pool_document
from tests.waiting import eventually

STARTED = ("model-1", "model-2", "model-3")
ADDED = ("model-4", "model-5")
CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: active-request-scorer
- type: max-score-picker
  parameters: {{maxNumOfEndpoints: {endpoints}}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer}}
  - {{pluginRef: active-request-scorer}}
  - {{pluginRef: max-score-picker}}
"""
"""By load alone, so that a new server gets requests at once. Ours asks for fallbacks, a gateway for one place."""
SELECTED = {**LABELS, ENGINE_LABEL: "vllm"}


class Cluster:
    """Simulators that are pods: each has an address of its own, and all of them the same port."""

    def __init__(self, admin: Api, pods: Pods, directory: Path, port: int) -> None:
        self.port = port
        self.pods = pods
        self.admin = admin
        self.simulators = {
            name: Simulator(name, directory, Address(port, f"127.0.0.{at}"), {}, {"speed": 10})
            for at, name in enumerate((*STARTED, *ADDED), 11)
        }

    async def add(self, name: str) -> None:
        """A pod is scheduled, its server starts, and then it is ready."""
        await self.pods.create(name, labels=SELECTED)
        await self.simulators[name].start()
        await self.pods.report(name, self.simulators[name].http.host)

    async def remove(self, name: str, hook: Callable[[], Awaitable[None]]) -> None:
        """A pod is deleted: not ready, terminating, and after its preStop hook its server is told to end."""
        await self.pods.report(name, ready=False)
        await self.pods.terminate(name)
        await hook()
        await self.simulators[name].stop()
        await self.pods.delete(name)

    async def close(self) -> None:
        for simulator in self.simulators.values():
            simulator.kill_now()


@asynccontextmanager
async def system(
    server: ApiServer, admin: Api, pods: Pods, directory: Path, envoy: Path
) -> AsyncIterator[tuple[LocalStack, Cluster]]:
    """Everything, ready, with three pods."""
    async with AsyncExitStack() as stack:
        ports = stack.enter_context(Ports())
        cluster = Cluster(admin, pods, directory, ports.take("the model servers"))
        stack.push_async_callback(cluster.close)
        await admin.create(pool_document(ports=(cluster.port,)), pods.namespace)
        await asyncio.gather(*map(cluster.add, STARTED))
        ours = envoy == STANDALONE
        plan = StackPlan(
            simulators=(),
            watchers=2,
            collectors=1,
            pickers=2,
            configuration=CONFIGURATION.format(endpoints=3 if ours else 1),
            kubeconfig=str(server.kubeconfig(directory / "kubeconfig", namespace=pods.namespace)),
            pool_name=POOL,
            pool_namespace=pods.namespace,
            envoy=envoy,
            secure_serving=not ours,
        )
        yield await stack.enter_async_context(LocalStack(plan, directory / "stack")), cluster


async def views_are(stack: LocalStack, cluster: Cluster, *expected: str) -> None:
    """Wait until both pickers have exactly these pods."""
    wanted = {
        f"{cluster.pods.namespace}/{condition}-rank-0": f"{cluster.simulators[condition].http.host}:{cluster.port}"
        for condition in expected
    }

    async def same() -> bool:
        states = [await picker.state() for picker in stack.pickers]
        return all(
            {endpoint["id"]: endpoint["authority"] for endpoint in state["endpoints"]} == wanted for state in states
        )

    await eventually(same, f"{expected} in every view")


async def is_served_by(load: Load, name: str) -> None:
    """Wait until a server has answered something more than by now."""
    before = load.served.get(name, 0)
    await eventually(lambda: load.served.get(name, 0) > before, f"{name} gets a request")


@pytest.mark.parametrize("envoy", [STANDALONE, GATEWAY], ids=["ours", "gateway"])
async def test_whatever_happens_to_pods_no_request_fails_and_the_views_follow(
    apiserver: ApiServer, admin: Api, pods: Pods, tmp_path: Path, envoy: Path
) -> None:
    async with system(apiserver, admin, pods, tmp_path, envoy) as (stack, cluster):
        await views_are(stack, cluster, *STARTED)
        async with Load(stack.url, workers=4) as load:
            await asyncio.gather(*(is_served_by(load, name) for name in STARTED))

            await asyncio.gather(*map(cluster.add, ADDED))  # scale up
            await views_are(stack, cluster, *STARTED, *ADDED)
            await asyncio.gather(*(is_served_by(load, name) for name in ADDED))

            async def gone(*names: str) -> None:
                """What a preStop hook waits for: the pickers know, and what was picked before has ended."""
                await views_are(stack, cluster, *names)
                await load.goes_on()

            await cluster.remove("model-1", lambda: gone("model-2", "model-3", *ADDED))  # scale down

            await pods.label("model-2", {"app": "under-maintenance"})
            await views_are(stack, cluster, "model-3", *ADDED)
            await pods.label("model-2", LABELS)
            await views_are(stack, cluster, "model-2", "model-3", *ADDED)
            await is_served_by(load, "model-2")

            leader = await leading(stack)
            await leader.kill()
            await cluster.remove("model-5", lambda: gone("model-2", "model-3", "model-4"))
            await cluster.add("model-1")
            await views_are(stack, cluster, "model-1", "model-2", "model-3", "model-4")
            await leading(stack, but=leader)
            await leader.start()
            await is_served_by(load, "model-1")
        assert not load.failures, load.failures[:5]
        await views_are(stack, cluster, "model-1", "model-2", "model-3", "model-4")
