"""The real helm and kustomize for the tests of this directory.

They are installed, where that has to be, between collection and the first test: no test's time-out allows for it.
"""

import os

import pytest

from tests.kubernetes.conftest import REQUIRE
from tests.kubernetes.deploy.render import Objects, Renderer
from tests.kubernetes.deploy.tools import HELM, KUSTOMIZE, find_or_install
from tests.kubernetes.peers import PeersMissing

_TOOLS = pytest.StashKey[tuple[tuple[str, ...], tuple[str, ...]] | str]()
"""How kustomize and helm are called, or why they can't be."""


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    if any("renderer" in getattr(item, "fixturenames", ()) for item in session.items):
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        report = reporter.write_line if reporter else lambda _: None
        try:
            session.config.stash[_TOOLS] = find_or_install(KUSTOMIZE, report), find_or_install(HELM, report)
        except PeersMissing as error:
            session.config.stash[_TOOLS] = str(error)


@pytest.fixture(scope="session")
def renderer(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """The tools; without them the test is skipped, and told why."""
    tools = pytestconfig.stash[_TOOLS]
    if isinstance(tools, tuple):
        return Renderer(*tools, tmp_path_factory.mktemp("render"))
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{REQUIRE} is set, and nothing can be rendered: {tools}", pytrace=False)
    pytest.skip(f"nothing can be rendered: {tools}")


@pytest.fixture(scope="session")
def base(renderer: Renderer) -> Objects:
    return renderer.base()


@pytest.fixture(scope="session")
def chart(renderer: Renderer) -> Objects:
    return renderer.chart()
