"""What the role of deploy/kubernetes lets the watcher write: it is enough, all of it is used, what lacks is named."""

from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.api import Api
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.pods import Pods
from tests.kubernetes.test_rights import ACCOUNT, CONFIG_MAP, GRANTED, READING, Right
from tests.kubernetes.test_status import (
    CONVERGED,
    EXPERIMENTAL,
    GRACE,
    MODEL,
    OBJECTIVE,
    REWRITE,
    event,
    referring,
    says,
)
from tests.kubernetes.watching import LABELS, pool_document, reading, watching
from tests.nats import NatsServer
from tests.protocol.watcher.harness import eventually

pytestmark = pytest.mark.usefixtures("kubernetes_peers")

WRITING = [one for one in GRANTED if one not in READING]
RULES = [{"targets": [{"modelRewrite": "base"}]}]
RESOURCES: list[tuple[tuple[str, str], str, dict[str, Any]]] = [
    (OBJECTIVE, "premium", {"priority": 1}),
    (("llm-d.ai/v1alpha2", "InferenceObjective"), "batch", {"priority": -1}),
    (REWRITE, "rollout", {"rules": RULES}),
    (("llm-d.ai/v1alpha2", "InferenceModelRewrite"), "canary", {"rules": RULES}),
    (MODEL, "chat", {"modelName": "chat"}),
]


@pytest.fixture
async def written_to(admin: Api, namespace: str) -> None:
    """One of each that there is something to be said of, and a configuration."""
    await admin.create(pool_document(), namespace)
    for kind, name, spec in RESOURCES:
        await admin.create(referring(kind, name, **spec), namespace)
    text = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"
    metadata = {"name": CONFIG_MAP}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"config.yaml": text}}
    await admin.create(config, namespace)


@pytest.mark.usefixtures("written_to")
async def test_the_role_is_enough_to_write_and_everything_that_it_grants_is_used(
    apiserver: ApiServer, admin: Api, namespace: str, nats: NatsServer, tmp_path: Path
) -> None:
    token = await admin.service_account(ACCOUNT, namespace, rules=[one.rule for one in GRANTED])
    settings: dict[str, Any] = {"token": token, "config_map": f"{namespace}/{CONFIG_MAP}", **GRACE}
    async with watching(nats.url, apiserver, namespace, tmp_path, **settings) as service:
        for kind, name, _ in RESOURCES:
            await says(admin, kind, name, namespace, "Accepted")
        await event(admin, namespace, "NoEndpoints")
        assert service.readiness.notes() == {}
    asked = apiserver.requests(ACCOUNT, namespace)
    assert not [one for one in asked if not one.allowed]
    used = {(one.verb, one.group, one.resource) for one in asked if one.verb not in ("list", "watch")}
    assert used == {one[:3] for one in WRITING}


@pytest.mark.usefixtures("written_to")
@pytest.mark.parametrize("lacking", WRITING, ids=str)
async def test_a_right_to_write_that_is_not_granted_is_named_and_the_rest_goes_on(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path, lacking: Right
) -> None:
    token = await admin.service_account(ACCOUNT, namespace, rules=[one.rule for one in GRANTED if one != lacking])
    settings: dict[str, Any] = {"token": token, "config_map": f"{namespace}/{CONFIG_MAP}", **GRACE}
    words = f'cannot {lacking.verb} resource "{lacking.resource}" in API group "{lacking.group}"'
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **settings) as service,
        reading(nats.url, namespace) as seen,
    ):
        await eventually(lambda: words in service.readiness.notes().get("status", ""), words, CONVERGED)
        assert service.readiness.ready
        for kind, name, _ in RESOURCES:
            resource = f"{kind[1].lower()}s/status"
            if (kind[0].partition("/")[0], resource) != (lacking.group, lacking.resource):
                await says(admin, kind, name, namespace, "Accepted")
        await pods.create("a", "10.1.0.1", labels=LABELS)
        await seen.sees("a-rank-0")


def test_each_kind_with_conditions_is_among_them() -> None:
    """In each group that has it."""
    groups = {(kind[0].partition("/")[0], f"{kind[1].lower()}s/status") for kind, _, _ in RESOURCES}
    assert groups == {(one.group, one.resource) for one in WRITING if one.verb == "patch"}
    assert {one.group for one in WRITING} == {EXPERIMENTAL.partition("/")[0], "llm-d.ai", "events.k8s.io"}
