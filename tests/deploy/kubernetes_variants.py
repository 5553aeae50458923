"""Variants of the chart: each is a release of its own in another namespace, beside the first one, which serves under
load. At the end, `helm uninstall` leaves nothing of it.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from shared.bus.accounts import USERS, installation
from shared.bus.subjects import Subjects
from tests.certificates import Authority
from tests.deploy.kubernetes import PATIENCE, PICKERS, STATEFUL, Installation
from tests.deploy.kubernetes_objects import (
    BUS,
    RELEASE,
    SMALL,
    Object,
    bus,
    config_map,
    gateway,
    namespace,
    secret,
)
from tests.deploy.scenario import Scenarios
from tests.faults.system.load import Load
from tests.kubernetes.api import ApiError
from tests.waiting import eventually

LOGINS = f"{RELEASE}-nats-logins"
POLICY = "policy"
RBAC = "rbac.authorization.k8s.io/v1"
KINDS = (
    *(("v1", kind) for kind in ("ConfigMap", "PersistentVolumeClaim", "Pod", "Secret", "Service", "ServiceAccount")),
    *(("apps/v1", kind) for kind in ("ControllerRevision", "Deployment", "ReplicaSet", "StatefulSet")),
    *((RBAC, kind) for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")),
    ("autoscaling/v2", "HorizontalPodAutoscaler"),
    ("coordination.k8s.io/v1", "Lease"),
    ("discovery.k8s.io/v1", "EndpointSlice"),
    ("inference.networking.k8s.io/v1", "InferencePool"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy/v1", "PodDisruptionBudget"),
)
"""What a release, or a controller for it, can leave behind."""
OF_THE_NAMESPACE = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}

variant: Scenarios[Installation] = Scenarios()


@asynccontextmanager
async def beside(
    first: Installation, name: str, values: Object, entrance: Sequence[Object], *before: Object
) -> AsyncIterator[Installation]:
    """A release with these values and one model server, in a new namespace that has the objects `before`."""
    other = first.beside(name, values, entrance)
    await first.api.apply(namespace(name))
    try:
        for one in before:
            await first.api.apply(one, name)
        there = await _inventory(other) | OF_THE_NAMESPACE
        await other.install(1)
        await other.settled(endpoints=1)
        yield other
        await first.settled()  # each knows the endpoints, pickers and collectors of its own
        await other.uninstall()

        async def nothing_is_left() -> bool:
            own = tuple(one["metadata"]["name"] for one in before)  # whose pods may be others by now
            left = {one for one in await _inventory(other) - there if not one[1].startswith(own)}
            assert not left, f"left of the release: {sorted(left)}"
            return True

        await eventually(nothing_is_left, "uninstalled", timeout=PATIENCE, step=0.3)
    finally:
        await _remove(first, name)


async def _inventory(installed: Installation) -> set[tuple[str, str]]:
    """Kind and name of what is in its namespace, or in none."""
    return {
        (kind, one["metadata"]["name"])
        for version, kind in KINDS
        for one in (await installed.api.list(version, kind, installed.namespace))["items"]
    }


async def _remove(installed: Installation, name: str) -> None:
    await installed.api.delete("v1", "Namespace", name)

    async def gone() -> bool:
        try:
            await installed.api.get("v1", "Namespace", name)
        except ApiError as error:
            return error.status == 404
        return False

    await eventually(gone, f"the namespace {name} is gone", timeout=PATIENCE, step=0.3)


@asynccontextmanager
async def loaded(other: Installation) -> AsyncIterator[Load]:
    """Requests through the other one's Envoy, of which none may fail."""
    async with Load(other.url, workers=4) as load:
        await load.goes_on()
        yield load
        await load.goes_on()
    assert not load.failures, f"{len(load.failures)} requests of the other release failed: {load.failures[:3]}"


def _served(load: Load) -> str:
    return f"of its own {len(load.request_ids)} requests, none failed"


@variant("a second release: one NATS server, a selector in place of the InferencePool, TLS to pickers")
async def small(first: Installation, load: Load) -> str:
    values = {**SMALL, "nats": {"replicas": 1}, "pool": {"standalone": True}}
    async with beside(first, "small", values, gateway()) as other, loaded(other) as its_load:
        (nats,) = await other.pods("app.kubernetes.io/name=nats")
        await other.delete(nats)
        await other.complete(f"{RELEASE}-nats", STATEFUL)
        await other.restart(PICKERS)
        await other.settled(endpoints=1)
    return f"its NATS deleted, its pickers restarted, uninstalled; {_served(its_load)}"


@variant("a second release: NATS elsewhere over TLS, mTLS to pickers, certificates renewed")
async def elsewhere(first: Installation, load: Load) -> str:
    folder = first.cluster.directory / "elsewhere"
    folder.mkdir(exist_ok=True)
    authority = Authority(folder, "authority")
    tls = [secret(name, _files(authority, address)) for name, address in (("bus", BUS), ("gateway", "10.0.0.1"))]
    served, more = _files(authority, "10.0.0.2"), ["--client-ca-file=/etc/pointsman/certificate/ca.crt"]
    values = {
        **SMALL,
        "watcher": {**SMALL["watcher"], "nodes": True},
        "picker": {**SMALL["picker"], "certificateSecret": "picker", "extraArgs": more},
        "nats": {
            "enabled": False,
            "url": f"tls://{BUS}:4222",
            "prefix": "elsewhere",
            "loginsSecret": "logins",
            "caSecret": "bus",
        },
    }
    logins = secret("logins", {tier: f"password{tier}" for tier in USERS})
    accounts = installation(Subjects("elsewhere"))
    before = [*tls, secret("picker", served), logins, *bus(accounts, "logins", "bus")]
    async with beside(first, "elsewhere", values, gateway("gateway"), *before) as other:
        trusted = ssl.create_default_context(cafile=authority.ca)
        trusted.check_hostname = False
        trusted.set_alpn_protocols(["h2"])
        pickers = [pod["status"]["podIP"] for pod in await other.tier("picker")]
        assert {await _certificate(one, trusted) for one in pickers} == {None}, "clients need no certificate"
        trusted.load_cert_chain(*authority.issue("10.0.0.3"))
        assert {await _certificate(one, trusted) for one in pickers} == {_der(served)}
        async with loaded(other) as its_load:
            renewed = _files(authority, "10.0.0.2")
            await first.api.apply(secret("picker", renewed), other.namespace)

            async def is_served() -> bool:
                return {await _certificate(one, trusted) for one in pickers} == {_der(renewed)}

            await eventually(is_served, "the renewed certificate is served", timeout=PATIENCE, step=0.5)
            await other.restart("bus")
            await other.settled(endpoints=1)
    return f"its NATS restarted, uninstalled; {_served(its_load)}"


def _files(authority: Authority, address: str) -> dict[str, str]:
    """What a Secret of type kubernetes.io/tls has, as cert-manager fills it."""
    certificate, key = authority.issue(address)
    return {"tls.crt": certificate.read_text(), "tls.key": key.read_text(), "ca.crt": authority.ca.read_text()}


def _der(files: dict[str, str]) -> bytes:
    return ssl.PEM_cert_to_DER_cert(files["tls.crt"])


async def _certificate(address: str, context: ssl.SSLContext) -> bytes | None:
    """The certificate of the picker there, if it speaks with a client that has this context."""
    try:
        reader, writer = await asyncio.open_connection(address, 9002, ssl=context)
        tunnel: ssl.SSLObject = writer.get_extra_info("ssl_object")
        certificate = tunnel.getpeercert(binary_form=True)
        try:
            said = await reader.read(1)  # HTTP/2's settings; a refused client hears nothing
        finally:
            writer.transport.abort()
    except OSError:
        return None
    return certificate if said else None


@variant("a second pool in another namespace, with a ConfigMap of its own, the first release's watcher and NATS")
async def shared(first: Installation, load: Load) -> str:
    name = "shared"
    url = f"nats://{RELEASE}-nats.{first.namespace}:4222"
    values = {
        **SMALL,
        "watcher": {"enabled": False},
        "nats": {"enabled": False, "url": url, "loginsSecret": LOGINS},
    }
    before = first.values
    logins = await first.api.get("v1", "Secret", LOGINS, first.namespace)
    copied = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": LOGINS}, "data": logins["data"]}
    policy = config_map(POLICY, {"a.yaml": before["configuration"].replace("maxRequestGap: 32", "maxRequestGap: 27")})
    await first.api.apply(namespace(name))  # in which the first release has a Role, and a ConfigMap to read
    await first.api.apply(policy, name)
    first.values = {**before, "watcher": {**before["watcher"], "pools": [f"{name}/model-servers={POLICY}"]}}
    await first.upgrade()
    async with beside(first, name, values, (), copied, policy) as other:
        await other.scale(PICKERS, 3)
        await other.settled(endpoints=1)
        read = [{state["config"]["origin"] for state in await one.states("picker")} for one in (first, other)]
        expected = [
            {f"ConfigMap {first.namespace}/{RELEASE}-config pointsman.yaml"},
            {f"ConfigMap {name}/{POLICY} a.yaml"},
        ]
        assert read == expected, read
    first.values = before
    await first.upgrade()
    await first.settled()
    return "each picker knows the endpoints, pickers and configuration of its own pool"
