"""A nats-server with the accounts of deploy/nats."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from shared.bus.accounts import USERS
from tests.nats import NatsServer, nats_cluster, nats_server

ACCOUNTS = (Path(__file__).parents[3] / "deploy/nats/accounts.conf").read_text()
PASSWORDS = {login: f"{login}1" for login in USERS}


@asynccontextmanager
async def secured(directory: Path, accounts: str = ACCOUNTS) -> AsyncIterator[NatsServer]:
    async with nats_server(directory, config=_with_passwords(accounts)) as server:
        yield server


@asynccontextmanager
async def secured_cluster(directory: Path) -> AsyncIterator[list[NatsServer]]:
    """Three servers."""
    async with nats_cluster(directory, config=_with_passwords(ACCOUNTS)) as servers:
        yield servers


def _with_passwords(accounts: str) -> str:
    return "".join(f"{user.upper()}_PASSWORD: {password}\n" for user, password in PASSWORDS.items()) + accounts


def violations(server: NatsServer) -> list[str]:
    """What the server refused, by its log."""
    return [line for line in server.log.read_text().splitlines() if "Violation" in line]
