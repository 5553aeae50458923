"""The definitions of `crds` have what the watcher reads, and the watcher reads what the server makes of it."""

import pytest
import yaml

from services.watcher.resources import KINDS, read_resource
from shared.config.problems import Problems
from shared.model import FailureMode, Pool
from tests.kubernetes.api import Api
from tests.kubernetes.apiserver import CRDS

POOLS = "inference.networking.k8s.io/v1"
EXPERIMENTAL = "inference.networking.x-k8s.io/v1alpha2"
LLM_D = "llm-d.ai/v1alpha2"

POOL = f"""
apiVersion: {POOLS}
kind: InferencePool
metadata: {{name: one}}
spec:
  selector: {{matchLabels: {{app: vllm}}}}
  targetPorts: [{{number: 8000}}, {{number: 8001}}]
  appProtocol: kubernetes.io/h2c
  endpointPickerRef: {{name: picker, port: {{number: 9002}}, failureMode: FailOpen}}
"""
OLD_POOL = f"""
apiVersion: {EXPERIMENTAL}
kind: InferencePool
metadata: {{name: one}}
spec:
  selector: {{app: vllm}}
  targetPortNumber: 8000
  extensionRef: {{name: picker, portNumber: 9002, failureMode: FailOpen}}
"""
OBJECTIVE = """
apiVersion: {version}
kind: InferenceObjective
metadata: {{name: one}}
spec:
  poolRef: {{name: one}}
  priority: -10
"""
REWRITE = """
apiVersion: {version}
kind: InferenceModelRewrite
metadata: {{name: one}}
spec:
  poolRef: {{name: one}}
  rules:
    - matches: [{{model: {{value: small}}}}]
      targets: [{{modelRewrite: small-1, weight: 9}}, {{modelRewrite: small-2, weight: 1}}]
    - targets: [{{modelRewrite: large}}]
"""
MODEL = f"""
apiVersion: {EXPERIMENTAL}
kind: InferenceModel
metadata: {{name: one}}
spec:
  poolRef: {{name: one, group: inference.networking.k8s.io}}
  modelName: food
  criticality: Critical
  targetModels: [{{name: food-1, weight: 100}}]
"""
RESOURCES = {
    "pool": POOL,
    "old pool": OLD_POOL,
    "objective": OBJECTIVE.format(version=EXPERIMENTAL),
    "llm-d's objective": OBJECTIVE.format(version=LLM_D),
    "rewrite": REWRITE.format(version=EXPERIMENTAL),
    "llm-d's rewrite": REWRITE.format(version=LLM_D),
    "model": MODEL,
}


def test_every_kind_that_the_watcher_reads_has_a_definition() -> None:
    assert {yaml.safe_load(path.read_text())["spec"]["names"]["kind"] for path in CRDS} == set(KINDS)


@pytest.mark.parametrize("what", RESOURCES)
async def test_the_watcher_reads_what_the_server_made_of_a_resource(what: str, admin: Api, namespace: str) -> None:
    sent = yaml.safe_load(RESOURCES[what])
    made = await admin.create(RESOURCES[what], namespace)
    problems = Problems()

    found = read_resource(made, sent["kind"], "", problems, None)

    assert not problems.errors
    expected = read_resource(sent, sent["kind"], "", Problems(), None).resource
    assert found.resource is not None
    assert expected is not None
    written = {field: getattr(expected, field) for field in expected.__struct_fields__}
    from_server = {"created": getattr(found.resource, "created", 0.0), "namespace": namespace}
    for field, value in written.items():
        assert getattr(found.resource, field) == from_server.get(field, value), field


async def test_the_server_fills_in_a_pools_defaults(admin: Api, namespace: str) -> None:
    document = yaml.safe_load(POOL)
    del document["spec"]["appProtocol"]
    document["spec"]["endpointPickerRef"] = {"name": "picker", "port": {"number": 9002}}
    made = await admin.create(document, namespace)

    assert made["spec"]["appProtocol"] == "http"
    assert made["spec"]["endpointPickerRef"]["kind"] == "Service"
    found = read_resource(made, "InferencePool", "", Problems(), None).resource
    assert isinstance(found, Pool)
    assert found.failure_mode is FailureMode.FAIL_CLOSE
