"""What the tests against Kubernetes, and those of HTTP/2, need besides Python.

It is had between collection and the first test, because it may take minutes, and no test's time-out allows for that.

Command: `python -m tests.kubernetes.prepare`, before several processes of pytest would each wait for it. Always ends
with 0: the tests say what they lack, and what that means.
"""

from collections.abc import Callable, Mapping

from tests.http2_peers import find_go_client, find_h2spec
from tests.kubernetes.deploy.tools import HELM, KUSTOMIZE, find_or_build_kubectl, find_or_install
from tests.kubernetes.peers import PeersMissing, Report, find_or_build

NEEDS: Mapping[str, Callable[[Report], object]] = {
    "kubernetes_peers": find_or_build,
    "kubectl": find_or_build_kubectl,
    "renderer": lambda report: (find_or_install(KUSTOMIZE, report), find_or_install(HELM, report)),
    "h2spec": find_h2spec,
    "go_client": find_go_client,
}
"""By the fixture that gives it. Raises PeersMissing."""


def main() -> None:
    for need in NEEDS.values():
        try:
            need(_report)
        except PeersMissing as error:
            _report(str(error))


def _report(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
