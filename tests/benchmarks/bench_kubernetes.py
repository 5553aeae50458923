"""What it costs to list pods and to follow them: seconds, memory, CPU of one event.

    python -m tests.benchmarks.bench_kubernetes

A stand-in API server in a process of its own has 5 000 pods of about 6 kB of JSON and serves them in pages of 500 over
HTTP; nothing of its own cost is counted. The client, in another process each time, lists them (keeping whole objects,
or only what an endpoint needs), then takes 20 000 events of one watch. Memory is the peak resident set of the client's
process, and what it was before the list.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from services.watcher.kubernetes.client import connect
from services.watcher.kubernetes.reflector import Reflector, Reset, Upsert
from services.watcher.kubernetes.resource import JsonObject, Resource, Selection, tidy
from services.watcher.kubernetes.settings import KubernetesSettings
from tests.fake_kubernetes.cluster import PODS, line
from tests.fake_kubernetes.server import ApiServer

PODS_LISTED = 5_000
EVENTS = 20_000
PAGE = 500


def pod(number: int) -> dict[str, Any]:
    """A model server's pod as a cluster has it: scheduled, running, with its managed fields."""
    name = f"vllm-llama3-8b-instruct-7d9c6f5b8-{number:05}"
    fields: dict[str, Any] = {f"f:field{number}": {".": {}, "f:name": {}, "f:value": {}} for number in range(25)}
    environment = [{"name": f"VLLM_OPTION_{number}", "value": f"value-{number}"} for number in range(20)]
    mounts = [
        {"name": f"volume-{number}", "mountPath": f"/mnt/volume-{number}", "readOnly": True} for number in range(5)
    ]
    times = "2026-08-01T12:00:00Z"
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": times}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    probe = {"httpGet": {"path": "/health", "port": "http", "scheme": "HTTP"}, "periodSeconds": 5, "timeoutSeconds": 1}
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.10.0",
        "args": ["--model", "meta-llama/Llama-3.1-8B-Instruct", "--tensor-parallel-size", "1", "--port", "8000"],
        "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
        "env": environment,
        "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
        "volumeMounts": mounts,
        "livenessProbe": probe,
        "readinessProbe": probe,
        "startupProbe": probe,
    }
    return {
        "metadata": {
            "name": name,
            "generateName": "vllm-llama3-8b-instruct-7d9c6f5b8-",
            "namespace": "default",
            "uid": f"0d4c3a4e-4f5e-4d55-9a44-{number:012}",
            "resourceVersion": str(1_000_000 + number),
            "creationTimestamp": times,
            "labels": {"app": "vllm-llama3-8b-instruct", "pod-template-hash": "7d9c6f5b8"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8000"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "vllm", "controller": True}],
            "managedFields": [
                {"manager": manager, "operation": "Update", "time": times, "fieldsType": "FieldsV1", "fieldsV1": fields}
                for manager in ("kube-controller-manager", "kubelet")
            ],
        },
        "spec": {
            "containers": [container],
            "volumes": [{"name": f"volume-{number}", "configMap": {"name": f"map-{number}"}} for number in range(5)],
            "nodeName": f"node-{number % 500}",
            "restartPolicy": "Always",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "hostIP": "10.0.0.1",
            "podIP": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}",
            "podIPs": [{"ip": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"}],
            "startTime": times,
            "containerStatuses": [{"name": "vllm", "ready": True, "restartCount": 0, "state": {"running": {}}}],
        },
    }


async def serve() -> None:
    """Pages and events that are encoded beforehand. Prints its address."""
    pods = [pod(number) for number in range(PODS_LISTED)]
    pages = []
    for start in range(0, PODS_LISTED, PAGE):
        last = start + PAGE >= PODS_LISTED
        metadata = {"resourceVersion": "2000000", **({} if last else {"continue": str(start // PAGE + 1)})}
        pages.append(msgspec.json.encode({"metadata": metadata, "items": pods[start : start + PAGE]}))
    burst = b"".join(line("MODIFIED", pod) for pod in pods[:500])
    sizes = sum(len(page) for page in pages) / PODS_LISTED

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") != "true":
            page = pages[int(request.query.get("continue", "0"))]
            return web.Response(body=page, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for _ in range(EVENTS // 500):
            await response.write(burst)
        await asyncio.sleep(60)
        return response

    server = ApiServer()
    server.paths["/"] = handle
    await server.start()
    print(json.dumps({"url": server.url, "bytes": sizes}), flush=True)
    await asyncio.Event().wait()


def only_what_an_endpoint_needs(item: JsonObject, kind: Resource) -> JsonObject:
    """As a reader of pods would cut them."""
    tidy(item, kind)
    metadata, status = item["metadata"], item["status"]
    kept = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion", "labels", "annotations")}
    return {"metadata": kept, "status": {key: status[key] for key in ("phase", "conditions", "podIPs")}}


def peak() -> float:
    """MB of the resident set at its largest until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


async def measure(url: str, cut: bool) -> dict[str, float]:
    """List, then take the events."""
    with tempfile.TemporaryDirectory() as directory:
        config = ApiServer().kubeconfig(Path(directory) / "config", server=url)
        settings = KubernetesSettings(kubeconfig=config, kubernetes_page_size=PAGE)
        client = await connect(settings, {})
    arrive = only_what_an_endpoint_needs if cut else tidy
    watch = Reflector(client, Selection(PODS), settings, strip=arrive)
    before, began, cpu = peak(), time.perf_counter(), time.process_time()
    found: dict[str, float] = {"before": before}
    objects: list[JsonObject] = []
    events = 0
    async for report in watch.run():
        if isinstance(report, Reset):
            assert len(report.items) == PODS_LISTED
            objects = report.items
            found["seconds"] = time.perf_counter() - began
            found["cpu"] = time.process_time() - cpu
            found["peak"] = peak()
            cpu = time.process_time()
        elif isinstance(report, Upsert):
            events += 1
            if events == EVENTS:
                break
    found["event"] = (time.process_time() - cpu) / EVENTS * 1e6
    assert len(objects) == PODS_LISTED
    await client.close()
    return found


def main() -> None:
    command = [sys.executable, "-m", "tests.benchmarks.bench_kubernetes"]
    with subprocess.Popen([*command, "serve"], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            ready = json.loads(server.stdout.readline())
            print(f"{PODS_LISTED} pods of {ready['bytes']:.0f} bytes\n")
            print("kept              list, s  CPU, s  peak RSS, MB (before)  CPU of an event, µs")
            for name, mode in (("whole objects", "whole"), ("endpoints' part", "cut")):
                output = subprocess.run([*command, mode, ready["url"]], stdout=subprocess.PIPE, check=True).stdout
                found = json.loads(output.splitlines()[-1])
                print(
                    f"{name:<16} {found['seconds']:>8.2f}{found['cpu']:>8.2f}"
                    f"{found['peak']:>14.0f} ({found['before']:.0f}){found['event']:>20.0f}"
                )
        finally:
            server.kill()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            asyncio.run(serve())
        case [("whole" | "cut") as mode, url]:
            print(json.dumps(asyncio.run(measure(url, mode == "cut"))))
        case _:
            main()
