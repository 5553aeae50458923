"""The real helm, kustomize and kubectl for the tests of this directory.

They are installed, where that has to be, between collection and the first test: no test's time-out allows for it.
"""

from pathlib import Path

import pytest

from tests.kubernetes.conftest import lack
from tests.kubernetes.deploy.render import Objects, Renderer
from tests.kubernetes.deploy.tools import HELM, KUSTOMIZE, find_or_build_kubectl, find_or_install
from tests.kubernetes.peers import PeersMissing

_TOOLS = pytest.StashKey[tuple[tuple[str, ...], tuple[str, ...]] | str]()
"""How kustomize and helm are called, or why they can't be."""


_KUBECTL = pytest.StashKey[Path | str]()
"""The program, or why there is none."""


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    report = reporter.write_line if reporter else lambda _: None
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if "renderer" in wanted:
        try:
            session.config.stash[_TOOLS] = find_or_install(KUSTOMIZE, report), find_or_install(HELM, report)
        except PeersMissing as error:
            session.config.stash[_TOOLS] = str(error)
    if "kubectl" in wanted:
        try:
            session.config.stash[_KUBECTL] = find_or_build_kubectl(report)
        except PeersMissing as error:
            session.config.stash[_KUBECTL] = str(error)


@pytest.fixture(scope="session")
def renderer(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """The tools; without them the test is skipped, and told why."""
    tools = pytestconfig.stash[_TOOLS]
    if not isinstance(tools, tuple):
        lack(f"nothing that renders: {tools}")
    return Renderer(*tools, tmp_path_factory.mktemp("render"))


@pytest.fixture(scope="session")
def kubectl(pytestconfig: pytest.Config) -> Path:
    """The program; without it the test is skipped, and told why."""
    found = pytestconfig.stash[_KUBECTL]
    if not isinstance(found, Path):
        lack(f"no kubectl: {found}")
    return found


@pytest.fixture(scope="session")
def base(renderer: Renderer) -> Objects:
    return renderer.base()


@pytest.fixture(scope="session")
def chart(renderer: Renderer) -> Objects:
    return renderer.chart()
