"""Where kube-apiserver and etcd are looked for, and how one is built: with a Go that only pretends."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kubernetes import peers
from tests.kubernetes.peers import ASSETS, VERSION, Peers, PeersMissing, cached, find_or_build

GO = """#!/bin/sh
echo "$*" >> "$CALLS"
case "$1 $2" in
"mod download") echo '{"GoMod": "/its/go.mod"}';;
"mod edit") echo '{"Go": "1.99", "Replace": [
  {"Old": {"Path": "k8s.io/api"}, "New": {"Path": "./staging/src/k8s.io/api"}},
  {"Old": {"Path": "example.org/fork"}, "New": {"Path": "example.org/forked", "Version": "v1.2.3"}}]}';;
build*)
  cp go.mod "$CALLS.mod"
  echo half > kube-apiserver
  [ ! -e "$CALLS.fail" ] || { echo "no space left" >&2; exit 1; }
  chmod +x kube-apiserver;;
esac
"""


class Machine:
    """A machine that has what the test put there."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.bin.mkdir()
        self.calls = root / "calls"
        self.home = root / "home"
        # The pretended Go is a shell script: it needs the machine's own commands, and those who look for it mustn't
        # find the machine's own Go.
        for name in ("cp", "chmod"):
            (self.bin / name).symlink_to(
                next(path for path in (Path("/bin", name), Path("/usr/bin", name)) if path.exists())
            )
        self.environment = {"PATH": str(self.bin), "HOME": str(self.home), "CALLS": str(self.calls)}

    def install(self, name: str, text: str = "#!/bin/sh\n", folder: Path | None = None) -> Path:
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def find(self, report: Callable[[str], None] = lambda _: None) -> Peers:
        return find_or_build(report, self.environment)

    @property
    def builds(self) -> int:
        return self.calls.read_text().count("build -trimpath") if self.calls.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(peers, "_ETCD_FOLDERS", ())
    monkeypatch.setattr(peers, "_GO_FOLDERS", (str(tmp_path / "usr-local-go"),))
    return Machine(tmp_path)


def test_a_folder_with_ready_binaries_goes_before_everything(machine: Machine, tmp_path: Path) -> None:
    machine.install("etcd")
    machine.install("kube-apiserver", folder=cached(machine.environment).parent)
    given = [machine.install(name, folder=tmp_path / "assets") for name in ("kube-apiserver", "etcd")]
    machine.environment[ASSETS] = str(tmp_path / "assets")

    assert machine.find() == Peers(*given)


def test_a_folder_without_a_kube_apiserver_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.install("etcd")
    machine.environment[ASSETS] = str(tmp_path / "assets")

    with pytest.raises(PeersMissing, match=f"{ASSETS} is {tmp_path}/assets, where no kube-apiserver is"):
        machine.find()


def test_without_etcd_nothing_is_built(machine: Machine) -> None:
    machine.install("go", GO)

    with pytest.raises(PeersMissing, match=r"etcd is neither in PATH .*: apt-get install etcd-server"):
        machine.find()
    assert machine.builds == 0


def test_without_go_the_reason_names_what_would_do(machine: Machine) -> None:
    machine.install("etcd")

    with pytest.raises(PeersMissing, match=f"no Go to build it: install Go from https://go.dev/dl, or .* in {ASSETS}"):
        machine.find()


def test_it_is_built_with_the_staging_modules_of_its_version_and_kept(machine: Machine) -> None:
    machine.install("etcd")
    machine.install("go", GO)
    said: list[str] = []

    built = machine.find(said.append).kube_apiserver

    assert built == machine.find(said.append).kube_apiserver == cached(machine.environment)
    assert machine.builds == 1
    assert len(said) == 1
    assert sorted(os.listdir(built.parent)) == ["building", "kube-apiserver"]
    module = Path(f"{machine.calls}.mod").read_text()
    assert f"require k8s.io/kubernetes v{VERSION}\n" in module
    assert f"replace k8s.io/api => k8s.io/api v0.{VERSION.partition('.')[2]}\n" in module
    assert "go 1.99\n" in module
    assert "example.org" not in module


def test_a_build_that_fails_says_why_and_leaves_nothing(machine: Machine) -> None:
    machine.install("etcd")
    machine.install("go", GO)
    Path(f"{machine.calls}.fail").touch()

    with pytest.raises(PeersMissing, match=r"can't be built, .*/go build (.*\n)*no space left"):
        machine.find()

    assert os.listdir(cached(machine.environment).parent) == ["building"]
