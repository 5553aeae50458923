"""Users, passwords and tokens that a server's URL has."""

from pathlib import Path
from urllib.parse import quote

import pytest

from shared.bus.connection import Bus
from tests.nats import nats_server
from tests.waiting import TIMEOUT


@pytest.mark.parametrize(
    ("config", "login"),
    [
        ('user: "u", password: "a,b@c:d/e%41"', f"u:{quote('a,b@c:d/e%41', safe='')}"),
        ('token: "a,b@c:d/e"', quote("a,b@c:d/e", safe="")),
    ],
    ids=["password", "token"],
)
async def test_what_is_escaped_in_a_url_lets_in(tmp_path: Path, config: str, login: str) -> None:
    async with nats_server(tmp_path, config=f"authorization {{ {config} }}") as server:
        bus = Bus(server.url.replace("//", f"//{login}@"), name="url")
        await bus.start()
        await bus.wait_connected(TIMEOUT)
        assert bus.connected, bus.readiness()
        await bus.close()
