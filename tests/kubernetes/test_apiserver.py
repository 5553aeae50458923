"""The kube-apiserver that the watcher is tested against does what a cluster's does."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from pointsman.local.process import ProcessError
from services.watcher.resources import KINDS, read_resource
from shared.config.problems import Problems
from shared.model import FailureMode, Pool
from tests.kubernetes.api import Api, ApiError, Object
from tests.kubernetes.apiserver import CRDS, ApiServer, Request
from tests.kubernetes.conftest import OwnApiServer
from tests.kubernetes.peers import Peers
from tests.kubernetes.pods import Pods

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
MAY_READ_PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]


def pool(**spec: Any) -> Object:
    """A pool whose spec differs; None leaves a field out."""
    document: Object = yaml.safe_load(POOL)
    changed = {**document["spec"], **spec}
    document["spec"] = {field: value for field, value in changed.items() if value is not None}
    return document


def ports(*numbers: int) -> list[dict[str, int]]:
    return [{"number": number} for number in numbers]


# ---- definitions


async def test_every_definition_is_established_and_structural(admin: Api) -> None:
    for path in CRDS:
        name = yaml.safe_load(path.read_text())["metadata"]["name"]
        made = await admin.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", name, "")
        conditions = {one["type"]: one["status"] for one in made["status"]["conditions"]}
        assert conditions["NamesAccepted"] == conditions["Established"] == "True", name
        assert conditions.get("NonStructuralSchema", "False") == "False", name


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
    made = await admin.create(
        pool(appProtocol=None, endpointPickerRef={"name": "picker", "port": {"number": 9002}}), namespace
    )

    assert made["spec"]["appProtocol"] == "http"
    assert made["spec"]["endpointPickerRef"]["kind"] == "Service"
    found = read_resource(made, "InferencePool", "", Problems(), None).resource
    assert isinstance(found, Pool)
    assert found.failure_mode is FailureMode.FAIL_CLOSE


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"targetPorts": ports(70_000)}, "spec.targetPorts[0].number"),
        ({"targetPorts": ports(0)}, "spec.targetPorts[0].number"),
        ({"targetPorts": []}, "spec.targetPorts"),
        ({"targetPorts": ports(*range(8000, 8009))}, "spec.targetPorts"),
        ({"targetPorts": ports(8000, 8000)}, "spec.targetPorts"),
        ({"targetPorts": None}, "spec.targetPorts"),
        ({"selector": None}, "spec.selector"),
        ({"selector": {"matchLabels": {}}}, "spec.selector.matchLabels"),
        ({"appProtocol": "gopher"}, "spec.appProtocol"),
        ({"endpointPickerRef": {"name": "picker"}}, "spec.endpointPickerRef"),
        ({"endpointPickerRef": {"name": "a", "port": {"number": 1}, "failureMode": "No"}}, "failureMode"),
    ],
)
async def test_the_server_refuses_a_bad_pool(spec: dict[str, Any], field: str, admin: Api, namespace: str) -> None:
    with pytest.raises(ApiError) as refused:
        await admin.create(pool(**spec), namespace)

    assert refused.value.status == 422
    assert field in refused.value.message
    assert (await admin.list(POOLS, "InferencePool", namespace))["items"] == []


async def test_an_unknown_field_is_refused_or_dropped(admin: Api, namespace: str) -> None:
    with pytest.raises(ApiError, match=r"spec\.selektor"):
        await admin.create(pool(selektor={}), namespace)

    assert "selektor" not in (await admin.create(pool(selektor={}), namespace, strict=False))["spec"]


async def test_status_is_written_beside_the_spec(admin: Api, namespace: str) -> None:
    """A status subresource: each of the two ways in leaves the other's part alone."""
    await admin.create(POOL, namespace)
    condition = {
        "type": "Accepted",
        "status": "True",
        "reason": "Accepted",
        "message": "",
        "lastTransitionTime": "2026-08-01T12:00:00Z",
    }
    parents = [{"parentRef": {"name": "gateway"}, "conditions": [condition]}]

    patch = {"spec": {"targetPorts": ports(1)}, "status": {"parents": parents}}
    by_status = await admin.patch(POOLS, "InferencePool", "one", patch, namespace, subresource="status")
    by_spec = await admin.patch(POOLS, "InferencePool", "one", {"status": {"parents": []}}, namespace)

    for made in (by_status, by_spec):
        assert made["spec"]["targetPorts"] == ports(8000, 8001)
        assert [one["parentRef"]["kind"] for one in made["status"]["parents"]] == ["Gateway"]


async def test_a_definition_that_is_installed_later_is_served(own_apiserver: OwnApiServer) -> None:
    server = await own_apiserver(crds=())
    async with server.client() as admin:
        with pytest.raises(ApiError) as missing:
            await admin.list(POOLS, "InferencePool")
        assert missing.value.status == 404

        await admin.install(CRDS)

        assert (await admin.list(POOLS, "InferencePool"))["items"] == []


# ---- rights


async def test_a_token_gets_what_its_role_allows_and_no_more(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods
) -> None:
    await pods.create("one")
    token = await admin.service_account("reader", namespace, rules=MAY_READ_PODS)
    elsewhere = await admin.create_namespace()

    async with apiserver.client(token) as reader:
        assert len((await reader.list("v1", "Pod", namespace))["items"]) == 1
        for refused in (
            reader.delete("v1", "Pod", "one", namespace),
            reader.list("v1", "ConfigMap", namespace),
            reader.list("v1", "Pod", elsewhere),
            reader.list("v1", "Pod", ""),
        ):
            with pytest.raises(ApiError) as error:
                await refused
            assert (error.value.status, error.value.reason) == (403, "Forbidden")

    assert apiserver.requests("reader", namespace) == {
        Request("list", "", "pods", namespace, True),
        Request("delete", "", "pods", namespace, False),
        Request("list", "", "configmaps", namespace, False),
        Request("list", "", "pods", elsewhere, False),
        Request("list", "", "pods", "", False),
    }
    assert await pods.names() == ["one"]


async def test_a_cluster_role_holds_in_every_namespace(apiserver: ApiServer, admin: Api, namespace: str) -> None:
    token = await admin.service_account("reader", namespace, cluster_rules=MAY_READ_PODS)

    async with apiserver.client(token) as reader:
        assert (await reader.list("v1", "Pod", ""))["kind"] == "PodList"


async def test_an_unknown_token_is_refused(apiserver: ApiServer) -> None:
    async with apiserver.client("nobody") as nobody:
        with pytest.raises(ApiError) as refused:
            await nobody.list("v1", "Pod")

    assert refused.value.status == 401


async def test_a_kubeconfig_file_leads_to_the_server(
    apiserver: ApiServer, admin: Api, namespace: str, tmp_path: Path
) -> None:
    token = await admin.service_account("reader", namespace, rules=MAY_READ_PODS)
    written = yaml.safe_load(apiserver.kubeconfig(tmp_path / "config", token, namespace=namespace).read_text())

    assert written["current-context"] == written["contexts"][0]["name"]
    assert written["contexts"][0]["context"]["namespace"] == namespace
    async with Api(
        written["clusters"][0]["cluster"]["server"], apiserver.authority, written["users"][0]["user"]["token"]
    ) as reader:
        assert (await reader.list("v1", "Pod", namespace))["items"] == []


# ---- pods


async def test_a_pod_is_what_its_kubelet_would_report(admin: Api, namespace: str, pods: Pods) -> None:
    scheduled = await pods.create("one", labels={"app": "vllm"})
    assert scheduled["status"]["phase"] == "Pending"
    assert "podIP" not in scheduled["status"]

    await pods.report("one", "10.1.0.1", "fd00::1", ready=False)
    await pods.report("one", ready=True)

    (found,) = (await admin.list("v1", "Pod", namespace, selector="app=vllm"))["items"]
    assert found["status"]["podIPs"] == [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}]
    assert found["status"]["phase"] == "Running"
    assert [one["status"] for one in found["status"]["conditions"] if one["type"] == "Ready"] == ["True"]

    await pods.label("one", {"app": None, "tier": "a"})
    await pods.annotate("one", {"note": "b"})

    metadata = (await admin.get("v1", "Pod", "one", namespace))["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == ({"tier": "a"}, {"note": "b"})


async def test_a_deleted_pod_is_terminating_until_its_end_is_confirmed(admin: Api, namespace: str, pods: Pods) -> None:
    made = await pods.create("one", "10.1.0.1")
    assert "deletionTimestamp" not in made["metadata"]

    await pods.terminate("one")

    terminating = await admin.get("v1", "Pod", "one", namespace)
    assert terminating["metadata"]["deletionTimestamp"]
    assert terminating["status"] == made["status"]
    await pods.delete("one")
    assert await pods.names() == []


# ---- faults


async def test_a_killed_server_comes_back_with_everything_it_had(own_apiserver: OwnApiServer) -> None:
    server = await own_apiserver()
    async with server.client() as admin:
        made = await admin.create(POOL)
        token = await admin.service_account("reader", "default", rules=MAY_READ_PODS)
        url, pid = server.url, server.pid

        await server.kill()
        with pytest.raises(httpx.TransportError):
            await admin.get(POOLS, "InferencePool", "one")
        await server.start()

        assert server.url == url
        assert server.pid not in (None, pid)
        assert await admin.get(POOLS, "InferencePool", "one") == made
    async with server.client(token) as reader:
        assert (await reader.list("v1", "Pod"))["items"] == []


async def test_a_paused_server_answers_when_it_goes_on(own_apiserver: OwnApiServer) -> None:
    server = await own_apiserver(crds=())
    async with server.client() as admin:
        server.pause()
        asked = asyncio.create_task(admin.list("v1", "Pod"))
        done, _ = await asyncio.wait({asked}, timeout=0.5)
        assert not done

        server.resume()

        assert (await asked)["items"] == []


@pytest.mark.parametrize("cache", [True, False], ids=["watch-cache", "no-watch-cache"])
async def test_watches_and_pages_from_before_a_compaction_end_with_410(
    cache: bool, own_apiserver: OwnApiServer
) -> None:
    """What was in the watch cache is forgotten by a restart."""
    server = await own_apiserver(crds=(), flags=() if cache else ("--watch-cache=false",))
    async with server.client() as admin:
        pods = Pods(admin, "default")
        old = (await admin.list("v1", "Pod"))["metadata"]["resourceVersion"]
        for number in range(3):
            await pods.create(f"pod-{number}")
        page = (await admin.list("v1", "Pod", limit="1"))["metadata"]
        await pods.report("pod-0", "10.1.0.1")
        async with aclosing(admin.watch("v1", "Pod", resource_version=old)) as events:
            assert (await anext(events))["object"]["metadata"]["name"] == "pod-0"

        await server.compact()
        if cache:
            await server.kill()
            await server.start()

        (event,) = [event async for event in admin.watch("v1", "Pod", resource_version=old)]
        assert event["type"] == "ERROR"
        assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
        with pytest.raises(ApiError) as expired:
            await admin.list("v1", "Pod", limit="1", **{"continue": page["continue"]})
        assert (expired.value.status, expired.value.reason) == (410, "Expired")
        assert await pods.names() == ["pod-0", "pod-1", "pod-2"]


async def test_a_server_that_does_not_start_shows_the_end_of_its_log(kubernetes_peers: Peers, tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="unknown flag: --no-such-flag"):
        async with ApiServer(kubernetes_peers, tmp_path, flags=["--no-such-flag"]):
            pass
