"""An API server with faults, and clients of it, for each test."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from services.watcher.kubernetes.client import Client, connect
from services.watcher.kubernetes.settings import KubernetesSettings
from tests.fake_kubernetes.server import ApiServer

Connect = Callable[..., Awaitable[Client]]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Pods a and b."""
    made = ApiServer()
    made.cluster.put("a", labels={"app": "vllm"})
    made.cluster.put("b", labels={"app": "vllm"})
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture
async def connected(server: ApiServer, tmp_path: Path) -> AsyncIterator[Connect]:
    """Makes clients by a kubeconfig: for this user, with these settings."""
    clients: list[Client] = []

    async def make(user: dict[str, Any] | None = None, **settings: Any) -> Client:
        path = tmp_path / "kubeconfig"
        if "kubeconfig" not in settings:
            settings["kubeconfig"] = server.kubeconfig(path, user or {"token": "secret"})
        clients.append(await connect(KubernetesSettings(**settings), environ={}))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


def socket_of(stream: Any) -> socket.socket:
    """The socket behind a watch's bytes."""
    transport = stream.read_func.__self__._protocol.transport
    found: socket.socket = transport.get_extra_info("socket")
    return found
