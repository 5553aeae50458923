"""Endpoint events: `endpoint-notification-source`, its extractors' interface, and their dispatcher.

They run where the set of endpoints is seen: in each collector for its share, in each picker for all. What an extractor
finds out goes into the endpoint's attributes: from a collector to all pickers, in a picker into its own columns. An
attribute that follows from the endpoint itself has the sample time `ALWAYS`.

After each event, every declared attribute is present or denied, so that readers forget old values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

from shared.attributes import ALWAYS, AttributeKey, AttributeMap, Sample
from shared.datalayer.events import Change, EventCounts
from shared.datalayer.wiring import SourceExtractors
from shared.model import Endpoint
from shared.plugin import Plugin, Role, Tier

ENDPOINT_EVENTS = "endpoint events"
NOTIFIED_AT_ONCE = 100
"""Endpoints of a reset that extractors get before other work has its turn: less than a millisecond."""


class EndpointEvent(Struct, frozen=True):
    """An endpoint came, changed (its labels, its address, anything) or went."""

    change: Change
    endpoint: Endpoint
    """As it is now; one that went, as it was last."""
    previous: Endpoint | None = None
    """Of one that changed: as it was before."""


class EndpointNotificationSource(Plugin):
    """Notifies of endpoints that are added, change and are removed. They are the tier's own view: it does no I/O."""

    TYPE: ClassVar[str] = "endpoint-notification-source"
    ROLES: ClassVar[frozenset[Role]] = frozenset({Role.DATA_SOURCE})
    TIERS: ClassVar[frozenset[Tier]] = frozenset({Tier.COLLECTOR, Tier.PICKER})
    OUTPUT: ClassVar[str] = ENDPOINT_EVENTS


class EndpointExtractor(Plugin):
    """Receives events about endpoints. `TIER` or `TIERS` of the type say where it runs."""

    ROLES: ClassVar[frozenset[Role]] = frozenset({Role.EXTRACTOR})
    INPUT: ClassVar[str] = ENDPOINT_EVENTS
    DEFAULT_SOURCE: ClassVar[str] = EndpointNotificationSource.TYPE

    def on_endpoint(self, event: EndpointEvent, attributes: AttributeMap) -> None:
        """Handle the event: put attributes that follow from it, or drop those that no longer do.

        At `deleted`, forget the endpoint; its attributes go by themselves. If this raises, also because `put` refuses a
        value, its declared attributes become absent. Undeclared attributes are removed.
        """
        raise NotImplementedError


EndpointExtractors: TypeAlias = SourceExtractors[EndpointNotificationSource, EndpointExtractor]


def notify_first(pending: Iterator[object]) -> bool:
    """Tell extractors of the first endpoints of a reset, `NOTIFIED_AT_ONCE` at most; whether there may be more."""
    return len(list(islice(pending, NOTIFIED_AT_ONCE))) == NOTIFIED_AT_ONCE


class EndpointDispatcher:
    """Sends events about a set of endpoints to the extractors of one configuration; the next one's get all endpoints
    again. `attributes` gives an endpoint's attributes by id, possibly empty ones after its end."""

    def __init__(
        self, feeds: Sequence[EndpointExtractors], attributes: Callable[[str], AttributeMap], event_counts: EventCounts
    ) -> None:
        self._feeds = tuple(feeds)
        self._attributes = attributes
        self._event_counts = event_counts
        self._known: dict[str, Endpoint] = {}
        self._pending: dict[str, Endpoint | None] = {}
        """The part of a reset that extractors haven't got yet, the last one first; None for what is gone."""
        self._keys: dict[str, tuple[AttributeKey[Any], ...]] = {}
        event_counts.follow(EndpointDispatcher, self._feeds)
        for feed in self._feeds:
            for extractor in feed.extractors:
                self._keys[extractor.name] = extractor.produces(extractor.name, extractor.parameters)

    def reset(self, endpoints: Mapping[str, Endpoint]) -> Iterator[str]:
        """These are all endpoints, by id. Extractors get one when its id is taken from what this returns:
        telling them of all takes long."""
        self._pending.clear()
        if self._feeds:
            news = {id: endpoint for id, endpoint in endpoints.items() if self._known.get(id) != endpoint}
            gone = {id: None for id in self._known if id not in endpoints}
            self._pending |= reversed((gone | news).items())
        return self._notify_pending()

    def upsert(self, endpoint: Endpoint) -> bool:
        """An endpoint is there like this; whether that is news."""
        if not self._feeds:
            return False
        self._pending.pop(endpoint.id, None)
        previous = self._known.get(endpoint.id)
        if previous == endpoint:
            return False
        self._known[endpoint.id] = endpoint
        self._notify(EndpointEvent(Change.ADDED if previous is None else Change.UPDATED, endpoint, previous))
        return True

    def delete(self, id: str) -> None:
        """An endpoint is gone, whether it was known or not."""
        self._pending.pop(id, None)
        endpoint = self._known.pop(id, None)
        if endpoint is not None:
            self._notify(EndpointEvent(Change.DELETED, endpoint))

    def close(self) -> None:
        """Take back what the extractors made: they run no more."""
        self._pending.clear()
        for id in self._known:
            attributes = self._attributes(id)
            for keys in self._keys.values():
                for key in keys:
                    if attributes.get(key) is not None:
                        attributes.deny(key, ALWAYS)
        self._known.clear()

    def describe(self) -> list[dict[str, object]]:
        """For the debug pages."""
        return [feed.describe() for feed in self._feeds]

    def _notify_pending(self) -> Iterator[str]:
        while self._pending:
            id, endpoint = self._pending.popitem()
            if endpoint is None:
                self.delete(id)
            else:
                self.upsert(endpoint)
            yield id

    def _notify(self, event: EndpointEvent) -> None:
        attributes = self._attributes(event.endpoint.id)
        for feed in self._feeds:
            self._event_counts.sent(feed.source.name, event.change)
            for extractor in feed.extractors:
                before = dict(attributes.items())
                keys = self._keys[extractor.name]
                try:
                    extractor.on_endpoint(event, attributes)
                except Exception as error:  # noqa: BLE001 - a plugin's failure is counted, and no other plugin's
                    self._event_counts.failures.record(extractor.name, error, endpoint=event.endpoint.id)
                    for key in keys:
                        attributes.deny(key, ALWAYS)
                for key, (value, bounds) in attributes.take_refused().items():
                    reason = f"{key} is {value:g}; {bounds} is expected"
                    self._event_counts.failures.record(extractor.name, reason, endpoint=event.endpoint.id)
                    attributes.deny(key, ALWAYS)
                for reason in _settle(attributes, before, keys):
                    self._event_counts.failures.record(extractor.name, reason, endpoint=event.endpoint.id)

    def __repr__(self) -> str:
        extractors = ", ".join(extractor.name for feed in self._feeds for extractor in feed.extractors)
        return f"<EndpointDispatcher {len(self._known)} endpoints to {extractors or 'nobody'}>"


def _settle(
    attributes: AttributeMap, before: Mapping[AttributeKey[Any], Sample], keys: Sequence[AttributeKey[Any]]
) -> list[str]:
    """After an extractor: remove attributes it doesn't declare, deny missing ones. Returns the reasons of removals."""
    reasons: list[str] = []
    for key, sample in list(attributes.items()):
        former = before.get(key)
        if sample is former:
            continue
        if key not in keys:
            reasons.append(f"{key} isn't among what it declares to produce")
            attributes.drop(key)
            if former is not None:
                attributes.put(key, former.value, former.at)
    for key in keys:
        if attributes.get(key) is None:
            attributes.deny(key, ALWAYS)
    return reasons
