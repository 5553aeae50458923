"""A one-node Kubernetes of real parts: etcd, kube-apiserver, controller-manager, scheduler, kube-proxy, kubelet,
containerd. Only the cluster's DNS is ours.

It runs in a network, mount and process namespace of its own (`unshare`, by tests.deploy.kubernetes), so that its end
leaves no pod, no mount and no rule behind. Pods are on a bridge, whose plug-in knows no NetworkPolicies.
"""

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pointsman.local import probes
from pointsman.local.process import Process
from tests.certificates import Authority
from tests.deploy.dns import DnsServer, records
from tests.deploy.shell import run, weigh
from tests.kubernetes.api import Api, ApiError

NODE = "10.250.0.1"
PODS = "10.244.0.0/16"
SERVICES, FIRST_SERVICE = "10.96.0.0/16", "10.96.0.1"
ADMIN = "admin"
NAME = "node"
PAUSE = "pointsman-pause:local"
"""The image that holds a pod's namespaces."""
WRITTEN = ("/run/netns", "/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/pods", "/var/log/containers")
GROUP = "k8s.io"
"""The control group of all containers."""
_START = 180.0

CNI: Mapping[str, Any] = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}
KUBELET: Mapping[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "address": NODE,
    "failCgroupV1": False,
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failSwapOn": False,
    "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    "imageGCHighThresholdPercent": 100,
    "clusterDNS": [NODE],
    "clusterDomain": "cluster.local",
    "registerNode": True,
}


class Cluster:
    """The processes. An async context manager; `binaries` are those of tests.deploy.binaries."""

    def __init__(self, binaries: Mapping[str, Path], directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.binaries = binaries
        self.directory = directory
        self._authority = Authority(directory, "kubernetes")
        self._dns = DnsServer()
        self._tasks: list[asyncio.Task[None]] = []
        self.kubeconfig = directory / "kubeconfig"
        self.socket = directory / "containerd.sock"
        self.etcd = self.process("etcd", *self._etcd(), ready="http://127.0.0.1:2379/health")
        self.apiserver = self.process("kube-apiserver", *self._apiserver(), ready=f"{self.url}/readyz")
        self.controllers = self.process(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={directory / 'accounts.key'}",
            f"--root-ca-file={self._authority.ca}",
            "--use-service-account-credentials=false",
            f"--cluster-cidr={PODS}",
            f"--service-cluster-ip-range={SERVICES}",
            "--horizontal-pod-autoscaler-sync-period=5s",
        )
        self.scheduler = self.process("kube-scheduler", f"--kubeconfig={self.kubeconfig}")
        self.containerd = self.process("containerd", "--config", str(self._containerd()), ready="")
        self.kubelet = self.process(
            "kubelet",
            f"--kubeconfig={self.kubeconfig}",
            f"--config={self._kubelet()}",
            f"--cert-dir={directory / 'kubelet-certificates'}",
            f"--hostname-override={NAME}",
            f"--node-ip={NODE}",
        )
        self.proxy = self.process("kube-proxy", f"--config={self._proxy()}")

    @property
    def url(self) -> str:
        return f"https://{NODE}:6443"

    def client(self) -> Api:
        """May do everything."""
        return Api(self.url, self._authority.ca, ADMIN)

    async def __aenter__(self) -> Self:
        try:
            await self._isolate()
            weigh(GROUP)
            await self._network()
            self._write_kubeconfig()
            await self.etcd.start()
            await self.apiserver.start()
            await asyncio.gather(self.controllers.start(), self.scheduler.start(), self.containerd.start())
            await self._containerd_serves()
            await self.kubelet.start()
            await self.proxy.start()
            await asyncio.get_running_loop().create_datagram_endpoint(lambda: self._dns, local_addr=(NODE, 53))
            self._tasks.append(asyncio.create_task(self._names()))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def stop_apiserver(self, seconds: float) -> None:
        """Kill it, and start it again. Those who lead by a lease end without it, and are started again as their pods
        would be."""
        await self.apiserver.kill()
        await asyncio.sleep(seconds)
        await self.apiserver.start()
        for process in (self.controllers, self.scheduler):
            if not process.running:
                await process.start()

    async def close(self) -> None:
        """End everything, at once: the namespaces end with it."""
        for task in self._tasks:
            task.cancel()
        for process in (self.kubelet, self.proxy, self.scheduler, self.controllers, self.apiserver, self.etcd):
            await process.kill()
        await self.containerd.kill()

    # ---- tools

    async def ctr(self, *arguments: str | Path) -> str:
        return await run([self.binaries["ctr"], f"--address={self.socket}", "--namespace=k8s.io", *arguments])

    async def load(self, archive: Path) -> None:
        """Images of `docker save`."""
        await self.ctr("images", "import", "--local", archive)

    async def helm(self, *arguments: str | Path) -> str:
        environment = {"KUBECONFIG": str(self.kubeconfig), "HOME": str(self.directory)}
        return await run([self.binaries["helm"], *arguments], env=environment, timeout=900)

    # ---- how each is started

    def process(self, name: str, *arguments: str, ready: str | None = None) -> Process:
        """One of the binaries, before its start; `ready` is a page that answers then."""
        folders = {str(path.parent) for path in self.binaries.values()}
        environment = {**os.environ, "PATH": os.pathsep.join([*folders, os.environ["PATH"], "/usr/sbin", "/sbin"])}
        return Process(
            name,
            [self.binaries[name], *arguments],
            self.directory / f"{name}.log",
            ready=probes.http(ready) if ready else None,
            ready_timeout=_START,
            env=environment,
        )

    def _etcd(self) -> Sequence[str]:
        return (
            f"--data-dir={self.directory / 'etcd'}",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--logger=zap",
        )

    def _apiserver(self) -> Sequence[str]:
        tokens = self.directory / "tokens.csv"
        tokens.write_text(f"{ADMIN},{ADMIN},{ADMIN},system:masters\n")
        certificate, key = self._authority.issue(NODE, FIRST_SERVICE)
        accounts = self.directory / "accounts.key"
        form = serialization.PrivateFormat.TraditionalOpenSSL
        private = ec.generate_private_key(ec.SECP256R1())
        accounts.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        # With these it tells an API that it aggregates who asks.
        proxied, proxied_key = self._authority.issue(NODE)
        return (
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={NODE}",
            f"--advertise-address={NODE}",
            "--secure-port=6443",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={accounts}",
            f"--service-account-signing-key-file={accounts}",
            f"--service-cluster-ip-range={SERVICES}",
            "--enable-aggregator-routing=true",
            f"--client-ca-file={self._authority.ca}",
            f"--requestheader-client-ca-file={self._authority.ca}",
            f"--requestheader-allowed-names={NODE}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={proxied}",
            f"--proxy-client-key-file={proxied_key}",
            "--allow-privileged=false",
            "--kubelet-preferred-address-types=InternalIP",
        )

    def _write_kubeconfig(self) -> None:
        authority = base64.b64encode(self._authority.ca.read_bytes()).decode()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": "u", "user": {"token": ADMIN}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self.kubeconfig.write_text(yaml.safe_dump(document))
        self.kubeconfig.chmod(0o600)

    def _containerd(self) -> Path:
        folder = self.directory / "cni"
        folder.mkdir(exist_ok=True)
        (folder / "10-pods.conflist").write_text(json.dumps(CNI))
        file = self.directory / "containerd.toml"
        file.write_text(f"""\
version = 3
root = "{self.directory}/containerd"
state = "{self.directory}/containerd-state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "{self.socket}"
[ttrpc]
address = "{self.socket}.ttrpc"
[plugins."io.containerd.nri.v1.nri"]
disable = true
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{folder}"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "docker.io/library/{PAUSE}"
""")
        return file

    async def _containerd_serves(self) -> None:
        async with asyncio.timeout(_START):
            while not self.socket.exists():  # noqa: ASYNC110 -- another process makes it
                await asyncio.sleep(0.05)

    def _kubelet(self) -> Path:
        file = self.directory / "kubelet.yaml"
        resolv = self.directory / "resolv.conf"
        resolv.write_text("")
        more = {"containerRuntimeEndpoint": f"unix://{self.socket}", "resolvConf": str(resolv)}
        file.write_text(yaml.safe_dump({**KUBELET, **more}))
        return file

    def _proxy(self) -> Path:
        file = self.directory / "kube-proxy.yaml"
        document = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "hostnameOverride": NAME,
            "clusterCIDR": PODS,
            "clientConnection": {"kubeconfig": str(self.kubeconfig)},
            # Pods are on one bridge, and answers would pass the rules by.
            "iptables": {"masqueradeAll": True, "minSyncPeriod": "100ms"},
            "conntrack": {"maxPerCore": 0},
        }
        file.write_text(yaml.safe_dump(document))
        return file

    async def _isolate(self) -> None:
        """What the node writes outside of its directory is in memory, and seen by nobody else."""
        for folder in WRITTEN:
            await run(["mkdir", "--parents", folder])
            await run(["mount", "-t", "tmpfs", "tmpfs", folder])

    async def _network(self) -> None:
        for command in (
            "link set lo up",
            "link add node0 type bridge",
            f"address add {NODE}/24 dev node0",
            "link set node0 up",
            "route add default via 10.250.0.254 dev node0",
        ):
            await run(["ip", *command.split()])
        await run(["sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1"])

    async def _names(self) -> None:
        """The DNS server's records, as the API has them."""
        async with self.client() as api:
            while True:
                with contextlib.suppress(ApiError, httpx.HTTPError):
                    services = await api.list("v1", "Service", "")
                    slices = await api.list("discovery.k8s.io/v1", "EndpointSlice", "")
                    self._dns.known = records(services["items"], slices["items"])
                await asyncio.sleep(0.2)
