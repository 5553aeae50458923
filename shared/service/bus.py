"""The connection to NATS that a process's settings describe, and its metrics."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import structs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.bus.connection import Bus
from shared.bus.duplicate_id import DuplicateId
from shared.bus.errors import BusOptionError
from shared.bus.publishable import MAX_POOL
from shared.bus.replica import Replica
from shared.bus.subjects import Subjects, pool_token
from shared.config.problems import Invalid, Problem
from shared.service.bus_options import login, named
from shared.service.flags import flag_of
from shared.service.settings import BusSettings, join_sources


def make_bus(settings: BusSettings, tier: str, process_id: str) -> tuple[Bus, Subjects, str]:
    """(the bus, not yet started; the subjects; the pool's token). Raises `Invalid` for contradictory settings."""
    try:
        subjects = Subjects(settings.nats_prefix)
        bus = Bus(
            settings.nats_url,
            name=f"pointsman-{tier}-{process_id}",
            **login(structs.asdict(settings)),
            ca=Path(settings.nats_ca) if settings.nats_ca else None,
            inbox=subjects.inbox(tier),
            limits=settings,
        )
        pool = pool_token(settings.pool_namespace, settings.pool_name)
        if len(pool) > MAX_POOL:
            reason = f"take {len(pool)} bytes of a key on the bus; {MAX_POOL} are allowed"
            raise Invalid([Problem("--pool-namespace and --pool-name", reason)])
        return bus, subjects, pool
    except BusOptionError as error:
        raise Invalid([Problem(join_sources(map(flag_of, named(error))), error.reason)]) from error


class BusMetrics(Collector):
    """Metrics of a process's connection, and of its copy of the facts where it keeps one. Read when scraped."""

    def __init__(
        self,
        bus: Bus,
        replica: Replica | None = None,
        duplicate_id: DuplicateId | None = None,
    ) -> None:
        self._bus = bus
        self._replica = replica
        self._duplicate_id = duplicate_id

    def collect(self) -> Iterator[Metric]:
        bus = self._bus
        yield _gauge("bus_connected", "1 while connected to NATS", bus.connected)
        yield _counter("bus_connections", "Connections opened to NATS", bus.connections)
        yield _counter("bus_publishes_dropped", "Messages dropped because there was no connection", bus.dropped)
        text = "How often messages were lost because they arrived too fast"
        yield _counter("bus_slow_consumer_errors", text, bus.slow_consumers)
        yield _counter("bus_handler_errors", "Messages that the process failed to handle", bus.handler_errors)
        text = "Messages skipped because they couldn't be decoded"
        yield _counter("bus_malformed_messages", text, bus.malformed.total)
        text = "Messages with an impossible time or epoch"
        yield _counter("bus_implausible_messages", text, bus.malformed.implausible.total)
        text = "Messages dropped because two senders use one id"
        yield _counter("bus_conflicting_messages", text, bus.malformed.conflicting.total)
        text = "Messages and subscriptions that NATS refused because the login lacks the permission"
        yield _counter("bus_refused_messages", text, bus.malformed.refused.total)
        if self._duplicate_id is not None:
            text = "Messages of another process of this tier with the same id"
            yield _counter("bus_duplicate_id_messages", text, self._duplicate_id.messages)
        if self._replica is not None:
            yield from self._of_replica(self._replica)

    def _of_replica(self, replica: Replica) -> Iterator[Metric]:
        text = "1 once the process has had a complete set of the pool's facts"
        yield _gauge("view_synced", text, replica.synced)
        text = "Time since the watcher last reported a complete set; infinite if it never did"
        yield _gauge("view_age_seconds", text, replica.age())
        text = "Time since the watcher's source, such as Kubernetes, last confirmed the set; infinite if it never did"
        yield _gauge("view_source_age_seconds", text, replica.source_age())
        text = "Time for which the view has differed from what the watcher reports; 0 while it agrees"
        yield _gauge("view_differs_seconds", text, replica.differs_for())
        text = "How often another copy of the facts ended a difference"
        yield _counter("view_repairs", text, replica.counters.repairs)
        yield _counter("view_resets", "Complete sets that replaced the view", replica.counters.resets)
        text = "How often the view differed from what the watcher reported"
        yield _counter("view_gaps", text, replica.counters.gaps)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"pointsman_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"pointsman_{name}", text, value)
