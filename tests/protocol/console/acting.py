"""A console that may act, over a nats-server with the tiers' logins, and a watcher of an endpoints file."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from services.console.app import ConsoleService
from services.watcher.app import WatcherService
from services.watcher.settings import WatcherSettings
from shared.bus.accounts import OPERATOR, installation
from shared.bus.subjects import Subjects
from tests.browser.conftest import console
from tests.in_process import serving
from tests.protocol.bus.logins import OPERATOR_PASSWORD, PASSWORDS, secured, violations
from tests.waiting import eventually

FILE = "endpoints:\n- {name: a, address: 10.0.0.1, port: 80}\n- {name: b, address: 10.0.0.2, port: 80}\n"
TOKEN = "secret"


@asynccontextmanager
async def acting(folder: Path, *, watcher: bool = True, **settings: Any) -> AsyncIterator[ConsoleService]:
    """A console with the login of operators that knows the pool. It may act unless `settings` say otherwise; so may the
    `watcher`, or not, which reads `endpoints.yaml` of the folder."""
    file = folder / "endpoints.yaml"
    file.write_text(FILE)
    accounts = installation(Subjects(), actions=True)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(secured(folder / "nats", accounts))
        watching = WatcherSettings(
            endpoints_file=str(file),
            allow_actions=watcher,
            nats_url=(server.url,),
            nats_user="watcher",
            nats_password=PASSWORDS["watcher"],
            admin_host="127.0.0.1",
            admin_port=0,
        )
        owner = WatcherService(watching)
        await stack.enter_async_context(serving(owner))
        operator = {"nats_user": OPERATOR, "nats_password": OPERATOR_PASSWORD}
        allowed = {"console_token": TOKEN, "allow_actions": True, **operator, **settings}
        service = await stack.enter_async_context(console(server.url, **allowed))
        await eventually(lambda: service.readiness.ready and owner.leadership.leads, lambda: service.readiness)
        yield service
        assert violations(server) == []
