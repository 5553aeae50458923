"""The watcher reads what the server makes of a resource, with the defaults of its definition."""

from typing import Any

import pytest

from services.watcher.resources import read_resource
from shared.config.problems import Problems
from shared.model import FailureMode, Pool
from tests.kubernetes.api import Api, Object
from tests.kubernetes.definitions import EXPERIMENTAL, LLMD
from tests.kubernetes.said import MODEL, OBJECTIVE, REWRITE, referring
from tests.kubernetes.watching import pool_document

RULES: list[Any] = [
    {
        "matches": [{"model": {"value": "small"}}],
        "targets": [{"modelRewrite": "small-1", "weight": 9}, {"modelRewrite": "small-2", "weight": 1}],
    },
    {"targets": [{"modelRewrite": "large"}]},
]
PICKER = {"name": "picker", "port": {"number": 9002}}
FORMER_POOL: Object = {
    "apiVersion": f"{EXPERIMENTAL}/v1alpha2",
    "kind": "InferencePool",
    "metadata": {"name": "one"},
    "spec": {
        "selector": {"app": "vllm"},
        "targetPortNumber": 8000,
        "extensionRef": {"name": "picker", "portNumber": 9002, "failureMode": "FailOpen"},
    },
}
RESOURCES: list[Object] = [
    pool_document(
        "one",
        ports=(8000, 8001),
        appProtocol="kubernetes.io/h2c",
        endpointPickerRef={**PICKER, "failureMode": "FailOpen"},
    ),
    FORMER_POOL,
    *(
        one
        for version in (f"{EXPERIMENTAL}/v1alpha2", f"{LLMD}/v1alpha2")
        for one in (
            referring((version, OBJECTIVE[1]), "one", "one", priority=-10),
            referring((version, REWRITE[1]), "one", "one", rules=RULES),
        )
    ),
    referring(
        MODEL,
        "one",
        "one",
        modelName="food",
        criticality="Critical",
        targetModels=[{"name": "food-1", "weight": 100}],
    ),
]


@pytest.mark.parametrize("sent", RESOURCES, ids=lambda sent: f"{sent['kind']} {sent['apiVersion']}")
async def test_the_watcher_reads_what_the_server_made_of_a_resource(sent: Object, admin: Api, namespace: str) -> None:
    problems = Problems()
    found = read_resource(await admin.create(sent, namespace), sent["kind"], "", problems, None).resource
    assert not problems.errors
    expected = read_resource(sent, sent["kind"], "", Problems(), None).resource
    assert found is not None
    assert expected is not None
    from_server = {"created": getattr(found, "created", 0.0), "namespace": namespace}
    for field in expected.__struct_fields__:
        assert getattr(found, field) == from_server.get(field, getattr(expected, field)), field


async def test_the_server_fills_in_a_pools_defaults(admin: Api, namespace: str) -> None:
    made = await admin.create(pool_document("one", endpointPickerRef=PICKER), namespace)
    assert made["spec"]["appProtocol"] == "http"
    assert made["spec"]["endpointPickerRef"]["kind"] == "Service"
    found = read_resource(made, "InferencePool", "", Problems(), None).resource
    assert isinstance(found, Pool)
    assert found.failure_mode is FailureMode.FAIL_CLOSE
