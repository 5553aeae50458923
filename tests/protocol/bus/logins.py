"""A nats-server with the accounts of deploy/nats."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from shared.bus.accounts import OPERATOR
from shared.bus.subjects import TIERS
from tests.nats import NatsServer, nats_cluster, nats_server

ACCOUNTS = (Path(__file__).parents[3] / "deploy/nats/accounts.conf").read_text()
PASSWORDS = {tier: f"{tier}1" for tier in TIERS}

OPERATOR_PASSWORD = "operator1"
"""Of the login that there is only where endpoints can be drained from consoles."""


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
    every = {**PASSWORDS, OPERATOR: OPERATOR_PASSWORD}
    named = {f"{user.upper()}_PASSWORD": password for user, password in every.items()}
    variables = "".join(f"{name}: {password}\n" for name, password in named.items() if f"${name}" in accounts)
    return variables + accounts


def violations(server: NatsServer) -> list[str]:
    """What the server refused, by its log."""
    return [line for line in server.log.read_text().splitlines() if "Violation" in line]
