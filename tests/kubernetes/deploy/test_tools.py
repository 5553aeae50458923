"""Where helm and kustomize are looked for, and how one is installed: with a Go that only pretends."""

from pathlib import Path

import pytest

from tests.kubernetes.deploy.tools import HELM, KUSTOMIZE, find_or_build_kubectl, find_or_install
from tests.kubernetes.peers import VERSION, PeersMissing

GO = """#!/bin/sh
echo "$*" >> "$CALLS"
[ ! -e "$CALLS.fail" ] || { echo "no such version" >&2; exit 1; }
name=${5%%@*}
case "$name" in */helm) name=helm;; *) name=kustomize;; esac
: > "$GOBIN/$name"
chmod +x "$GOBIN/$name"
"""


class Machine:
    """A machine that has what the test put there."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.bin.mkdir()
        self.calls = root / "calls"
        self.environment = {"PATH": f"{self.bin}", "HOME": f"{root}", "CALLS": f"{self.calls}"}
        self.kept = root / ".cache/pointsman"

    def has(self, name: str, text: str = "#!/bin/sh\n") -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def has_go(self) -> None:
        self.has("go", GO)
        chmod = next(path for path in (Path("/bin/chmod"), Path("/usr/bin/chmod")) if path.exists())
        (self.bin / "chmod").symlink_to(chmod)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr("tests.kubernetes.peers._GO_FOLDERS", ())  # the real machine's own Go isn't there
    return Machine(tmp_path)


def test_go_installs_the_version_once_into_the_users_cache(machine: Machine) -> None:
    machine.has_go()
    said: list[str] = []
    for _ in range(2):
        command = find_or_install(HELM, said.append, machine.environment)
        assert command == (f"{machine.kept}/helm-{HELM.version}/helm", "template")
    assert len(said) == 1
    assert machine.calls.read_text().splitlines() == [
        f"install -trimpath -ldflags -s -w {HELM.package}@v{HELM.version}"
    ]


def test_a_program_of_another_version_in_path_isnt_taken_when_there_is_go(machine: Machine) -> None:
    machine.has_go()
    machine.has("kubectl")
    assert find_or_install(KUSTOMIZE, print, machine.environment)[0].startswith(str(machine.kept))


@pytest.mark.parametrize(
    ("installed", "command"), [("kustomize", ("kustomize", "build")), ("kubectl", ("kubectl", "kustomize"))]
)
def test_without_go_the_one_of_path_is_taken(machine: Machine, installed: str, command: tuple[str, str]) -> None:
    machine.has(installed)
    name, argument = command
    assert find_or_install(KUSTOMIZE, print, machine.environment) == (f"{machine.bin}/{name}", argument)


def test_kubectl_is_that_of_the_cache_or_of_path(machine: Machine) -> None:
    with pytest.raises(PeersMissing, match=r"kubectl .* isn't built yet, .* no Go .*; nor is it in PATH"):
        find_or_build_kubectl(print, machine.environment)
    machine.has("kubectl")
    assert find_or_build_kubectl(print, machine.environment) == machine.bin / "kubectl"
    built = machine.kept / f"kubectl-{VERSION}/kubectl"
    built.parent.mkdir(parents=True)
    (machine.bin / "kubectl").rename(built)
    assert find_or_build_kubectl(print, machine.environment) == built


def test_with_neither_it_says_what_would_help(machine: Machine) -> None:
    with pytest.raises(PeersMissing, match=r"helm .* there is no Go .* and neither is helm in PATH"):
        find_or_install(HELM, print, machine.environment)


def test_what_go_says_is_passed_on_and_nothing_half_made_stays(machine: Machine) -> None:
    machine.has_go()
    machine.calls.with_suffix(".fail").touch()
    with pytest.raises(PeersMissing, match="no such version"):
        find_or_install(HELM, print, machine.environment)
    assert [path.name for path in (machine.kept / f"helm-{HELM.version}").iterdir()] == ["building"]
