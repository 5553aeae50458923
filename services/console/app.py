"""The console process: a web page and an API about one pool, for people.

It reads NATS, asks members there, and keeps nothing that matters: any number can run. With `--allow-actions`, it asks
the leading watcher to drain endpoints. Admin HTTP has a port of its own, as in every tier, so that probes and
Prometheus need neither the page's address nor its token.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from fastapi import FastAPI

from services.console.actions import action_routes
from services.console.api import api_routes, stream_routes
from services.console.assets import page_routes
from services.console.configuration import Documents
from services.console.decisions import Decisions, DecisionsTopic
from services.console.feed import Feed
from services.console.flow import FlowTopic, flow_page
from services.console.guard import Guard
from services.console.history import INTERVAL, History
from services.console.members import Members
from services.console.pool_topic import PoolTopic
from services.console.settings import ConsoleSettings
from shared.config.problems import Invalid, Problem
from shared.pool_view.reader import PoolReader
from shared.service.admin import AdminServer, add_refusals
from shared.service.bus import BusMetrics, make_bus
from shared.service.certificates import CertificateMetrics
from shared.service.index import add_docs
from shared.service.process import Service, run
from shared.service.settings import MAX_TEXT
from shared.version import VERSION

log = structlog.get_logger(__name__)

POOL_INTERVAL = 0.1
"""Seconds between two events about the pool: collectors scrape as often."""
DECISIONS_INTERVAL = 1.0
FLOW_INTERVAL = 0.5
CONFIGURATION_INTERVAL = 0.5
LIFETIME = 0.75
"""Part of the time limit of a request after which a stream ends by itself."""


class ConsoleService(Service):
    """The console of one pool."""

    tier = "console"

    def __init__(self, settings: ConsoleSettings) -> None:
        """Raises `Invalid` for contradictory settings."""
        super().__init__(settings)
        self._settings = settings
        token = settings.console_token
        if token != token.strip() or not (token.isascii() and token.isprintable()):
            reason = "printable ASCII is expected, without blanks around it: a header can't carry anything else"
            raise Invalid([Problem("--console-token", reason)])
        if settings.allow_actions and not settings.console_token:
            raise Invalid([Problem("--allow-actions", "--console-token is required with it, and missing")])
        self.bus, subjects, self._pool = make_bus(settings, self.tier, self.id)
        self._subjects = subjects
        self.reader = PoolReader(self.bus, subjects, self._pool)
        self.members = Members(self.bus, subjects, self.reader)
        self.decisions = Decisions(self.bus, subjects, self._pool, self.members.pickers)
        self.documents = Documents(settings.config_bounds, MAX_TEXT)
        self.history = History(settings.console_history)
        lifetime = LIFETIME * settings.console_timeout
        pool = PoolTopic(
            self.reader.rows,
            lambda: self.reader.version,
            lambda: {
                "about": self.about(),
                "members": self.members.described(),
                "problems": self.members.problems(),
            },
        )
        newest = DecisionsTopic(self.decisions, self.about)
        decisions = Feed(newest, DECISIONS_INTERVAL, lifetime)
        self.flow_names: Mapping[str, str] = newest.flows
        flow = FlowTopic(lambda: flow_page(self.reader, self.flow_names), self.about, decisions.refresh)
        self.feeds: Mapping[str, Feed] = {
            "pool": Feed(pool, POOL_INTERVAL, lifetime),
            "decisions": decisions,
            "flow": Feed(flow, FLOW_INTERVAL, lifetime),
        }
        self._web: AdminServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self.console_port = 0
        """Where the page is, once the service has started."""
        self.readiness.require("view", self.reader.readiness)
        self.readiness.mention("bus", self.bus.malformed.note)
        self.registry.register(BusMetrics(self.bus))
        self.registry.register(CertificateMetrics(self.bus.expirations))

    async def start(self) -> None:
        settings = self._settings
        web = self._web = AdminServer(
            self.web_app(),
            settings.console_host,
            settings.console_port,
            timeout=settings.console_timeout,
            connections=settings.console_connections,
            flag="--console",
        )
        self.console_port = web.port
        await self.reader.start()
        await self.bus.start()
        self._serving = asyncio.create_task(self._guard(web.serve(), "page", essential=True), name="page")
        self.spawn(self.members.run(), "members", essential=False)
        self.spawn(self._sample(), "history")
        self.spawn(self._follow_configuration(), "configuration")
        for name, feed in self.feeds.items():
            self.spawn(feed.run(), f"{name} feed")
        if not settings.console_token and not web.loopback:
            log.warning("console.open", host=settings.console_host, reason="anybody who reaches it sees the pool")
        log.info("console.serving", url=f"http://{web.address}/", token=bool(settings.console_token))

    async def drain(self) -> None:
        """Let open streams end: browsers open them again, at another console if there is one."""
        await self._stop_serving()

    async def close(self) -> None:
        await self._stop_serving()
        await self.reader.close()
        await self.bus.close()

    def state(self) -> Mapping[str, Any]:
        return {
            "pool": self._pool,
            "console_port": self.console_port,
            "bus": {"connected": self.bus.connected, "problem": self.bus.readiness()},
            "listeners": {name: feed.listeners for name, feed in self.feeds.items()},
            "failed_refreshes": {name: feed.failed for name, feed in self.feeds.items()},
        }

    def about(self) -> dict[str, Any]:
        """As `services.console.schemas.About`."""
        state = self.reader.state()
        return {
            "name": self._settings.pool_name,
            "namespace": self._settings.pool_namespace,
            "synced": state.synced,
            "problem": state.reason,
            "stale_after": self.documents.running.stale_after,
            "version": VERSION,
            "actions": self._settings.allow_actions,
        }

    def web_app(self) -> Guard:
        """The page and the API, behind their guard."""
        settings = self._settings
        app = FastAPI(title=f"pointsman console {self.id}", version=VERSION, openapi_url=None, docs_url=None)
        add_refusals(app)
        app.include_router(page_routes())
        app.include_router(stream_routes(self.feeds))
        app.include_router(api_routes(self))
        if settings.allow_actions:
            app.include_router(action_routes(self.bus, self._subjects, self._pool, self.id))
        add_docs(app)
        return Guard(
            app, token=settings.console_token, hostnames=settings.console_hostnames, limit=settings.console_body
        )

    async def _stop_serving(self) -> None:
        """The server ends by itself: cancelled, it would leave its socket to the event loop."""
        if self._web is not None and self._serving is not None:
            for feed in self.feeds.values():
                feed.close()
            self._web.stop()
            await self._serving

    async def _sample(self) -> None:
        while True:
            await self.history.sample(self.reader.rows())
            await asyncio.sleep(INTERVAL)

    async def _follow_configuration(self) -> None:
        while True:
            await self.documents.run(self.reader.configuration)
            await asyncio.sleep(CONFIGURATION_INTERVAL)


def main(argv: Sequence[str]) -> int:
    """`pointsman console`."""
    return run(ConsoleSettings, ConsoleService, argv, "console")
