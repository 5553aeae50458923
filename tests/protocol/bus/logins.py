"""A nats-server with the accounts of deploy/nats."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from shared.bus.accounts import USERS
from tests.nats import NatsServer, nats_server

ACCOUNTS = (Path(__file__).parents[3] / "deploy/nats/accounts.conf").read_text()
PASSWORDS = {login: f"{login}1" for login in USERS}


@asynccontextmanager
async def secured(directory: Path, accounts: str = ACCOUNTS) -> AsyncIterator[NatsServer]:
    variables = "".join(f"{user.upper()}_PASSWORD: {password}\n" for user, password in PASSWORDS.items())
    async with nats_server(directory, config=variables + accounts) as server:
        yield server


def violations(server: NatsServer) -> list[str]:
    """What the server refused, by its log."""
    return [line for line in server.log.read_text().splitlines() if "Violation" in line]
