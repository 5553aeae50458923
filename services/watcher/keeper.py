"""One pool: what its sources say, merged, with addresses, and what follows from it for others.

What is bound together here is pure elsewhere: events from the sources go through `State`, host names through `Names`,
objects through `Notifications`. What comes out is the pool's facts, Envoy's file, and frames of attributes.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import structlog

from services.watcher.eds_keeper import EdsKeeper
from services.watcher.lookup import Lookup, Resolver
from services.watcher.metrics import WatcherMetrics
from services.watcher.notifications.board import Described
from services.watcher.notifications.notifications import Notifications
from services.watcher.resolve import Names
from services.watcher.resources import PoolId
from services.watcher.sources import Event, Source, bounded
from services.watcher.state import Merged, State, collect
from services.watcher.unpublishable import Unpublishable
from shared.bus import FramePublisher
from shared.bus.frame_sender import FrameSender
from shared.bus.subjects import fact_key, named_key, pool_token
from shared.config.defaults import BUILT_IN, revision
from shared.datalayer.events import Tally
from shared.model import Endpoint, Fact
from shared.service.configured import Configured

log = structlog.get_logger(__name__)

GATHER = 0.005
"""Seconds that a changed attribute waits for others to join it in a frame."""
CONFIRM = 0.5
"""Seconds between two frames that say every attribute again."""
NAMED = 10
"""Endpoints that a log line names at most, or problems that a pool does."""


class PoolKeeper:
    """Begins with `accept` when the sources have said all; from then on `take` what they say."""

    def __init__(
        self,
        pool: PoolId,
        sources: Sequence[Source],
        *,
        preferred: str,
        lookup: Lookup,
        resolve_interval: float,
        frames: FramePublisher,
        leads: Callable[[], bool],
        eds: EdsKeeper | None,
        tally: Tally,
        metrics: WatcherMetrics,
        most: Callable[[], int],
        on_accepted: Callable[["PoolKeeper"], None],
        on_change: Callable[[], None],
    ) -> None:
        """`preferred` is the origin whose configuration goes before others', `most` gives the bytes of a fact at most.
        `on_accepted` hears of each set that holds from now on, `on_change` of facts that are to be published."""
        self.pool = pool
        self.token = pool_token(pool.namespace, pool.name)
        self.sources = tuple(sources)
        self.holding = State(preferred=preferred)
        self.notifications = Notifications(tally)
        self.names = Names(resolve_interval)
        self.resolver = Resolver(self.names, lookup, self.refresh, metrics)
        self.eds = eds
        self.frames = frames
        self.sender = FrameSender(frames, self._attributes, gather=GATHER, refresh=CONFIRM, heartbeat=CONFIRM)
        self.publishes = False
        """Whether what holds is ready to be published."""
        self.facts: Mapping[str, Fact] = {}
        """By key on the bus."""
        self.unknown: Collection[str] = ()
        """Keys on the bus of facts that stay there as they are: those that aren't known, and that a watcher before this
        one may have known, and those that can't be published."""
        self.unpublishable = Unpublishable(most)
        self.endpoints: tuple[Endpoint, ...] = ()
        """Those that have an address."""
        self._leads = leads
        self._metrics = metrics
        self._on_accepted = on_accepted
        self._on_change = on_change
        self._makes_attributes = asyncio.Event()
        self._frames_started = False
        self._asides: set[tuple[str, str, str]] = set()

    # What comes in

    def apply(self, events: Iterable[Event]) -> bool:
        """Merge events without telling anybody; whether another set holds."""
        return self.holding.apply(map(bounded, events), time.monotonic())

    def take(self, events: Sequence[Event]) -> None:
        """Events from a source: merge them, and pass on what changed."""
        before, problems = self.holding.merged or Merged(), self.holding.problems()
        unknown = self.holding.unknown()
        changed = self.apply(events)
        self._compare(problems, self.holding.problems())
        self.say_asides()
        if changed:
            self.accept(before)
        if changed or unknown != self.holding.unknown():
            self.refresh()

    def accept(self, before: Merged) -> None:
        """Another set holds."""
        merged = self.holding.merged
        assert merged is not None
        self._metrics.changes.inc()
        old, new = ({one.id: one for one in merged.endpoints} for merged in (before, merged))
        log.info(
            "facts.changed",
            pool=str(self.pool),
            endpoints=len(new),
            added=few(sorted(new.keys() - old.keys())),
            removed=few(sorted(old.keys() - new.keys())),
            changed=few(sorted(id for id in new.keys() & old.keys() if new[id] != old[id])),
            resources=len(merged.resources),
            objects=len(merged.objects),
            configuration=self.configured().origin,
            revision=self.configured().revision,
        )
        self.resolver.follow(merged.endpoints)
        self._on_accepted(self)
        self.want()
        self.notifications.tell(merged.objects)
        if self.notifications.makes:
            self._makes_attributes.set()

    def raise_problems(self) -> None:
        """Raises `Invalid` with all that is wrong with the origins, if anything is."""
        collect(self.holding.problems()).raise_if_any()

    def want(self) -> bool:
        """Have the sources report the objects that the configuration's extractors hear of; whether they have to report
        something again for it."""
        merged = self.holding.merged
        self.notifications.use(merged.loaded if merged else None)
        again = [source.want(self.notifications.kinds) for source in self.sources]
        return any(again)

    def say_asides(self) -> None:
        """Say, once, what is odd without being wrong, and what was left out."""
        asides = {("warning", origin, str(one)) for origin, found in self.holding.warnings().items() for one in found}
        asides |= {("debug", origin, one) for origin, found in self.holding.ignored().items() for one in found}
        for level, origin, text in sorted(asides - self._asides):
            if level == "warning":
                log.warning("facts.warning", origin=origin, problem=text)
            else:
                log.debug("facts.ignored", origin=origin, document=text)
        self._asides = asides

    def _compare(self, before: Mapping[str, list[Any]], after: Mapping[str, list[Any]]) -> None:
        """Say what became bad and what is good again."""
        for origin, problems in after.items():
            if problems != before.get(origin):
                self._metrics.rejections.inc()
                log.error("facts.rejected", origin=origin, kept="last good", problems=few(list(map(str, problems))))
        for origin in before.keys() - after.keys():
            log.info("facts.accepted", origin=origin)

    # What comes out

    def refresh(self) -> None:
        """Work out what holds now; write and publish it where it is another set."""
        merged = self.holding.merged
        assert merged is not None
        self.endpoints = self.names.apply(merged.endpoints)
        facts = {fact_key(self.token, one): one for one in merged.facts(self.endpoints, self.pool)}
        self.facts = self.unpublishable.without(facts)
        self.unknown = [
            *(named_key(self.token, kind, name) for kind, name in self.holding.unknown()),
            *self.unpublishable.reasons,
        ]
        if self.eds is not None:
            self.eds.update(self.endpoints)
        self._on_change()
        for id in self.notifications.follow(self.endpoints):
            self.sender.note(id, True)

    async def send_attributes(self) -> None:
        """While this watcher leads: send what extractors say of endpoints, if there is one that makes attributes."""
        await self._makes_attributes.wait()
        if not self._frames_started:
            self._frames_started = True
            await self.frames.start()
        await self.sender.run()

    def confirmed(self, now: float) -> float:
        """When all sources last knew that what they said still holds. Seconds of the monotonic clock."""
        return min(source.confirmed(now) for source in self.sources)

    def _attributes(self) -> Mapping[str, Described]:
        """What is to be sent: nothing without the lease, which may be lost before that is noticed."""
        return self.notifications.described(self.confirmed(time.monotonic())) if self._leads() else {}

    # What it says of itself

    def configured(self) -> Configured:
        """The configuration that the pool's collectors and pickers get."""
        merged = self.holding.merged or Merged()
        text, origin = (one.text, one.origin) if (one := merged.configuration) else ("", BUILT_IN)
        return Configured(str(self.pool), origin, revision(text))

    def last_good_age(self) -> float:
        """Seconds since what holds stopped being what the origins say; 0 while it is."""
        since = self.holding.since
        return 0.0 if since is None else time.monotonic() - since

    def state(self) -> dict[str, Any]:
        """For `/debug/state`."""
        merged = self.holding.merged or Merged()
        addresses = {one.id: one.authority for one in self.endpoints}
        return {
            "pool": str(self.pool),
            "files": self.holding.origins,
            "problems": {file: [str(one) for one in found] for file, found in self.holding.problems().items()},
            "last_good_age": round(self.last_good_age(), 3),
            "warnings": {file: [str(one) for one in found] for file, found in self.holding.warnings().items()},
            "ignored": self.holding.ignored(),
            "endpoints": [
                {
                    "id": one.id,
                    "address": addresses.get(one.id),
                    "host": one.host or None,
                    "node": one.node or None,
                    "labels": one.labels,
                    "attributes": self.notifications.of(one.id),
                }
                for one in merged.endpoints
            ],
            "resources": [f"{type(one).__name__} {one.name}" for one in merged.resources],
            "configuration": merged.configuration.origin if merged.configuration else None,
            "names": {
                host: {"addresses": name.addresses, "error": name.error or None, "failures": name.failures}
                for host, name in self.names.names.items()
            },
            "unpublishable": dict(self.unpublishable.reasons),
            "notifications": self.notifications.state(),
            "frames": {"sent": self.sender.frames, "dropped": self.sender.dropped},
            "eds": self.eds.state() if self.eds else None,
        }

    def amiss(self) -> str | None:
        """What is wrong with the origins, whose last good content holds."""
        return "; ".join(few([str(problem) for problem in collect(self.holding.problems()).errors])) or None

    def unpublished(self) -> str | None:
        """Which facts can't be published."""
        return "; ".join(few([f"{key}: {why}" for key, why in self.unpublishable.reasons.items()])) or None

    def __repr__(self) -> str:
        return f"<PoolKeeper {self.pool}: {self.holding!r}>"


def few(texts: Sequence[str]) -> list[str]:
    """The first of them, and how many more there are."""
    more = len(texts) - NAMED
    return [*texts[:NAMED], *([f"… and {more} more"] if more > 0 else [])]
