"""A real kube-apiserver over a real etcd, on free ports of 127.0.0.1: to be killed, hung, restarted, compacted.

There is nothing else: no controller, no scheduler, no kubelet. What they would do, tests do themselves, and nothing
changes behind a test's back. Both processes together take 300 MB: one server is shared by the tests that leave it
alive, another one by those that don't.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Struct

from pointsman.local import probes
from pointsman.local.ports import LOOPBACK, Ports
from pointsman.local.process import Process
from tests.certificates import Authority
from tests.kubernetes.api import Api
from tests.kubernetes.definitions import CRDS
from tests.kubernetes.peers import Peers
from tests.waiting import TIMEOUT

__all__ = ["ADMIN", "CRDS", "ApiServer", "Request"]

ADMIN = "admin"
"""User and token of him who may do everything."""

_START_TIMEOUT = 60.0
"""Seconds. It takes three on an idle machine."""
_ISSUER = "https://kubernetes.default.svc.cluster.local"
_AUDIT_POLICY: Mapping[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


class Request(Struct, frozen=True, order=True):
    """What a ServiceAccount asked for, as RBAC sees it, and whether it was allowed."""

    verb: str
    group: str
    resource: str
    """`pods`, or with its subresource `pods/status`."""
    namespace: str
    """Empty: of the cluster, or of all namespaces."""
    allowed: bool


class ApiServer:
    """One server with its etcd in a directory of the test's. An async context manager.

    `flags` are added to kube-apiserver's own. What both log is in `kube-apiserver.log` and `etcd.log` of the directory.
    """

    def __init__(self, peers: Peers, directory: Path, *, flags: Sequence[str] = ()) -> None:
        self.directory = directory
        self._ports = Ports()
        self.port = self._ports.take("kube-apiserver")
        etcd, peer = self._ports.take("etcd"), self._ports.take("etcd's peers")
        self._etcd_url = f"http://{LOOPBACK}:{etcd}"
        directory.mkdir(parents=True, exist_ok=True)
        self._authority = Authority(directory, "kubernetes")
        self._etcd = Process(
            "etcd",
            [
                peers.etcd,
                f"--data-dir={directory / 'etcd'}",
                f"--listen-client-urls={self._etcd_url}",
                f"--advertise-client-urls={self._etcd_url}",
                f"--listen-peer-urls=http://{LOOPBACK}:{peer}",
                f"--initial-advertise-peer-urls=http://{LOOPBACK}:{peer}",
                f"--initial-cluster=default=http://{LOOPBACK}:{peer}",
                "--unsafe-no-fsync",
                "--logger=zap",
            ],
            directory / "etcd.log",
            ready=probes.http(f"{self._etcd_url}/health"),
            ready_timeout=_START_TIMEOUT,
        )
        self._server = Process(
            "kube-apiserver",
            [peers.kube_apiserver, *self._flags(), *flags],
            directory / "kube-apiserver.log",
            ready=probes.http(f"{self.url}/readyz"),
            ready_timeout=_START_TIMEOUT,
        )

    def _flags(self) -> list[str]:
        tokens = self.directory / "tokens.csv"
        tokens.write_text(f"{ADMIN},{ADMIN},{ADMIN},system:masters\n")
        policy = self.directory / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(dict(_AUDIT_POLICY)))
        certificate, key = self._authority.issue(LOOPBACK)
        accounts = _signing_key(self.directory / "service-accounts.key")
        return [
            f"--etcd-servers={self._etcd_url}",
            "--etcd-compaction-interval=0",  # history ends when a test says so
            f"--bind-address={LOOPBACK}",
            f"--advertise-address={LOOPBACK}",
            "--endpoint-reconciler-type=none",  # it would complain of an address that only this machine reaches
            f"--secure-port={self.port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={accounts}",
            f"--service-account-signing-key-file={accounts}",
            "--disable-admission-plugins=ServiceAccount",  # its controller, which makes the default ones, isn't there
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
        ]

    # ---- where it is

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self.port}"

    @property
    def authority(self) -> Path:
        """The certificate that signed the server's, in PEM."""
        return self._authority.ca

    @property
    def audit_log(self) -> Path:
        return self.directory / "audit.log"

    # ---- life

    async def start(self) -> Self:
        """Start what isn't running, and wait until it is ready. Raises ProcessError with the end of its log."""
        if not self._etcd.running:
            await self._etcd.start()
        if not self._server.running:
            await self._server.start()
        return self

    async def kill(self) -> None:
        """SIGKILL to kube-apiserver. etcd stays, with everything; `start` brings it back on the same port."""
        await self._server.kill()

    async def close(self) -> None:
        """End both, at once. It can't be started again."""
        await self._server.kill()
        await self._etcd.kill()
        self._ports.close()

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- who asks it

    def client(self, token: str = ADMIN) -> Api:
        """A client with a token's rights, to be used as an async context manager."""
        return Api(self.url, self.authority, token)

    def kubeconfig(self, path: Path, token: str = ADMIN, *, namespace: str = "default", url: str = "") -> Path:
        """Write a kubeconfig file for a token; `url` leads to a proxy in front of the server."""
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        cluster = {"server": url or self.url, "certificate-authority-data": authority}
        context = {"cluster": "test", "user": "test", "namespace": namespace}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(document))
        path.chmod(0o600)
        return path

    def requests(self, service_account: str, namespace: str) -> set[Request]:
        """Everything that a ServiceAccount has asked for so far: what its role needs, and what it lacks."""
        user = f"system:serviceaccount:{namespace}:{service_account}"
        found: set[Request] = set()
        for line in self.audit_log.read_text().splitlines() if self.audit_log.exists() else ():
            event = json.loads(line)
            if event["user"]["username"] == user and "objectRef" in event:
                found.add(_request(event))
        return found

    # ---- its history

    async def compact(self) -> int:
        """Make etcd forget every revision but the newest, which is returned.

        kube-apiserver's watch cache still knows what it has seen: clients that watch or page through a list notice
        what was forgotten (410) after its restart, or at once where it was started with `--watch-cache=false`.
        """
        async with httpx.AsyncClient(base_url=self._etcd_url, trust_env=False, timeout=TIMEOUT) as client:
            status = await client.post("/v3/maintenance/status", json={})
            revision = int(status.raise_for_status().json()["header"]["revision"])
            compaction = {"revision": str(revision), "physical": True}
            (await client.post("/v3/kv/compaction", json=compaction)).raise_for_status()
        return revision


def _request(event: Mapping[str, Any]) -> Request:
    target = event["objectRef"]
    parts = [target.get("resource", ""), target.get("subresource", "")]
    return Request(
        verb=event["verb"],
        group=target.get("apiGroup", ""),
        resource="/".join(part for part in parts if part),
        namespace=target.get("namespace", ""),
        allowed=event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow",
    )


def _signing_key(path: Path) -> Path:
    """What the tokens of ServiceAccounts are signed with."""
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.TraditionalOpenSSL
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return path
