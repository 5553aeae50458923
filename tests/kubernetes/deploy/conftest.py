"""The real helm, kustomize and kubectl for the tests of this directory."""

from pathlib import Path

import pytest

from tests.kubernetes.conftest import had
from tests.kubernetes.deploy.render import Objects, Renderer


@pytest.fixture(scope="session")
def renderer(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    kustomize, helm = had(pytestconfig, "renderer")
    return Renderer(kustomize, helm, tmp_path_factory.mktemp("render"))


@pytest.fixture(scope="session")
def kubectl(pytestconfig: pytest.Config) -> Path:
    found: Path = had(pytestconfig, "kubectl")
    return found


@pytest.fixture(scope="session")
def base(renderer: Renderer) -> Objects:
    return renderer.base()


@pytest.fixture(scope="session")
def chart(renderer: Renderer) -> Objects:
    return renderer.chart()
