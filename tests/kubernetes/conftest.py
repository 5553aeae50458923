"""The real kube-apiserver for the tests of this directory."""

import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.watcher import leadership
from shared.bus.lease import Lease
from tests.kubernetes.api import Api
from tests.kubernetes.apiserver import CRDS, ApiServer
from tests.kubernetes.peers import Peers, PeersMissing
from tests.kubernetes.pods import Pods
from tests.kubernetes.prepare import NEEDS
from tests.kubernetes.watching import Site
from tests.nats import NatsServer, nats_server

REQUIRE = "POINTSMAN_REQUIRE_KUBERNETES"
"""Set to 1: tests that can't have a kube-apiserver fail, instead of being skipped."""

_HAD = pytest.StashKey[dict[str, object]]()
"""By fixture: what it gives, or why there is none."""


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    report = reporter.write_line if reporter else lambda _: None
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    had = session.config.stash.setdefault(_HAD, {})
    for name, need in NEEDS.items():
        if name in wanted:
            try:
                had[name] = need(report)
            except PeersMissing as error:
                report(str(error))
                had[name] = error


def had(config: pytest.Config, name: str) -> Any:
    """What a fixture gives; without it the test is skipped, and told why; or it fails, where none may be missed."""
    found = config.stash[_HAD][name]
    if isinstance(found, PeersMissing):
        what = f"no {name.replace('_', ' ')}: {str(found).partition(chr(10))[0]}"
        if os.environ.get(REQUIRE) == "1":
            pytest.fail(f"{REQUIRE} is set, and there is {what}", pytrace=False)
        pytest.skip(what)
    return found


@pytest.fixture(scope="session")
def kubernetes_peers(pytestconfig: pytest.Config) -> Peers:
    """The binaries."""
    found: Peers = had(pytestconfig, "kubernetes_peers")
    return found


@pytest.fixture(autouse=True)
def _patient_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watchers of this process keep the lease when the process stands still for a while: they hand it over only."""
    monkeypatch.setattr(leadership, "Lease", partial(Lease, ttl=600.0, hold=500.0))


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def apiserver(kubernetes_peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiServer]:
    """One server for all tests that leave it alive, with every definition of `crds`."""
    async with ApiServer(kubernetes_peers, tmp_path_factory.mktemp("apiserver")) as server:
        async with server.client() as admin:
            await admin.install(CRDS)
        yield server


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def fragile(kubernetes_peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiServer]:
    """One server for all tests that do something to it. It has no watch cache: what etcd has compacted is gone."""
    directory = tmp_path_factory.mktemp("fragile")
    async with ApiServer(kubernetes_peers, directory, flags=["--watch-cache=false"]) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def victim(fragile: ApiServer) -> ApiServer:
    """That server, running, with every definition. Tests of it are in the session's loop (`on_victim`)."""
    await fragile.start()
    async with fragile.client() as admin:
        await admin.install(CRDS)
    return fragile


@pytest.fixture
async def admin(apiserver: ApiServer) -> AsyncIterator[Api]:
    """A client of the shared server that may do everything."""
    async with apiserver.client() as client:
        yield client


@pytest.fixture
async def namespace(admin: Api) -> str:
    """A namespace of the shared server for this test alone."""
    return await admin.create_namespace()


@pytest.fixture
def pods(admin: Api, namespace: str) -> Pods:
    """The pods of this test's namespace."""
    return Pods(admin, namespace)


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with nats_server(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def site(apiserver: ApiServer, admin: Api, namespace: str, nats: NatsServer, tmp_path: Path) -> Site:
    """A namespace of the shared server, with a bus."""
    return Site(apiserver, admin, namespace, nats, tmp_path)


@pytest_asyncio.fixture(loop_scope="session")
async def victims_site(victim: ApiServer, nats: NatsServer, tmp_path: Path) -> AsyncIterator[Site]:
    """A namespace of the server that the test may do anything to."""
    async with victim.client() as admin:
        yield Site(victim, admin, await admin.create_namespace(), nats, tmp_path)
