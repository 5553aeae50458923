"""Who the watcher is for the API server, and what happens when that changes while it runs."""

import asyncio
import json
import os
import shlex
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.watcher.kubernetes.client import Client, connect
from services.watcher.kubernetes.errors import ConfigurationError, TlsFailed, Unauthorized
from services.watcher.kubernetes.resource import Selection
from services.watcher.kubernetes.settings import KubernetesSettings
from tests.certificates import Authority
from tests.fake_kubernetes.cluster import PODS
from tests.fake_kubernetes.server import ApiServer
from tests.faults.watcher_kubernetes.conftest import Connect, socket_of

ALL_PODS = Selection(PODS, "default")


async def works(client: Client) -> bool:
    return len(list((await client.page(ALL_PODS, 500)).items)) == 2


class ServiceAccount:
    """The files that the kubelet puts into a pod, for a server with TLS."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "serviceaccount"
        self.directory.mkdir()
        self.authority = Authority(directory, "authority")
        self.clients: list[Client] = []
        self.write("first", self.authority)

    def write(self, token: str, authority: Authority) -> None:
        (self.directory / "token").write_text(token)
        (self.directory / "ca.crt").write_bytes(authority.ca.read_bytes())

    async def connect(self, server: ApiServer) -> Client:
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        self.clients.append(await connect(KubernetesSettings(), environ, self.directory))
        return self.clients[-1]


@pytest.fixture
async def account(server: ApiServer, tmp_path: Path) -> AsyncIterator[ServiceAccount]:
    made = ServiceAccount(tmp_path)
    await server.stop()
    await server.start(tls=made.authority.server())
    server.tokens = {"first"}
    yield made
    for client in made.clients:
        await client.close()


async def test_401_with_a_rotated_token_is_healed_without_anybody_noticing(
    server: ApiServer, account: ServiceAccount
) -> None:
    client = await account.connect(server)
    assert client.host == server.url
    assert await works(client)
    account.write("second\n", account.authority)
    server.tokens = {"second"}
    assert await works(client)
    assert [seen.headers["Authorization"] for seen in server.seen] == ["Bearer first", "Bearer first", "Bearer second"]
    assert client.renewals == 1


async def test_401_of_many_requests_at_once_loads_the_credentials_once(
    server: ApiServer, account: ServiceAccount
) -> None:
    client = await account.connect(server)
    account.write("second", account.authority)
    server.tokens = {"second"}
    assert await asyncio.gather(*(works(client) for _ in range(10))) == [True] * 10
    assert client.renewals == 1


async def test_401_with_the_newest_token_is_told(server: ApiServer, account: ServiceAccount) -> None:
    server.tokens = set()
    client = await account.connect(server)
    with pytest.raises(Unauthorized, match="can't list pods in namespace default: 401 Unauthorized"):
        await client.page(ALL_PODS, 500)
    assert len(server.seen) == 2


async def test_a_watch_goes_on_while_credentials_are_loaded_anew(server: ApiServer, account: ServiceAccount) -> None:
    client = await account.connect(server)
    async with client.stream(ALL_PODS, "102", 30.0) as chunks:
        account.write("second", account.authority)
        server.tokens = {"second"}
        assert await works(client)
        assert client.renewals == 1
        server.cluster.put("c")
        assert b'"ADDED"' in await anext(chunks)
    assert server.watches == 1


async def test_a_watch_that_is_left_waits_for_no_farewell_of_a_server(
    server: ApiServer, account: ServiceAccount
) -> None:
    """One that hangs says none, and the connection would stay for TLS' half minute."""
    client = await account.connect(server)
    async with client.stream(ALL_PODS, "102", 30.0) as answer:
        connected = socket_of(answer)
        assert connected.fileno() >= 0
    await asyncio.sleep(0)  # no turn for the server, which is in this loop, to answer in
    assert connected.fileno() == -1


async def test_a_replaced_authority_is_trusted_when_its_file_is_there(
    server: ApiServer, account: ServiceAccount, tmp_path: Path
) -> None:
    client = await account.connect(server)
    assert await works(client)
    other = Authority(tmp_path, "other")
    await server.stop()
    await server.start(tls=other.server())
    with pytest.raises(TlsFailed, match=r"no TLS with https://127\.0\.0\.1"):
        await client.page(ALL_PODS, 500)
    account.write("first", other)
    assert await works(client)
    await server.stop()
    await server.start(tls=other.server(expired=True))
    with pytest.raises(TlsFailed, match="expired"):
        await client.page(ALL_PODS, 500)


async def test_a_service_account_without_its_files_is_told_at_the_start_and_later(
    server: ApiServer, account: ServiceAccount
) -> None:
    client = await account.connect(server)
    (account.directory / "token").unlink()
    server.tokens = set()
    for attempt in (lambda: client.page(ALL_PODS, 500), lambda: account.connect(server)):
        with pytest.raises(ConfigurationError, match=r"service account in .*serviceaccount can't be used"):
            await attempt()


def plugin(directory: Path, server: ApiServer) -> dict[str, object]:
    """An exec plugin that gives the token that is in a file, and notes each call."""
    script = directory / "plugin.py"
    script.write_text(
        "import json, pathlib, sys\n"
        f"directory = pathlib.Path({str(directory)!r})\n"
        "(directory / 'calls').open('a').write('x')\n"
        "token = (directory / 'token').read_text()\n"
        "status = {'token': token, 'expirationTimestamp': '2099-01-01T00:00:00Z'}\n"
        "version = 'client.authentication.k8s.io/v1'\n"
        "json.dump({'apiVersion': version, 'kind': 'ExecCredential', 'status': status}, sys.stdout)\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (directory / "token").write_text("first")
    server.tokens = {"first"}
    command = {"command": sys.executable, "args": [str(script)]}
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", **command}}


async def test_an_exec_plugin_is_run_and_run_again_after_401(
    server: ApiServer, connected: Connect, tmp_path: Path
) -> None:
    """Also when it said that its token would live longer."""
    client = await connected(plugin(tmp_path, server))
    assert await works(client)
    assert await works(client)
    assert (tmp_path / "calls").read_text() == "x"
    (tmp_path / "token").write_text("second")
    server.tokens = {"second"}
    assert await works(client)
    assert (tmp_path / "calls").read_text() == "xx"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit('no session')", "no session"),
        ("print('no JSON')", "answer isn't JSON"),
        ("print('{}')", "isn't an ExecCredential of v1 with a status"),
        ("print('[]')", "isn't an ExecCredential of v1 with a status"),
        ("import time; time.sleep(60)", "gave no credentials within 300ms"),
    ],
)
async def test_an_exec_plugin_that_fails_is_told(connected: Connect, code: str, reason: str) -> None:
    user = {"exec": {"apiVersion": "v1", "command": sys.executable, "args": ["-c", code]}}
    timeout = 0.3 if "sleep" in code else 30.0
    with pytest.raises(ConfigurationError, match=reason):
        await connected(user, kubernetes_credentials_timeout=timeout)


async def test_an_exec_plugin_that_doesnt_end_in_time_is_ended(connected: Connect, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"echo $$ > {shlex.quote(str(pid))}; exec sleep 60"
    user = {"exec": {"apiVersion": "v1", "command": "/bin/sh", "args": ["-c", code]}}
    for timeout in (0.5, 10.0):  # a busy machine may need longer to start it
        with pytest.raises(ConfigurationError, match="gave no credentials within"):
            await connected(user, kubernetes_credentials_timeout=timeout)
        if pid.exists() and pid.read_text():
            break
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


async def test_a_kubeconfigs_token_file_is_read_again_after_401(
    server: ApiServer, connected: Connect, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("first")
    server.tokens = {"first"}
    client = await connected({"tokenFile": str(tmp_path / "token")})
    assert await works(client)
    (tmp_path / "token").write_text("second")
    server.tokens = {"second"}
    assert await works(client)


def add_context(path: Path, name: str, token: str) -> None:
    document = yaml.safe_load(path.read_text())
    document["contexts"].append({"name": name, "context": {"cluster": "fake", "user": name}})
    document["users"].append({"name": name, "user": {"token": token}})
    path.write_text(yaml.safe_dump(document))


async def test_a_context_is_chosen(server: ApiServer, connected: Connect, tmp_path: Path) -> None:
    path = server.kubeconfig(tmp_path / "contexts", {"token": "secret"})
    add_context(Path(path), "other", "other-token")
    assert await works(await connected(kubeconfig=path, kubeconfig_context="other"))
    assert server.seen[0].headers["Authorization"] == "Bearer other-token"
    with pytest.raises(ConfigurationError, match="context nobody"):
        await connected(kubeconfig=path, kubeconfig_context="nobody")


async def test_outside_of_pods_it_is_what_kubectl_reads(server: ApiServer, tmp_path: Path) -> None:
    home = tmp_path / ".kube"
    home.mkdir()
    server.kubeconfig(home / "config", {"token": "home"})
    named = server.kubeconfig(tmp_path / "named", {"token": "named"})
    for environ in ({"HOME": str(tmp_path)}, {"HOME": str(tmp_path), "KUBECONFIG": named}):
        client = await connect(KubernetesSettings(), environ)
        assert await works(client)
        await client.close()
    assert [seen.headers["Authorization"] for seen in server.seen] == ["Bearer home", "Bearer named"]


async def test_a_kubeconfig_goes_before_the_service_account(
    server: ApiServer, account: ServiceAccount, tmp_path: Path
) -> None:
    path = server.kubeconfig(tmp_path / "kubeconfig", {"token": "first"}, **{"insecure-skip-tls-verify": True})
    environ = {"KUBERNETES_SERVICE_HOST": "192.0.2.1", "KUBERNETES_SERVICE_PORT": "1"}
    client = await connect(KubernetesSettings(kubeconfig=path), environ, account.directory)
    assert await works(client)
    await client.close()


async def test_no_kubeconfig_and_no_pod_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no file .*/\.kube/config, and this isn't a pod"):
        await connect(KubernetesSettings(), {"HOME": str(tmp_path)})


def kubeconfig(cluster: Any, name: str = "b", **more: Any) -> str:
    context = {"name": "a", "context": {"cluster": name, "user": "c"}}
    clusters = [{"name": "b", "cluster": {"server": "https://x", **cluster}}]
    return json.dumps({"current-context": "a", "contexts": [context], "clusters": clusters, "users": [], **more})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "a: [",
        "just text",
        "apiVersion: v1\nkind: Config\n",
        kubeconfig({}, "nowhere"),
        kubeconfig({}, contexts={}, clusters={}, users={}),
        kubeconfig({"certificate-authority": "/no/file"}),
        kubeconfig({"certificate-authority-data": "bm8="}),
    ],
    ids=["empty", "a list", "no YAML", "text", "no context", "no cluster", "mappings", "no authority", "bad authority"],
)
async def test_a_kubeconfig_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"kubeconfig {path}"):
        await connect(KubernetesSettings(kubeconfig=str(path)), {})
