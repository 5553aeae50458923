"""The APIs that autoscalers ask: metrics-server for CPU, and prometheus-adapter, with the rules of the component
`custom-metrics` and a Prometheus, for the tiers' own metrics.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.deploy.cluster import NODE, Cluster
from tests.deploy.images import ROOT
from tests.kubernetes.api import Api, ApiError
from tests.waiting import eventually

RULES = ROOT / "deploy/kubernetes/components/custom-metrics/prometheus-adapter-values.yaml"
SYSTEM = "kube-system"
_CPU, _CUSTOM, _PROMETHEUS = 10251, 10252, 10253
_PATIENCE = 180.0


@asynccontextmanager
async def metric_apis(cluster: Cluster, api: Api) -> AsyncIterator[None]:
    """They serve for the time of the context."""
    asks = [f"--{flag}kubeconfig={cluster.kubeconfig}" for flag in ("authentication-", "authorization-")]
    url = f"http://{NODE}:{_PROMETHEUS}"
    processes = [
        cluster.process(
            "metrics-server",
            *asks,
            f"--kubeconfig={cluster.kubeconfig}",
            f"--secure-port={_CPU}",
            f"--cert-dir={cluster.directory / 'metrics-server'}",
            "--kubelet-insecure-tls",
            "--kubelet-preferred-address-types=InternalIP",
            "--metric-resolution=15s",
            ready=f"https://{NODE}:{_CPU}/livez",
        ),
        cluster.process(
            "prometheus",
            f"--config.file={_prometheus(cluster)}",
            f"--storage.tsdb.path={cluster.directory / 'prometheus'}",
            f"--web.listen-address={NODE}:{_PROMETHEUS}",
            ready=f"{url}/-/ready",
        ),
        cluster.process(
            "adapter",
            *asks,
            f"--lister-kubeconfig={cluster.kubeconfig}",
            f"--secure-port={_CUSTOM}",
            f"--cert-dir={cluster.directory / 'adapter'}",
            f"--prometheus-url={url}",
            f"--config={_adapter(cluster)}",
            "--metrics-relist-interval=5s",
            ready=f"https://{NODE}:{_CUSTOM}/livez",
        ),
    ]
    telling = asyncio.create_task(_tell_targets(cluster, api))
    async with AsyncExitStack() as stack:
        stack.callback(telling.cancel)
        for process in processes:
            await process.start()
            stack.push_async_callback(process.kill)
        for group, port in (("metrics.k8s.io", _CPU), ("custom.metrics.k8s.io", _CUSTOM)):
            stack.push_async_callback(api.delete, "apiregistration.k8s.io/v1", "APIService", f"v1beta1.{group}")
            await _register(api, group, port)
        yield


def _prometheus(cluster: Cluster) -> Path:
    job = {"job_name": "tiers", "file_sd_configs": [{"files": [str(_targets(cluster))]}]}
    return _written(cluster, "prometheus", {"global": {"scrape_interval": "5s"}, "scrape_configs": [job]})


def _targets(cluster: Cluster) -> Path:
    return cluster.directory / "targets.json"


async def _tell_targets(cluster: Cluster, api: Api) -> None:
    """The admin port of every pod of a release, labelled as by the ServiceMonitor. Debian's Prometheus reads no cluster
    by itself."""
    file = _targets(cluster)
    while True:
        with suppress(ApiError, httpx.HTTPError):
            targets = [
                {
                    "targets": [f"{pod['status']['podIP']}:9090"],
                    "labels": {"namespace": pod["metadata"]["namespace"], "pod": pod["metadata"]["name"]},
                }
                for pod in (await api.list("v1", "Pod", ""))["items"]
                if pod["metadata"].get("labels", {}).get("app.kubernetes.io/component") in ("picker", "collector")
                and pod["status"].get("podIP")
            ]
            (draft := file.with_suffix(".new")).write_text(json.dumps(targets))
            draft.replace(file)
        await asyncio.sleep(1)


def _adapter(cluster: Cluster) -> Path:
    """What the adapter's chart makes of the values."""
    return _written(cluster, "adapter", {"rules": yaml.safe_load(RULES.read_text())["rules"]["custom"]})


def _written(cluster: Cluster, name: str, document: dict[str, Any]) -> Path:
    file = cluster.directory / f"{name}.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


async def _register(api: Api, group: str, port: int) -> None:
    """Let the API server ask that port of the node for this group, and wait until it does."""
    name = group.replace(".", "-")
    await api.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, **_ports()}, SYSTEM)
    await api.apply(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [NODE], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        },
        SYSTEM,
    )
    await api.apply(
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"v1beta1.{group}"},
            "spec": {
                "group": group,
                "version": "v1beta1",
                "service": {"name": name, "namespace": SYSTEM, "port": 443},
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        }
    )

    async def serves() -> bool:
        try:
            found = await api.get("apiregistration.k8s.io/v1", "APIService", f"v1beta1.{group}")
        except ApiError as error:
            raise AssertionError(str(error)) from error
        conditions = {one["type"]: one for one in found.get("status", {}).get("conditions", ())}
        assert conditions.get("Available", {}).get("status") == "True", conditions
        return True

    await eventually(serves, f"{group} is served", timeout=_PATIENCE, step=0.5)


def _ports() -> dict[str, Any]:
    return {"spec": {"ports": [{"name": "https", "port": 443, "protocol": "TCP"}]}}
