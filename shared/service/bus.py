"""The connection to NATS that a process's settings describe, and what its metrics tell of it."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import structs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.bus.codec import MalformedLog
from shared.bus.connection import Bus
from shared.bus.duplicate_id import DuplicateId
from shared.bus.errors import BusOptionError
from shared.bus.publishable import MAX_POOL
from shared.bus.replica import Replica
from shared.bus.subjects import Subjects, pool_token
from shared.config.problems import Invalid, Problem
from shared.service.bus_options import login, named
from shared.service.flags import flag_of
from shared.service.settings import CommonSettings, join_sources


def make_bus(settings: CommonSettings, tier: str, process_id: str) -> tuple[Bus, Subjects, str]:
    """(the bus, not yet started; the names of the installation; the pool's token).

    Raises `Invalid` for settings that can't be used together.
    """
    try:
        bus = Bus(
            settings.nats_url,
            name=f"pointsman-{tier}-{process_id}",
            **login(structs.asdict(settings)),
            tls_ca=Path(settings.nats_ca) if settings.nats_ca else None,
            limits=settings.bus_limits,
        )
        pool = pool_token(settings.pool_namespace, settings.pool_name)
        if len(pool) > MAX_POOL:
            reason = f"take {len(pool)} bytes of a key on the bus; {MAX_POOL} are allowed"
            raise Invalid([Problem("--pool-namespace and --pool-name", reason)])
        return bus, Subjects(settings.nats_prefix), pool
    except BusOptionError as error:
        raise Invalid([Problem(join_sources(map(flag_of, named(error))), error.reason)]) from error


class BusMetrics(Collector):
    """Metrics of a process's connection, and of its copy of the facts where it keeps one. Read when scraped."""

    def __init__(
        self,
        bus: Bus,
        replica: Replica | None = None,
        malformed: MalformedLog | None = None,
        duplicate_id: DuplicateId | None = None,
    ) -> None:
        self._bus = bus
        self._replica = replica
        self._malformed = malformed
        self._namesake = duplicate_id

    def describe(self) -> list[Metric]:
        """The registry asks for names at registration; there is nothing to collect then."""
        return []

    def collect(self) -> Iterator[Metric]:
        bus = self._bus
        yield GaugeMetricFamily("pointsman_bus_connected", "1 while connected to NATS", bus.connected)
        yield CounterMetricFamily("pointsman_bus_connections", "Connections opened to NATS", bus.connections)
        yield CounterMetricFamily(
            "pointsman_bus_publishes_dropped", "Messages dropped because there was no connection", bus.dropped
        )
        yield CounterMetricFamily(
            "pointsman_bus_slow_consumer_errors",
            "How often messages were lost because they arrived too fast",
            bus.slow_consumers,
        )
        yield CounterMetricFamily(
            "pointsman_bus_handler_errors", "Messages that the process failed to handle", bus.handler_errors
        )
        if self._malformed is not None:
            yield CounterMetricFamily(
                "pointsman_bus_malformed_messages",
                "Messages skipped because they couldn't be decoded",
                self._malformed.total,
            )
            yield CounterMetricFamily(
                "pointsman_bus_implausible_messages",
                "Messages with an impossible time or epoch",
                self._malformed.implausible.total,
            )
        if self._namesake is not None:
            yield CounterMetricFamily(
                "pointsman_bus_namesake_messages",
                "Messages of another process of this tier with the same id",
                self._namesake.messages,
            )
        if self._replica is not None:
            yield from self._of_replica(self._replica)

    def _of_replica(self, replica: Replica) -> Iterator[Metric]:
        counters = replica.counters
        yield GaugeMetricFamily(
            "pointsman_view_synced", "1 once the process has had a complete set of the pool's facts", replica.synced
        )
        yield GaugeMetricFamily(
            "pointsman_view_age_seconds",
            "Time since the watcher last reported a complete set; infinite if it never did",
            replica.age(),
        )
        yield GaugeMetricFamily(
            "pointsman_view_source_age_seconds",
            "Time since the watcher's source, such as Kubernetes, last confirmed the set; infinite if it never did",
            replica.source_age(),
        )
        yield CounterMetricFamily("pointsman_view_resets", "Complete sets that replaced the view", counters.resets)
        yield CounterMetricFamily(
            "pointsman_view_gaps", "How often the view differed from what the watcher reported", counters.gaps
        )
