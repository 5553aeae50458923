"""The logins that docs/deploy-systemd.md makes for nats-server and the units."""

import asyncio
import re
import sys
from pathlib import Path

import nats
import pytest

from pointsman.docs import ROOT
from pointsman.local.nats import NatsServer
from pointsman.local.ports import LOOPBACK
from pointsman.local.process import write
from pointsman.up.systemd import DIRECTORY, LOGINS, PROGRAMS, units
from shared.bus.accounts import USERS
from tests.nats import free_port

PAGE = (ROOT / "docs" / "deploy-systemd.md").read_text(encoding="utf-8")


def variables(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


async def test_each_unit_has_a_login_and_nobody_else_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (commands,) = re.findall(r"```\n(\S+ -m shared\.bus\.accounts .*?)```", PAGE, re.DOTALL)
    state, logins = tmp_path / "state", tmp_path / "logins"
    for folder, here in ((DIRECTORY, state), (LOGINS, logins), (PROGRAMS, Path(sys.executable).parent)):
        commands = commands.replace(str(folder), str(here))
    server = NatsServer(state, free_port())
    write(server.files())
    shell = await asyncio.create_subprocess_exec("sh", "-e", "-c", commands, cwd=ROOT)
    assert await shell.wait() == 0
    assert {path.stem for path in logins.iterdir()} == {"nats", *USERS}
    for name, text in units().items():
        for file in re.findall(rf"^EnvironmentFile=-{LOGINS}/(.*)$", text, re.MULTILINE):
            assert (logins / file).exists(), name
    server.environment |= variables(logins / "nats.env")
    config = (state / "nats.conf").read_text()
    monkeypatch.setattr(server, "files", lambda: {state / "nats.conf": config})
    await server.start()
    try:
        url, refused = server.url, list[str]()
        reader, writer = await asyncio.open_connection(LOOPBACK, server.port)
        writer.write(b"CONNECT {}\r\nPING\r\n")
        assert b"Authorization Violation" in await reader.read()
        writer.close()

        async def on_error(error: Exception) -> None:
            refused.append(str(error))

        for user in ("picker", "watcher"):
            login = variables(logins / f"{user}.env")
            assert login["POINTSMAN_NATS_USER"] == user
            client = await nats.connect(url, user=user, password=login["POINTSMAN_NATS_PASSWORD"], error_cb=on_error)
            await client.publish("$KV.endpoints.default_default.x", b"")
            await client.flush()
            await client.close()
        assert len(refused) == 1
        assert "permissions violation for publish" in refused[0]
    finally:
        await server.stop()
