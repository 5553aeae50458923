"""Have ready what the tests against Kubernetes need, before several processes of pytest would each wait for it.

Command: `python -m tests.kubernetes.prepare`. Always ends with 0: the tests say what they lack, and what that means.
"""

from collections.abc import Callable

from tests.kubernetes.deploy.tools import HELM, KUSTOMIZE, find_or_build_kubectl, find_or_install
from tests.kubernetes.peers import PeersMissing, find_or_build


def _report(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    needs: tuple[Callable[[], object], ...] = (
        lambda: find_or_build(_report),
        lambda: find_or_build_kubectl(_report),
        lambda: find_or_install(KUSTOMIZE, _report),
        lambda: find_or_install(HELM, _report),
    )
    for need in needs:
        try:
            need()
        except PeersMissing as error:
            _report(str(error))


if __name__ == "__main__":
    main()
