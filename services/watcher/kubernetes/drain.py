"""Drains pods: sets or removes the annotation that the watcher reads."""

from services.watcher.kubernetes.client import Client
from services.watcher.kubernetes.errors import NotFound
from services.watcher.kubernetes.resource import Resource
from shared.datalayer.objects import ObjectKind
from shared.model import DRAIN

PODS = Resource(ObjectKind("", "v1", "Pod"), "pods", True)


async def drain_pod(client: Client, name: str, drain: bool) -> str:
    """Drain a pod, or end that. `name` is the pod's, with a namespace or without, or the id of one of its endpoints.
    Returns namespace and name of the pod. Raises KubernetesError."""
    namespace, slash, name = name.rpartition("/")
    namespace = namespace if slash else "default"
    body = {"metadata": {"annotations": {DRAIN: "true" if drain else None}}}
    try:
        await client.merge(PODS, name, body, namespace=namespace)
    except NotFound:
        pod, rank, number = name.rpartition("-rank-")  # the id of one of its endpoints
        if not rank or not number.isdigit():
            raise
        name = pod
        await client.merge(PODS, name, body, namespace=namespace)
    return f"{namespace}/{name}"
