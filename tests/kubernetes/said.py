"""What tests see of what the watcher says in the cluster, and resources for it to speak of."""

from collections.abc import Mapping
from typing import Any

from tests.kubernetes.api import Api, Object
from tests.kubernetes.definitions import EXPERIMENTAL, LLMD, STABLE
from tests.kubernetes.watching import POOL
from tests.waiting import eventually

_VERSION = f"{EXPERIMENTAL}/v1alpha2"
OBJECTIVE = (_VERSION, "InferenceObjective")
REWRITE = (_VERSION, "InferenceModelRewrite")
MODEL = (_VERSION, "InferenceModel")
POOLS = (f"{STABLE}/v1", "InferencePool")
GRACE: dict[str, Any] = {"kubernetes_event_grace": 0.5}
READS = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {
        "apiGroups": [STABLE, EXPERIMENTAL, LLMD],
        "resources": ["inferencepools", "inferenceobjectives", "inferencemodelrewrites", "inferencemodels"],
        "verbs": ["list", "watch"],
    },
)
"""Rules that let a watcher read, and write nothing."""


def referring(kind: tuple[str, str], name: str, pool: str = POOL, **spec: Any) -> Object:
    """A resource that refers to a pool."""
    reference = {"poolRef": {"name": pool, "group": STABLE}}
    return {"apiVersion": kind[0], "kind": kind[1], "metadata": {"name": name}, "spec": {**reference, **spec}}


async def accepted(admin: Api, kind: tuple[str, str], name: str, namespace: str) -> Mapping[str, Any]:
    """Its condition `Accepted`; empty while there is none."""
    found = await admin.get(*kind, name, namespace)
    conditions = (found.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == "Accepted"), {})


async def says(admin: Api, kind: tuple[str, str], name: str, namespace: str, reason: str) -> Mapping[str, Any]:
    """Its condition, once that has the reason."""

    async def find() -> Mapping[str, Any]:
        condition = await accepted(admin, kind, name, namespace)
        return condition if condition.get("reason") == reason else {}

    return await eventually(find, f"{kind[1]} {name} {reason}", step=0.05)


async def events(admin: Api, namespace: str, reason: str = "") -> list[Object]:
    found = (await admin.list("events.k8s.io/v1", "Event", namespace))["items"]
    return [item for item in found if reason in ("", item["reason"])]


async def event(admin: Api, namespace: str, reason: str) -> Object:
    """The only Event of that reason, once it is there."""
    [event] = await eventually(lambda: events(admin, namespace, reason), reason, step=0.05)
    return event
