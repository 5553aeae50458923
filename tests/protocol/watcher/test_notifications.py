"""From Node objects in files to numbers in a picker's columns, over the real nats-server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.picker.app import PickerService
from services.picker.state.topology import TOPOLOGY, Topology
from shared.attributes import ALWAYS, AttributeKey
from shared.bus import jetstream
from shared.bus.errors import JetStreamError
from shared.bus.subjects import Subjects
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames
from tests.protocol.watcher.harness import WatcherProcess, by_role, pair, replace, watcher
from tests.waiting import TIMEOUT, eventually

GPU = AttributeKey("GPUClass", "node-labels-extractor", float)
MEMORY = AttributeKey("GPUMemory", "node-labels-extractor", float)
ZONE = "topology.kubernetes.io/zone"

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: node-labels-extractor
  parameters:
    attributes:
    - {label: nvidia.com/gpu.product, attributeKey: GPUClass, values: {NVIDIA-H100: 3, NVIDIA-A100: 2}}
    - {label: nvidia.com/gpu.memory, attributeKey: GPUMemory}
- type: topology-extractor
"""
PLAIN = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"


def node(name: str, product: str = "NVIDIA-H100", **labels: str) -> str:
    """A node as `kubectl get node -o yaml` prints it, with GPU Feature Discovery's labels."""
    extra = "".join(f"    nvidia.com/gpu.{key}: {value!r}\n" for key, value in labels.items())
    return f"""\
apiVersion: v1
kind: Node
metadata:
  creationTimestamp: "2026-08-01T12:00:00Z"
  labels:
    kubernetes.io/hostname: {name}
    nvidia.com/gpu.product: {product}
{extra}  name: {name}
  resourceVersion: "81531"
  uid: 2f3c6a0e-5f0e-4c0e-8f63-0f6f5d1c7f0b
spec:
  podCIDR: 10.244.1.0/24
status:
  addresses:
  - {{address: 192.168.0.11, type: InternalIP}}
  allocatable: {{cpu: "96", nvidia.com/gpu: "8"}}
  conditions:
  - {{type: Ready, status: "True", reason: KubeletReady}}
"""


def endpoints(**nodes: str) -> str:
    """An endpoints file: on which node each endpoint runs, and the node's name as its zone."""
    return "endpoints:\n" + "".join(
        f"- {{name: {name}, address: 10.0.0.{at}, port: 8000, node: {where!r}, labels: {{{ZONE}: zone-{where}}}}}\n"
        for at, (name, where) in enumerate(nodes.items(), 1)
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with two endpoints, their nodes, and a configuration."""
    directory = tmp_path / "files"
    directory.mkdir()
    (directory / "endpoints.yaml").write_text(endpoints(a="n1", b="n2"))
    (directory / "nodes.yaml").write_text(f"{node('n1', memory='81559')}---\n{node('n2', 'NVIDIA-A100')}")
    (directory / "config.yaml").write_text(CONFIG)
    return directory


def attributes(service: PickerService, name: str) -> dict[str, Any]:
    """What the picker's `/debug/state` shows of an endpoint."""
    state: list[dict[str, Any]] = list(service.state()["endpoints"])
    found: dict[str, Any] = next((entry["attributes"] for entry in state if entry["id"] == f"default/{name}"), {})
    return {wire.partition("/")[0]: each["value"] for wire, each in found.items()}


def numbers(service: PickerService, name: str) -> dict[str, float]:
    return {key: value for key, value in attributes(service, name).items() if key != "Topology"}


async def test_labels_of_nodes_are_numbers_of_the_endpoints_that_run_there_and_follow_them(
    nats: NatsServer, files: Path
) -> None:
    async with watcher(nats.url, endpoints_file=str(files)) as service, serving(picker(nats.url)) as seen:
        await eventually(lambda: numbers(seen, "a") == {"GPUClass": 3.0, "GPUMemory": 81559.0}, "the first node's")
        await eventually(lambda: numbers(seen, "b") == {"GPUClass": 2.0}, "the second node's")
        known = {each["id"]: each for each in service.state()["endpoints"]}
        assert known["default/b"]["attributes"] == {GPU.wire: 2.0}
        assert service.registry.get_sample_value("pointsman_watcher_objects") == 2
        replace(files / "nodes.yaml", f"{node('n1')}---\n{node('n2', memory='40960')}")
        await eventually(lambda: numbers(seen, "b") == {"GPUClass": 3.0, "GPUMemory": 40960.0}, "the label's change")
        await eventually(lambda: numbers(seen, "a") == {"GPUClass": 3.0}, "a label that is gone is forgotten")
        replace(files / "endpoints.yaml", endpoints(a="n2", b="n2"))
        await eventually(lambda: "GPUMemory" in numbers(seen, "a"), "the move to the other node")
        replace(files / "nodes.yaml", node("n1"))
        await eventually(lambda: numbers(seen, "a") == numbers(seen, "b") == {}, "the node is gone")


async def test_without_an_extractor_that_makes_attributes_nothing_is_sent(
    nats: NatsServer, frames: Frames, files: Path
) -> None:
    (files / "config.yaml").write_text(PLAIN)
    async with watcher(nats.url, endpoints_file=str(files)) as service:
        await eventually(lambda: service.readiness.ready, "an active watcher")
        await asyncio.sleep(0.6)  # everything is sent each 0.5 s
        assert frames.senders == []
        assert sum(map(len, service.state()["ignored"].values())) == 2
        attributes_bucket = Subjects().attributes_bucket

        async def empty() -> bool:
            try:
                return (await jetstream.extent(frames.bus, attributes_bucket, timeout=TIMEOUT)).last_sequence == 0
            except JetStreamError:
                return False

        await eventually(empty, "a bucket to which nobody has written")


async def test_a_pickers_topology_follows_labels_and_is_never_old(nats: NatsServer, files: Path) -> None:
    async with watcher(nats.url, endpoints_file=str(files)), serving(picker(nats.url)) as seen:
        await eventually(lambda: attributes(seen, "a").get("Topology") == Topology(zone="zone-n1"), "the topology")
        assert seen.view.columns.objects(TOPOLOGY).at.tolist() == [ALWAYS, ALWAYS]
        replace(files / "endpoints.yaml", endpoints(a="n2", b="n2", c="n1"))
        await eventually(lambda: attributes(seen, "a").get("Topology") == Topology(zone="zone-n2"), "the change")
        await eventually(lambda: attributes(seen, "c").get("Topology") == Topology(zone="zone-n1"), "the new one")
        replace(files / "endpoints.yaml", endpoints(c="n1"))
        await eventually(lambda: len(seen.view.layout) == 1, "one endpoint")
        assert attributes(seen, "c")["Topology"] == Topology(zone="zone-n1")
        value = seen.registry.get_sample_value
        labels = {"source": "endpoint-notification-source", "event": "deleted"}
        assert value("pointsman_datalayer_events_total", labels) == 2
        assert value("pointsman_plugin_failures_total", {"plugin": "topology-extractor"}) == 0


async def test_a_standby_sends_nothing_and_takes_over_from_a_leader_that_stands_still_for_good(
    nats: NatsServer, frames: Frames, tmp_path: Path, files: Path
) -> None:
    async with pair(nats, tmp_path, files) as both, serving(picker(nats.url)) as seen:

        async def who_leads_sends() -> tuple[WatcherProcess, ...]:
            """The two by role, once the frames of a while are all of the one that leads."""
            leader, standby = await by_role(*both)
            frames.senders.clear()
            await eventually(lambda: len(frames.senders) >= 4, "frames")
            assert set(frames.senders) == {leader.id}
            return leader, standby

        await eventually(lambda: numbers(seen, "b") == {"GPUClass": 2.0}, "the values")
        leader, standby = await eventually(who_leads_sends)
        leader.pause()
        replace(files / "nodes.yaml", node("n2"))
        await eventually(lambda: standby.id in frames.senders, "the standby's frames")
        await eventually(lambda: numbers(seen, "b") == {"GPUClass": 3.0}, "what changed meanwhile")
        await eventually(lambda: numbers(seen, "a") == {}, "what is gone meanwhile")
        leader.resume()
        await leader.ready()
        await eventually(who_leads_sends)


async def test_frames_are_back_when_nats_is(nats: NatsServer, files: Path) -> None:
    async with watcher(nats.url, endpoints_file=str(files)), serving(picker(nats.url)) as seen:
        await eventually(lambda: numbers(seen, "b") == {"GPUClass": 2.0}, "the values")
        nats.kill()
        nats.wipe()
        replace(files / "nodes.yaml", f"{node('n1')}---\n{node('n2')}")
        await nats.start()
        await eventually(lambda: numbers(seen, "b") == {"GPUClass": 3.0}, "what changed meanwhile")
        await eventually(lambda: numbers(seen, "a") == {"GPUClass": 3.0}, "what is gone meanwhile")
