"""Where the real kube-apiserver and etcd come from.

Debian has etcd, but nobody packages kube-apiserver. So it is built from the Go module `k8s.io/kubernetes`, once for
each user and version: minutes the first time, nothing later. A folder with ready binaries, named by
`KUBEBUILDER_ASSETS` as is the custom of controllers' tests, goes before that.
"""

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

VERSION = "1.36.3"
"""Of Kubernetes."""
MODULE = "k8s.io/kubernetes"
BUILD_TIMEOUT = 1800.0
"""Seconds that one Go command may take. The build needs four minutes on two cores."""

ASSETS = "KUBEBUILDER_ASSETS"
_ETCD_FOLDERS = ("/usr/local/bin", "/usr/bin")
_GO_FOLDERS = ("/usr/local/go/bin", "/usr/lib/go/bin")

Environment = Mapping[str, str]
Report = Callable[[str], None]


class Peers(Struct, frozen=True):
    """The binaries of one Kubernetes control plane."""

    kube_apiserver: Path
    etcd: Path


class PeersMissing(Exception):
    """What isn't there, and how it is had. Where a program has said more, that stands from the second line on."""


def find_or_build(report: Report, environment: Environment | None = None) -> Peers:
    """The binaries; kube-apiserver is built when it is neither given nor in the cache, and `report` is told before.

    Raises PeersMissing.
    """
    environment = os.environ if environment is None else environment
    etcd = _etcd(environment)  # first: without it nothing is worth building
    return Peers(_kube_apiserver(report, environment), etcd)


def cached(environment: Environment, program: str = "kube-apiserver") -> Path:
    """Where the kube-apiserver, or another program of its module, that was built is kept."""
    return kept(f"{program}-{VERSION}", environment) / program


def built(program: str, report: Report, environment: Environment) -> Path:
    """A program of Kubernetes' module, of the cache or built into it. Raises PeersMissing."""
    target = cached(environment, program)
    if executable(target):
        return target
    go = find_go(environment)
    if go is None:
        raise PeersMissing(
            f"{program} {VERSION} isn't built yet, and there is no Go to build it: install Go from "
            f"https://go.dev/dl, or name a folder with a ready one in {ASSETS}"
        )
    try:
        return _built(target, go, report, environment)
    except OSError as error:
        raise PeersMissing(f"{target.parent.parent}, where the {program} is kept: {error}") from error


def kept(name: str, environment: Environment) -> Path:
    """Our folder of that name in the user's cache folder."""
    cache = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home(), ".cache")
    return Path(cache, "pointsman", name)


def _etcd(environment: Environment) -> Path:
    assets = environment.get(ASSETS)
    found = which("etcd", environment, [*([assets] if assets else []), *_ETCD_FOLDERS], assets or "")
    if found is None:
        places = f"{assets} ({ASSETS}), PATH" if assets else "PATH"
        raise PeersMissing(f"etcd is neither in {places} nor in /usr/bin: apt-get install etcd-server")
    return found


def _kube_apiserver(report: Report, environment: Environment) -> Path:
    if assets := environment.get(ASSETS):
        given = Path(assets, "kube-apiserver")
        if not executable(given):
            raise PeersMissing(f"{ASSETS} is {assets}, where no kube-apiserver is; unset, one is built with Go")
        return given
    return built("kube-apiserver", report, environment)


def find_go(environment: Environment) -> Path | None:
    """The go command of PATH, or of where its packages put it."""
    return which("go", environment, _GO_FOLDERS)


def which(name: str, environment: Environment, folders: Sequence[str] = (), first: str = "") -> Path | None:
    """The program of that name in the folder `first`, in PATH, or in `folders`."""
    path = os.pathsep.join([*([first] if first else []), environment.get("PATH", os.defpath), *folders])
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _built(target: Path, go: Path, report: Report, environment: Environment) -> Path:
    """Build it beside its place and put it there by a rename: a half-written one is never seen."""
    target.parent.mkdir(parents=True, exist_ok=True)
    program = target.name
    with only_one(target.parent / "building", program, report):
        if executable(target):
            return target
        for interrupted in target.parent.glob("build-*"):
            shutil.rmtree(interrupted, ignore_errors=True)
        report(f"building {program} {VERSION} into {target.parent}: minutes, and only once")
        with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent, ignore_cleanup_errors=True) as name:
            directory = Path(name)
            _compile(Go(go, directory, environment, f"{program} {VERSION}"), directory, program)
            (directory / program).replace(target)
    return target


@contextmanager
def only_one(path: Path, what: str, report: Report) -> Iterator[None]:
    """Wait for a lock that ends with its process, however that ends."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"another process builds {what}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Go:
    """The go command, in the folder of a module, to build `what`."""

    def __init__(self, binary: Path, directory: Path, environment: Environment, what: str) -> None:
        self._binary = binary
        self._directory = directory
        self._what = what
        # What users set for their own work mustn't reach this module: a workspace, a vendor mode.
        self._environment = {**environment, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOWORK": "off"}

    def __call__(self, *arguments: str) -> str:
        """What the command wrote to stdout. Raises PeersMissing with the end of what it said."""
        command = [str(self._binary), *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=self._directory,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            output = "\n".join([*error.stdout.splitlines()[-5:], *error.stderr.splitlines()[-10:]])
            raise PeersMissing(f"{self._what} can't be built, {' '.join(command)} said:\n{output}") from error
        except subprocess.TimeoutExpired as error:
            raise PeersMissing(f"{self._what} isn't built after {BUILD_TIMEOUT:g} s of {' '.join(command)}") from error
        return done.stdout

    def json(self, *arguments: str) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self(*arguments))
        return parsed

    def __repr__(self) -> str:
        return f"<Go {self._binary} in {self._directory} for {self._what}>"


def _compile(go: Go, directory: Path, program: str) -> None:
    """Build the program in the folder.

    Inside its own repository the module takes a part of its packages from folders below `staging/`. To others they are
    modules of their own, with the same version number below v0, and a module that depends on it has to say so.
    """
    module = go.json("mod", "download", "-json", f"{MODULE}@v{VERSION}")
    its_file = go.json("mod", "edit", "-json", module["GoMod"])
    staged = [
        replacement["Old"]["Path"]
        for replacement in its_file["Replace"]
        if replacement["New"]["Path"].startswith("./staging/")
    ]
    staging_version = "v0." + VERSION.partition(".")[2]
    lines = [
        f"module pointsman.test/{program}",
        f"go {its_file['Go']}",
        f"require {MODULE} v{VERSION}",
        *(f"replace {path} => {path} {staging_version}" for path in staged),
    ]
    (directory / "go.mod").write_text("\n".join(lines) + "\n")
    # Without symbols, it is a third smaller. The version is what the server says of itself.
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion=v{VERSION}"
    go("build", "-trimpath", "-ldflags", flags, "-o", program, f"{MODULE}/cmd/{program}")
