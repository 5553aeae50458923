"""Drains pods: sets or removes the annotation that the watcher reads."""

from services.watcher.kubernetes.client import Client
from services.watcher.kubernetes.errors import NotFound
from services.watcher.kubernetes.resource import Resource
from shared.datalayer.objects import ObjectKind
from shared.model import DRAIN, Endpoint

PODS = Resource(ObjectKind("", "v1", "Pod"), "pods", True)


async def drain_pod(client: Client, name: str, drain: bool) -> str:
    """Drain a pod, or end that. `name` is the pod's, with a namespace or without, or the id of one of its endpoints.
    Returns namespace and name of the pod. Raises KubernetesError."""
    namespace, slash, name = name.rpartition("/")
    namespace = namespace if slash else "default"
    try:
        await _annotate(client, namespace, name, drain)
    except NotFound:
        pod, rank, number = name.rpartition("-rank-")  # the id of one of its endpoints
        if not rank or not number.isdigit():
            raise
        name = pod
        await _annotate(client, namespace, name, drain)
    return f"{namespace}/{name}"


async def drain_endpoint(client: Client, endpoint: Endpoint, drain: bool) -> None:
    """Drain the pod of an endpoint, or end that. Raises KubernetesError, also for a later pod of the same name."""
    await _annotate(client, endpoint.namespace, endpoint.pod_name, drain, uid=endpoint.uid)


async def _annotate(client: Client, namespace: str, name: str, drain: bool, uid: str = "") -> None:
    metadata = {"annotations": {DRAIN: "true" if drain else None}, **({"uid": uid} if uid else {})}
    await client.merge(PODS, name, {"metadata": metadata}, namespace=namespace)
