"""The collector process: it scrapes its share of the endpoints and publishes their attributes.

The endpoints and the configuration come from the bus. While NATS is down, the collector keeps both and continues to
scrape. It sends frames again when it is connected.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from fastapi import APIRouter

from services.collector.admin import endpoint_routes
from services.collector.assignment import assigned
from services.collector.engines.flags import flags_engine, with_flags
from services.collector.http.client import Client
from services.collector.metrics import CollectorMetrics
from services.collector.metrics_port import at_metrics_port
from services.collector.pipeline import Pipeline, build
from services.collector.scraper import EndpointScrape, Scraper
from services.collector.settings import CollectorSettings
from services.collector.status import collector_status
from shared.attributes import AttributeMap
from shared.bus.facts import Delete, Event, Reset, Upsert
from shared.bus.frame_publisher import FramePublisher
from shared.bus.frame_sender import FrameSender
from shared.bus.membership import Membership
from shared.bus.query_messages import ViewQuery
from shared.bus.replica import Replica
from shared.bus.responder import Document
from shared.bus.subjects import fact_key
from shared.config import Invalid, LoadedConfig, load
from shared.config.defaults import BUILT_IN
from shared.datalayer.endpoints import EndpointDispatcher, notify_first
from shared.datalayer.events import EventCounts
from shared.model import Configuration, Endpoint, Pool
from shared.out_of_range import OutOfRange
from shared.plugin import Registry, Tier
from shared.service.answers import make_responder, status_of
from shared.service.bus import BusMetrics, make_bus
from shared.service.certificates import CertificateMetrics
from shared.service.configured import Configured
from shared.service.process import Service, run
from shared.service.reload import Reloader, ReloadMetrics
from shared.service.settings import read_text
from shared.service.status import MemberStatus
from shared.service.view import one_endpoint, view_document, view_routes
from shared.tasks import exhaust

log = structlog.get_logger(__name__)

GATHER = 0.02
"""Seconds in which changes of endpoints and members are gathered."""


class CollectorService(Service):
    """One of the collectors that share the endpoints of a pool."""

    tier = "collector"

    def __init__(self, settings: CollectorSettings, plugins: Registry | None = None) -> None:
        """Raises `Invalid` for a bad configuration file. `plugins` are the installed ones by default."""
        super().__init__(settings)
        self._settings = settings
        self._plugins = Registry.installed() if plugins is None else plugins
        self._endpoints: dict[str, Endpoint] = {}
        """All endpoints of the pool by bus key."""
        self._resource: Pool | None = None
        self._reassigning: asyncio.TimerHandle | None = None
        self._stopping = False
        self._unconfigured = ""
        """Why there is no valid configuration yet."""
        self._warnings: tuple[str, ...] = ()
        """Of the configuration that was built last."""
        path = settings.config_file
        text = read_text(path, "--config-file", settings.max_file_size) if path else None
        first = self._first_pipeline() if text is None else self._read(text, path)
        self.config = Reloader(self._read, self._apply_config, running=text, origin=path, limit=settings.max_file_size)
        self.bus, subjects, self._pool = make_bus(settings, self.tier, self.id)
        self.replica = Replica(self.bus, subjects, self._pool, self._on_event)
        self.members = Membership(self.bus, subjects, self._pool, self.tier, self.id, lambda _: self._reassign_soon())
        self._publisher = FramePublisher(self.bus, subjects, self._pool, self.id)
        self.out_of_range = OutOfRange(time.monotonic)
        self._client = Client(settings.scrape_timeout, settings.page_limit, settings.header_limit)
        self.scraper = Scraper(
            self._client,
            self._on_scraped,
            lambda: self.sender.gathered(),  # made below
            self._notify_extractors,
            interval=settings.interval,
            backoff=settings.backoff_limit,
            failure_threshold=settings.failure_threshold,
            failures=self.plugin_failures,
            out_of_range=self.out_of_range,
        )
        self.sender = FrameSender(
            self._publisher,
            lambda: self.scraper.endpoints,
            linger=settings.frame_linger,
            refresh=settings.refresh_interval,
            heartbeat=settings.heartbeat,
        )
        self._event_counts = EventCounts(self.plugin_failures)
        self._endpoint_events = EndpointDispatcher((), self._attributes, self._event_counts)
        self.responder = make_responder(self, self.bus, subjects, [self._pool], self.status, {ViewQuery: self._view})
        self._use(*first)
        self.registry.register(self._event_counts)
        self.registry.register(self.out_of_range)
        self.registry.register(CollectorMetrics(self.scraper, self.sender))
        self.registry.register(ReloadMetrics("pointsman_collector_config_reloads", self.config))
        self.registry.register(BusMetrics(self.bus, self.replica, self.members.duplicate_id))
        self.registry.register(CertificateMetrics(self.bus.expirations))
        self.readiness.require("endpoints", self.replica.readiness)
        self.readiness.mention("configuration", lambda: self.config.problem or None)
        self.readiness.mention("id", self.members.duplicate_id_problem)
        self.readiness.mention("attributes", self.out_of_range.note)
        self.readiness.mention("bus", self.bus.malformed.note)
        self.readiness.require("configuration", lambda: self._unconfigured or self.config.pending())

    async def start(self) -> None:
        if not self._unconfigured:
            self.config.log_in_use()
        await self.replica.start()
        await self.members.start()
        await self.responder.start()
        await self.bus.start()
        self.spawn(self.sender.run(), "frames")
        self.spawn(self.config.run(), "configuration")
        if path := self._settings.config_file:
            self.spawn(self.config.follow(path, "--config-file"), "configuration file")

    async def drain(self) -> None:
        """Leave the membership first, so that the other collectors take over at once; then stop scraping."""
        self._stopping = True
        await self.members.close()
        await self.scraper.close()

    async def close(self) -> None:
        self._stopping = True
        await self.members.close()
        await self.scraper.close()
        await self._publisher.close()
        await self.responder.close()
        await self.replica.close()
        await self.bus.close()
        await self._client.close()

    def state(self) -> Mapping[str, Any]:
        age = self.replica.age()
        return {
            "pool": self._pool,
            "bus": {"connected": self.bus.connected, "problem": self.bus.readiness()},
            "view": {
                "synced": self.replica.synced,
                "age": round(age, 3) if age < 1e9 else None,
                "epoch": self.replica.epoch,
            },
            "members": list(self.members.ids),
            "endpoints": {"pool": len(self._endpoints), "assigned": list(self.scraper.endpoints)},
            "sources": [*self.scraper.pipeline.describe(), *self._endpoint_events.describe()],
            "config": {
                "origin": self._settings.config_file or "bus",
                "taken": self.config.accepted,
                "refused": self.config.refused,
                "problem": self.config.problem or None,
            },
            "frames": {
                "sent": self.sender.frames,
                "dropped": self.sender.dropped,
                "acknowledged": self._publisher.acknowledged,
                "unacknowledged": self._publisher.unacknowledged,
            },
        }

    def status(self) -> MemberStatus:
        """The answer to `StatusQuery`."""
        return status_of(
            self,
            self.bus,
            [self._pool],
            self.replica,
            configuration_problem=self._unconfigured or self.config.problem,
            configuration_warnings=self._warnings,
            sees={self.tier: tuple(id for id in self.members.ids if id != self.id)},
            collector=collector_status(len(self._endpoints), self.scraper, self.sender, self._publisher),
        )

    def configurations(self) -> Sequence[Configured]:
        pool = f"{self._settings.pool_namespace}/{self._settings.pool_name}"
        return () if self._unconfigured else (self.config.in_use(pool),)

    def routes(self) -> APIRouter:
        router = endpoint_routes(self.scraper)
        router.include_router(view_routes(self._view))
        return router

    def _view(self, query: ViewQuery) -> Document:
        """What this collector knows: the facts, and the attributes of its endpoints."""
        if query.endpoint:
            return one_endpoint(self.replica, query.endpoint, lambda endpoint: self.scraper.about(endpoint.id))
        return view_document(self.tier, self._pool, self.replica, {"attributes": self.scraper.values()})

    # Scrapes and frames

    def _on_scraped(self, scrape: EndpointScrape, changed: bool) -> None:
        self.sender.note(scrape.endpoint.id, changed)

    def _reassign_soon(self) -> None:
        """Reassign once for all events that arrive together: it looks at all endpoints."""
        if self._reassigning is None and not self._stopping:
            self._reassigning = asyncio.get_running_loop().call_later(GATHER, self._reassign)

    def _reassign(self) -> None:
        self._reassigning = None
        if self.config.pending():  # what is scraped depends on it
            self._reassign_soon()
        elif not self._stopping:
            by_id = {endpoint.id: endpoint for endpoint in self._endpoints.values()}
            scraped = at_metrics_port(by_id, self._resource, self._settings.model_server_metrics_port)
            self.scraper.assign(assigned(scraped, self.id, self.members.ids))
            self._notify_extractors()

    # Events of the bus

    def _on_event(self, event: Event) -> None:
        match event:
            case Reset(facts=facts):
                self._endpoints = {key: fact for key, fact in facts.items() if isinstance(fact, Endpoint)}
                self._resource = next((fact for fact in facts.values() if isinstance(fact, Pool)), None)
                config = facts.get(self._config_key)
                self._on_config(config if isinstance(config, Configuration) else None)
                self._reassign_soon()
            case Upsert(key=key, fact=Endpoint() as endpoint):
                self._endpoints[key] = endpoint
                self._reassign_soon()
            case Upsert(fact=Pool() as pool):
                self._resource = pool
                self._reassign_soon()
            case Upsert(fact=Configuration() as config):
                self._on_config(config)
            case Delete(key=key):
                if self._endpoints.pop(key, None) is not None:
                    self._reassign_soon()
                elif key == self._config_key:
                    self._on_config(None)
                elif self._resource is not None and key == fact_key(self._pool, self._resource):
                    self._resource = None
                    self._reassign_soon()

    @property
    def _config_key(self) -> str:
        return fact_key(self._pool, Configuration(text=""))

    # Configuration

    def _first_pipeline(self) -> tuple[Pipeline, LoadedConfig | None]:
        """The default configuration, until the bus brings another. Metric flags may be invalid with the default and
        valid with that one, so the collector starts, but isn't ready."""
        try:
            return self._read("", BUILT_IN)
        except Invalid as error:
            if flags_engine(self._settings) is None:
                raise
            log.warning("config.waiting", problems=error.lines())
            self._unconfigured = "; ".join(error.lines())
            return Pipeline(), None

    def _on_config(self, config: Configuration | None) -> None:
        """The bus has a configuration, or none."""
        if not self._settings.config_file:
            self.config.offer(*((config.text, config.origin) if config else ("", "")))

    def _apply_config(self, made: tuple[Pipeline, LoadedConfig | None]) -> None:
        """Use a configuration that was read."""
        self._use(*made)
        self._unconfigured = ""

    def _use(self, pipeline: Pipeline, config: LoadedConfig | None) -> None:
        """Replace the pipeline. Its endpoint extractors start with all endpoints of the share."""
        if config is not None:
            for warning in config.warnings:
                log.warning("config.warning", origin=config.origin, problem=str(warning))
            self._warnings = tuple(map(str, config.warnings))
            self.plugin_failures.follow(self.tier, config.names(Tier.COLLECTOR))
        self.scraper.use(pipeline)
        self._endpoint_events.close()
        self._endpoint_events = EndpointDispatcher(pipeline.endpoint_feeds, self._attributes, self._event_counts)
        self._notify_extractors()

    def _notify_extractors(self) -> None:
        """Send the endpoint extractors the endpoints of the share."""
        endpoints = {id: scrape.endpoint for id, scrape in self.scraper.endpoints.items()}
        pending = map(partial(self.sender.note, changed=True), self._endpoint_events.reset(endpoints))
        if notify_first(pending):
            self.spawn(exhaust(pending), "endpoint events", essential=False)

    def _attributes(self, id: str) -> AttributeMap:
        """The attributes of an endpoint; empty if it has left the share."""
        scrape = self.scraper.endpoints.get(id)
        return AttributeMap() if scrape is None else scrape.attributes

    def _read(self, text: str, origin: str) -> tuple[Pipeline, LoadedConfig]:
        """What a configuration comes to with the flags. Runs in a thread. Raises `Invalid`, or whatever the plugins
        raise."""
        settings = self._settings
        experimental, bounds = settings.allow_experimental_plugins, settings.config_bounds
        config = load(text, self._plugins, origin, allow_experimental=experimental, bounds=bounds)
        config = with_flags(config, self._settings)
        return build(config), config


def main(argv: Sequence[str]) -> int:
    """`pointsman collector`."""
    return run(CollectorSettings, CollectorService, argv, "collector")
