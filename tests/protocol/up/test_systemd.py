"""The logins that docs/deploy-systemd.md makes for nats-server and the units."""

import asyncio
import re
import sys
from pathlib import Path

import nats

from pointsman.docs import ROOT
from pointsman.local.nats import NatsServer
from pointsman.local.ports import LOOPBACK
from pointsman.up.systemd import DIRECTORY, LOGINS, NATS_CONFIG, PROGRAMS, TARGET, units
from shared.bus.accounts import USERS
from tests.nats import free_port
from tests.waiting import eventually

PAGE = (ROOT / "docs" / "deploy-systemd.md").read_text(encoding="utf-8")


def variables(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


async def test_each_unit_has_a_login_and_nobody_else_publishes(tmp_path: Path) -> None:
    """Also after `pointsman.sh --files` has written the configuration again, as the start of the server does here."""
    (commands,) = re.findall(r"```\n([^`]* -m shared\.bus\.accounts .*?)```", PAGE, re.DOTALL)
    state, logins = (tmp_path / folder.relative_to("/") for folder in (DIRECTORY, LOGINS))
    for folder, here in ((LOGINS, logins), (PROGRAMS, Path(sys.executable).parent)):
        commands = commands.replace(str(folder), str(here))
    logins.parent.mkdir()
    shell = await asyncio.create_subprocess_exec("sh", "-e", "-c", commands, cwd=ROOT)
    assert await shell.wait() == 0
    assert {path.stem for path in logins.glob("*.env")} == {"nats", *USERS}
    assert {path.stat().st_mode & 0o77 for path in logins.glob("*.env")} == {0}
    for name, text in units().items():
        found = re.findall(rf"{LOGINS}/(\S+)", text)
        assert len(found) == {"pointsman-nats.service": 2, "pointsman-envoy.service": 0, TARGET: 0}.get(name, 1)
        assert all((logins / file).exists() for file in found), name
    server = NatsServer(state, free_port())
    server.environment |= variables(logins / "nats.env")
    server.command = [*server.command[:-1], str(logins / NATS_CONFIG.name)]
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
            if user == "picker":  # the client may tell of an error after a flush
                await eventually(lambda: bool(refused))
            await client.close()
        assert len(refused) == 1
        assert "permissions violation for publish" in refused[0]
    finally:
        await server.stop()
