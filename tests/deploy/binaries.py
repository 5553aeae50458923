"""The programs of a Kubernetes node that no package has, built once with Go into the user's cache."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.deploy.shell import Missing
from tests.kubernetes.deploy.tools import HELM, Tool, find_or_build_kubectl, find_or_install
from tests.kubernetes.peers import PeersMissing, Report, built, cached, executable, find_or_build, kept, which

KUBERNETES = ("kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
"""Of the module that kube-apiserver comes from."""
_CONTAINERD = "2.2.3"
CONTAINERD = tuple(
    Tool(name, f"github.com/containerd/containerd/v2/cmd/{name}", _CONTAINERD, {})
    for name in ("containerd", "containerd-shim-runc-v2", "ctr")
)
METRICS = (
    Tool("metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server", "0.9.0", {}),
    Tool("adapter", "sigs.k8s.io/prometheus-adapter/cmd/adapter", "0.12.0", {}),
)
"""What autoscalers ask."""
TOOLS = (*CONTAINERD, *METRICS, HELM)
PACKAGES = "runc containernetworking-plugins etcd-server iptables iproute2 conntrack prometheus"
"""Of Debian."""
PLUGINS = Path("/usr/lib/cni")


def ready(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether everything that would have to be built is there."""
    tools = [kept(f"{tool.name}-{tool.version}", environment) / tool.name for tool in TOOLS]
    programs = [cached(environment, one) for one in ("kube-apiserver", "kubectl", *KUBERNETES)]
    return all(executable(path) for path in (*programs, *tools))


def need_plugins() -> None:
    """Raises Missing without the network plug-ins of pods."""
    if not (PLUGINS / "bridge").exists():
        raise Missing(f"{PLUGINS}: apt-get install {PACKAGES}")


def provide(report: Report) -> dict[str, Path]:
    """The programs by name, built where they aren't there yet: half an hour on two cores. Raises Missing."""
    try:
        peers = find_or_build(report)
        found = {"kube-apiserver": peers.kube_apiserver, "etcd": peers.etcd}
        if (prometheus := which("prometheus", os.environ)) is None:
            raise Missing(f"prometheus: apt-get install {PACKAGES}")
        found["prometheus"] = prometheus
        found["kubectl"] = find_or_build_kubectl(report)
        found |= {name: built(name, report, os.environ) for name in KUBERNETES}
        found |= {tool.name: Path(find_or_install(tool, report)[0]) for tool in TOOLS}
    except PeersMissing as error:
        raise Missing(str(error)) from error
    return found


if __name__ == "__main__":
    provide(lambda line: print(line, flush=True))
