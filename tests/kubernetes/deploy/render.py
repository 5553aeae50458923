"""What Kustomize and Helm make of deploy/kubernetes, as objects."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml

Object: TypeAlias = dict[str, Any]
Objects: TypeAlias = dict[tuple[str, str], Object]
"""By kind and name."""

DEPLOY = Path(__file__).parents[3] / "deploy/kubernetes"
OVERLAYS = tuple(sorted(path.parent.name for path in DEPLOY.glob("overlays/*/kustomization.yaml")))
COMPONENTS = tuple(sorted(path.parent.name for path in DEPLOY.glob("components/*/kustomization.yaml")))
RELEASE = "pointsman"
NAMESPACE = "inference"
"""The overlays' namespace, and the chart's here."""
KUBERNETES = "1.36.3"
"""What helm takes the cluster for."""


class RenderError(Exception):
    """The tool refused; its words."""


class Renderer:
    """Runs the tools: `kustomize` and `helm` are the beginnings of their commands."""

    def __init__(self, kustomize: Sequence[str], helm: Sequence[str], directory: Path) -> None:
        self._kustomize = kustomize
        self._helm = helm
        self._directory = directory
        self._rendered: dict[tuple[str, ...], str] = {}

    @property
    def helm(self) -> str:
        """The program."""
        return self._helm[0]

    def overlay(self, name: str) -> Objects:
        """Of deploy/kubernetes/overlays."""
        return self.kustomization(DEPLOY / "overlays" / name)

    def kustomization(self, folder: Path) -> Objects:
        """Of any folder with a kustomization.yaml."""
        return self._once([*self._kustomize, str(folder)], str(folder))

    def base(self, *components: str) -> Objects:
        """The base with components, in the namespace of the overlays."""
        folder = self._directory / "-".join(("kustomization", *components))
        folder.mkdir(exist_ok=True)
        # Kustomize takes relative paths alone.
        up = "../" * (len(folder.resolve().parts) - 1) + str(DEPLOY).lstrip("/")
        (folder / "kustomization.yaml").write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "kustomize.config.k8s.io/v1beta1",
                    "kind": "Kustomization",
                    "namespace": NAMESPACE,
                    "resources": [f"{up}/base"],
                    "components": [f"{up}/components/{component}" for component in components],
                }
            )
        )
        return self.kustomization(folder)

    def chart(
        self, values: Mapping[str, Any] | Path | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE
    ) -> Objects:
        """The chart with values, a mapping or a file. Raises RenderError when it doesn't take them."""
        text = values.read_text() if isinstance(values, Path) else yaml.safe_dump(dict(values or {}))
        file = self._directory / "values.yaml"
        file.write_text(text)
        command = [*self._helm, release, str(DEPLOY / "chart"), "--values", str(file), "--namespace", namespace]
        return self._once([*command, "--kube-version", KUBERNETES], release, namespace, text)

    def _once(self, command: Sequence[str], *key: str) -> Objects:
        """The same is rendered once."""
        if key not in self._rendered:
            self._rendered[key] = _run(command)
        return by_name(self._rendered[key])


def by_name(text: str) -> Objects:
    """The documents of a YAML text. Raises ValueError for two of one kind and name."""
    found: Objects = {}
    for document in yaml.safe_load_all(text):
        if document is not None:
            key = document["kind"], document["metadata"]["name"]
            if key in found:
                raise ValueError(f"{' '.join(key)} is there twice")
            found[key] = document
    return found


def envoy() -> Objects:
    """Of envoy.yaml: an Envoy of one's own."""
    return by_name((DEPLOY / "envoy.yaml").read_text())


def workloads(objects: Objects) -> Iterator[Object]:
    """What makes pods."""
    return (obj for (kind, _), obj in objects.items() if kind in ("Deployment", "StatefulSet"))


def container(workload: Object) -> Object:
    """The one container of its pods."""
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    value: Object = only
    return value


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RenderError(f"{' '.join(command)} said:\n{done.stderr}")
    return done.stdout
