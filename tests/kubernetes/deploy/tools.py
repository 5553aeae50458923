"""Where the real helm, kustomize and kubectl come from: in one version each, built with Go once for each user; without
Go those of PATH, in whatever version they are there. kubectl is built as the API server is, of the same module.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from tests.kubernetes.peers import (
    Environment,
    Go,
    PeersMissing,
    Report,
    built,
    executable,
    find_go,
    kept,
    only_one,
    which,
)


class Tool(Struct, frozen=True):
    """A program that Go builds from a module alone."""

    name: str
    package: str
    version: str
    stand_ins: Mapping[str, tuple[str, ...]]
    """Programs of PATH that do the same, and what they are told for it, the best one first."""
    arguments: tuple[str, ...] = ()
    """What the program itself is told to render."""


HELM = Tool("helm", "helm.sh/helm/v3/cmd/helm", "3.22.0", {"helm": ("template",)}, ("template",))
KUSTOMIZE = Tool(
    "kustomize",
    "sigs.k8s.io/kustomize/kustomize/v5",
    "5.7.1",
    {"kustomize": ("build",), "kubectl": ("kustomize",)},
    ("build",),
)


def find_or_install(tool: Tool, report: Report, environment: Environment | None = None) -> tuple[str, ...]:
    """The beginning of the command that renders; `report` is told before something is installed.

    Raises PeersMissing when there is neither the program nor Go to make it.
    """
    environment = os.environ if environment is None else environment
    target = kept(f"{tool.name}-{tool.version}", environment) / tool.name
    if executable(target):
        return (str(target), *tool.arguments)
    if (go := find_go(environment)) is not None:
        try:
            _install(tool, target, go, report, environment)
        except OSError as error:
            raise PeersMissing(f"{target.parent}, where {tool.name} is kept: {error}") from error
        return (str(target), *tool.arguments)
    for name, arguments in tool.stand_ins.items():
        if (found := which(name, environment)) is not None:
            return (str(found), *arguments)
    raise PeersMissing(
        f"{tool.name} {tool.version} isn't in {target.parent}, there is no Go to install it with (https://go.dev/dl), "
        f"and neither is {' or '.join(tool.stand_ins)} in PATH"
    )


def find_or_build_kubectl(report: Report, environment: Environment | None = None) -> Path:
    """The program. Raises PeersMissing when there is neither it nor Go to make it."""
    environment = os.environ if environment is None else environment
    try:
        return built("kubectl", report, environment)
    except PeersMissing as error:
        if (found := which("kubectl", environment)) is not None:
            return found
        raise PeersMissing(f"{error}; nor is it in PATH") from error


def _install(tool: Tool, target: Path, go: Path, report: Report, environment: Environment) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with only_one(target.parent / "building", tool.name, report):
        if executable(target):
            return
        report(f"building {tool.name} {tool.version} into {target.parent}: minutes, and only once")
        with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent, ignore_cleanup_errors=True) as name:
            _build(tool, Go(go, Path(name), environment, f"{tool.name} {tool.version}"), Path(name))
            (Path(name) / tool.name).replace(target)


def _build(tool: Tool, go: Go, directory: Path) -> None:
    """As `go install` does it, which also asks for newer versions: not every proxy lists those."""
    module = tool.package.partition("/cmd/")[0]
    downloaded = go.json("mod", "download", "-json", f"{module}@v{tool.version}")
    its_file = go.json("mod", "edit", "-json", downloaded["GoMod"])
    lines = [f"module pointsman.test/{tool.name}", f"require {module} v{tool.version}"]
    if language := its_file.get("Go"):
        lines.append(f"go {language}")
    (directory / "go.mod").write_text("\n".join(lines) + "\n")
    go("build", "-trimpath", "-ldflags", "-s -w", "-o", tool.name, tool.package)
