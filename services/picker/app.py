"""The picker process: updates the view from the bus, runs the gRPC servers, drains."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import structlog
from fastapi import APIRouter
from prometheus_client import Gauge

from services.picker.admin.decisions import DecisionRing, ring_routes
from services.picker.admin.flow_metrics import FlowMetrics
from services.picker.admin.metrics import PickerMetrics, PluginTimings
from services.picker.alarm import Alarm
from services.picker.bus.load_publisher import LoadPublisher
from services.picker.bus.prefix_sharing import PrefixSharing
from services.picker.bus.view_updates import ViewUpdates
from services.picker.flow_control.admission import FlowAdmission
from services.picker.garbage import GarbageCollection, search_young_only
from services.picker.pipeline import Pipeline, build
from services.picker.reports import explain
from services.picker.reports.convergence import Convergence
from services.picker.reports.replay_responder import DocumentRules, ReplayResponder
from services.picker.reports.reports import Parts, picker_status, state
from services.picker.reports.view import view
from services.picker.request_handler import RequestHandler, request_limits
from services.picker.settings.picker import PickerSettings
from services.picker.state.proxy_failure_mode import ProxyFailureMode
from services.picker.state.vanished import VanishedAttributes
from services.picker.state.view import View
from services.picker.tracing.stream_factory import stream_factory
from services.picker.transport.certificate import certificates_of
from services.picker.transport.ext_proc import METHOD, ExtProc
from services.picker.transport.grpc_server import GrpcServer, for_health, message_limit
from services.picker.transport.health import Health
from services.picker.workers.supervisor import Supervisor
from shared.attributes import bounds_of
from shared.bus.duplicate_id import DuplicateId
from shared.bus.frame_reader import FrameReader
from shared.bus.query_messages import (
    DecisionQuery,
    DecisionsQuery,
    ExplainQuery,
    QueryArguments,
    ReplayQuery,
    ViewQuery,
)
from shared.bus.replica import Replica
from shared.bus.responder import Answering
from shared.config import load
from shared.datalayer.events import EventCounts
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
from shared.service.view import view_routes
from shared.tasks import exhaust

log = structlog.get_logger(__name__)

OUTDATED = 30.0
"""Seconds without news of Kubernetes or the watcher after which `/readyz` mentions it."""

NAMED = 20
"""Peers that a line of the log names."""
HANDING_BACK = 2.0
"""Seconds before the end of a drain at which requests that still wait are handed back, or refused."""
WAITING = 4
"""The share of --max-held-bodies that requests may take while they wait: with what is read of each body it is twice as
much. The rest is for others, which needn't wait."""
MAINTENANCE = 0.25
"""Seconds between two looks at what has expired."""
ENDING = 0.5
"""Seconds at the end of a drain in which cut-off streams release what they hold."""


class PickerService(Service):
    """One picker. All pickers of a pool are active and see the same view."""

    tier = "picker"

    def __init__(self, settings: PickerSettings, plugins: Registry | None = None) -> None:
        """Raises `Invalid` when the configuration file can't be used. `plugins` are the installed ones by default."""
        super().__init__(settings)
        self._settings = settings
        self._plugins = Registry.installed() if plugins is None else plugins
        self._random = np.random.default_rng(settings.seed)
        self.out_of_range = OutOfRange(time.monotonic)
        self.registry.register(self.out_of_range)
        self.view = View(settings.unhealthy_expiry, self._on_out_of_range, settings.view_limits, settings.slow_start)
        self.ring = DecisionRing(settings.decisions_kept, settings.decision_layouts_kept)
        self.metrics = PickerMetrics(
            self.registry,
            self.view,
            models=settings.metrics_models,
            former_names=settings.legacy_metric_names,
            observe_responses=settings.observe_responses,
        )
        chance = random.Random(settings.seed).random
        path = settings.config_file
        first = read_text(path, "--config-file", settings.max_file_size) if path else ""
        self.config = Reloader(self._read, self._apply_config, running=first, origin=path, limit=settings.max_file_size)
        made = self._read(first, path)
        self.registry.register(ReloadMetrics("pointsman_picker_config_loads", self.config))
        flow_metrics = FlowMetrics(self.registry, self.view, former_names=settings.legacy_metric_names)
        self.flow = flow_metrics.flow = FlowAdmission(
            self.view,
            id=self.id,
            clock=time.monotonic,
            random=self._random,
            wake=lambda at: self._alarm.set(at),
            failed=self._plugin_failed,
            on_outcome=flow_metrics.ended,
            max_bytes=max(settings.max_held_bodies // WAITING, settings.max_request_body),
        )
        self._alarm = Alarm(self.flow.run, time.monotonic)
        self.handler = RequestHandler(
            self.view,
            made[0],
            self.ring,
            self.metrics,
            limits=request_limits(settings),
            make_id=lambda: str(uuid.uuid4()),
            clock=time.monotonic,
            observe=lambda: chance() < settings.observe_responses,
            max_observed=settings.max_observed_responses,
            log_decisions=settings.log_decisions,
            flow=self.flow,
            max_message_timeout=settings.max_message_timeout,
        )
        held = Gauge(
            "pointsman_picker_held_body_bytes",
            "Bytes of request bodies until they are answered, of response bodies held for their next piece, of parts "
            "of HTTP/2 frames, and of answers that proxies leave unread",
            registry=self.registry,
        )
        held.set_function(lambda: self.handler.budget.used)
        self.bus, self._subjects, self._pool = make_bus(settings, self.tier, self.id)
        self.duplicate_id = DuplicateId(self.tier, self.id)
        event_counts = EventCounts(self.plugin_failures)
        self.registry.register(event_counts)
        self._updates = ViewUpdates(
            self.id,
            self.bus,
            self._subjects,
            self.view,
            self.flow,
            event_counts,
            self.duplicate_id,
            on_config=self._on_config,
            on_leave=self._peer_left,
            run_in_background=self._run_in_background,
        )
        self.replica = Replica(self.bus, self._subjects, self._pool, self._updates.on_event)
        self.frames = FrameReader(self.bus, self._subjects, self._pool, self._updates.on_frame)
        self.registry.register(BusMetrics(self.bus, self.replica, self.duplicate_id))
        self._load = LoadPublisher(
            self.bus,
            self._subjects.load(self._pool, self.id),
            self.id,
            self.view.in_flight,
            self.flow,
            interval=settings.load_interval,
            heartbeat=settings.load_heartbeat,
        )
        self.prefixes = PrefixSharing(
            self.bus,
            self._subjects,
            self._pool,
            self.id,
            self.view,
            settings.sharing,
            lambda: self.replica.synced,
            on_own_id=lambda: self.duplicate_id.observe(time.monotonic()),
        )
        self.prefixes.register(self.registry, self.readiness)
        self.view.in_flight.on_charge = self._placed
        self._parts = Parts(
            replica=self.replica,
            frames=self.frames,
            view=self.view,
            handler=self.handler,
            ring=self.ring,
            flow=self.flow,
            load=self._load,
            prefixes=self.prefixes,
        )
        self.convergence = Convergence(self._parts)
        self.registry.register(self.convergence)
        rules = DocumentRules(settings.allow_experimental_plugins, settings.config_bounds)
        answering: dict[type[QueryArguments], Answering] = {
            DecisionsQuery: partial(explain.decisions, self._parts),
            DecisionQuery: partial(explain.decision, self._parts),
            ExplainQuery: partial(explain.explain, self._parts),
            ReplayQuery: ReplayResponder(self.handler, rules).answer,
            ViewQuery: partial(view, self._parts, self._pool, self.id),
        }
        self.responder = make_responder(self, self.bus, self._subjects, [self._pool], self.status, answering)
        self._apply_config(made)
        self.readiness.require("view", self.replica.readiness)
        self.readiness.mention("source", self._outdated)
        self.readiness.mention("endpoints", self.view.health.note)
        self.readiness.mention("models", lambda: self.view.rewrites.note())
        self.readiness.require("configuration", self.config.pending)
        self.readiness.mention("priorities", self.flow.note)
        self.readiness.mention("configuration", lambda: self.config.problem or None)
        self._missing_attributes = VanishedAttributes()
        self.readiness.mention("metrics", self._missing_attributes.problem)
        self._proxy = ProxyFailureMode(self.view, time.monotonic, named_models_only=settings.require_named_models)
        self.readiness.mention("proxy", self._proxy.problem)
        self.readiness.mention("load", lambda: self._load.problem or None)
        self.readiness.mention("attributes", self.out_of_range.note)
        self.readiness.mention("lists", self.view.columns.note)
        self.readiness.mention("bus", self.bus.malformed.note)
        self.readiness.mention("id", lambda: self.duplicate_id.problem(time.monotonic()))
        self._streams = stream_factory(self.handler, self.id, tracing=settings.tracing)
        self.ext_proc = ExtProc(
            self._streams.open,
            max_streams=settings.max_streams,
            memory=self.handler.budget,
            registry=self.registry,
            not_ready=lambda: self.replica.readiness() or self.config.pending(),
            on_metadata=self._proxy.observe,
        )
        self.health = Health(lambda: self.readiness.ready)
        self._certificates = certificates_of(settings) if settings.secure_serving else None
        own = (self._certificates.expirations,) if self._certificates is not None else ()
        self.registry.register(CertificateMetrics(self.bus.expirations, *own))
        options = settings.http2_options(message_limit(settings.max_request_body))
        self.grpc = GrpcServer(
            {METHOD: self.ext_proc.begin, **self.health.methods},
            host=settings.grpc_host,
            port=settings.grpc_port if self.listens or settings.transport == "grpcio" else None,
            flag="--grpc-port",
            transport=settings.transport,
            options=options,
            certificates=self._certificates,
            memory=self.handler.budget,
            reuse_port=not self.listens,
        )
        self.max_connections = options.max_connections + for_health(options).max_connections
        self.health_server = GrpcServer(
            self.health.methods,
            host=settings.grpc_host,
            port=settings.grpc_health_port if self.listens else None,
            flag="--grpc-health-port",
            options=for_health(options),
            memory=self.handler.budget,
        )

    async def start(self) -> None:
        self.config.log_in_use()
        await self.grpc.start()
        await self.health_server.start()
        self.spawn(self.grpc.run(), "gRPC server")
        await self.bus.subscribe(self._subjects.loads(self._pool), self._updates.on_load)
        await self.prefixes.start()
        await self.replica.start()
        await self.frames.start()
        await self.responder.start()
        await self.bus.start()
        self.spawn(self._load.run(), "load")
        for task, name in self.prefixes.tasks():
            self.spawn(task, name)
        self.spawn(self._maintain(), "maintenance")
        self.spawn(self.health.run(), "health")
        self.spawn(self.config.run(), "configuration")
        if path := self._settings.config_file:
            self.spawn(self.config.follow(path, "--config-file"), "configuration file")
        if self._certificates is not None and self._settings.cert_path and self._settings.enable_cert_reload:
            settings = self._settings
            follow = self._certificates.follow(settings.cert_path, settings.client_ca_file, settings.max_file_size)
            self.spawn(follow, "certificates")

    async def drain(self) -> None:
        """NOT_SERVING at once, time for the proxies to see it, then GOAWAY and the end of the open streams."""
        end = time.monotonic() + self._settings.drain_timeout
        self.health.drain()
        await asyncio.sleep(self._settings.drain_delay)
        rest = max(end - time.monotonic(), 0.0)
        grace = rest - min(ENDING, rest / 2)
        stopping = asyncio.ensure_future(self.grpc.stop(grace))
        await asyncio.wait((stopping,), timeout=grace - min(HANDING_BACK, grace / 2))
        waiting = True
        while waiting:
            waiting = self.flow.stop()
            await asyncio.sleep(0)
        await stopping

    async def close(self) -> None:
        await self.grpc.stop(0.0)
        self._alarm.cancel()
        await self._load.publish(leaving=True)
        await self.health_server.stop(0.0)
        await self.replica.close()
        await self.frames.close()
        await self.responder.close()
        await self.bus.close()
        await self._streams.close()

    def _outdated(self) -> str | None:
        """A note if the source of the endpoints hasn't confirmed them for long."""
        age = self.replica.unconfirmed()
        if not self.replica.synced or age < OUTDATED:
            return None
        return f"the endpoints were last confirmed {age:.0f} s ago"

    def state(self) -> Mapping[str, Any]:
        return {
            "pool": self._pool,
            "grpc_port": self.grpc.port,
            "grpc_health_port": self.health_server.port,
            "bus": {"connected": self.bus.connected, "problem": self.bus.readiness()},
            **state(self._parts, self.metrics.requests.picks, time.monotonic()),
            "config": {**self.handler.pipeline.state(), "problem": self.config.problem or None},
        }

    def status(self) -> MemberStatus:
        """The answer to `StatusQuery`."""
        return status_of(
            self,
            self.bus,
            [self._pool],
            self.replica,
            configuration_problem=self.config.problem,
            configuration_warnings=tuple(map(str, self.handler.pipeline.config.warnings)),
            sees={self.tier: tuple(sorted(self.view.in_flight.peers()))},
            convergence=self.convergence.repairs(time.monotonic()),
            picker=picker_status(self._parts, time.monotonic()),
        )

    def configurations(self) -> Sequence[Configured]:
        return (self.config.in_use(f"{self._settings.pool_namespace}/{self._settings.pool_name}"),)

    def routes(self) -> APIRouter:
        router = ring_routes(self.ring)
        router.include_router(view_routes(partial(view, self._parts, self._pool, self.id)))
        return router

    # Configuration

    def _read(self, text: str, origin: str) -> tuple[Pipeline, PluginTimings]:
        """What a configuration comes to, and the timings of its plugins; no text is the default's. Runs in a thread.
        Raises `Invalid`, or whatever its plugins raise."""
        settings = self._settings
        experimental, bounds = settings.allow_experimental_plugins, settings.config_bounds
        config = load(text, self._plugins, origin, allow_experimental=experimental, bounds=bounds)
        timings = PluginTimings(self.metrics.plugins)
        pipeline = build(
            config,
            self._random,
            time.time,
            timings.observe,
            honour_subset=not settings.disable_endpoint_subset_filter,
            named_models_only=settings.require_named_models,
            emit_scores=settings.emit_endpoint_scores,
            failed=self._plugin_failed,
        )
        return pipeline, timings

    def _plugin_failed(self, plugin: str, error: Exception, request: str) -> None:
        self.plugin_failures.record(plugin, error, request_id=request)

    def _on_config(self, text: str, origin: str) -> None:
        """A configuration from the bus, empty when there is none there."""
        if not self._settings.config_file:
            self.config.offer(text, origin)

    def _apply_config(self, made: tuple[Pipeline, PluginTimings]) -> None:
        """Replace the configuration."""
        pipeline, timings = made
        for warning in pipeline.config.warnings:
            log.warning("config.warning", origin=pipeline.config.origin, problem=str(warning))
        self.flow.configure(pipeline.flow_control, pipeline.director.detector, pipeline.config.stale_metrics)
        self.prefixes.use(pipeline)
        self._updates.feed(pipeline.endpoint_feeds)
        self.plugin_failures.follow(self.tier, pipeline.config.names(Tier.PICKER))
        self.metrics.plugins = timings
        self.handler.pipeline = pipeline

    # Callbacks

    def _on_out_of_range(self, sender: str, attribute: str, endpoint: str, value: float, count: int) -> None:
        self.out_of_range.record(attribute, value, bounds_of(attribute), count, endpoint=endpoint, sender=sender)

    def _run_in_background(self, work: Iterable[object]) -> None:
        self.spawn(exhaust(work), "endpoint events", essential=False)

    def _peer_left(self, peer: str) -> None:
        self.prefixes.peer_left(peer)

    def _placed(self) -> None:
        """Peers are to learn of it at once."""
        self._load.pace.wake()
        self.prefixes.pace.wake()

    async def _maintain(self) -> None:
        garbage = GarbageCollection(lambda: self.handler.open, time.monotonic())
        parts: tuple[Callable[[], object], ...] = (
            self._expire_peers,
            self.view.prefixes.sweep,
            lambda: self.convergence.compare_if_due(time.monotonic()),
            self._check_endpoints,
            self.metrics.forget_endpoints,
            self.flow.maintain,
            lambda: garbage.collect_if_due(time.monotonic()),
        )
        while True:
            await asyncio.sleep(MAINTENANCE)
            await exhaust(part() for part in parts)

    def _expire_peers(self) -> None:
        if gone := self.view.in_flight.expire(time.monotonic()):
            log.info("peers.expired", count=len(gone), peers=gone[:NAMED])

    def _check_endpoints(self) -> None:
        layout, pipeline = self.view.layout, self.handler.pipeline  # changed endpoints first
        stale_after = pipeline.config.stale_metrics.after
        self._missing_attributes.check(layout, self.view.columns, pipeline.reads, time.monotonic(), stale_after)
        self.view.health.refresh(time.monotonic())


def main(argv: Sequence[str]) -> int:
    """`pointsman picker`."""
    search_young_only()
    return run(PickerSettings, service, argv, "picker")


def service(settings: PickerSettings) -> Service:
    """The picker, or the supervisor of several."""
    return PickerService(settings) if settings.workers == 1 else Supervisor(settings)
