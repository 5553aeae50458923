"""Object events: Kubernetes objects of any kind, their extractors' interface, and their dispatcher.

They run in the watcher. An extractor keeps what it needs of the objects, and is asked for an endpoint's attributes
whenever objects or the endpoint changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

from shared.attributes import AttributeKey
from shared.datalayer.events import Change, EventCounts
from shared.datalayer.wiring import SourceExtractors
from shared.model import Endpoint
from shared.plugin import Plugin, Role, Tier

KUBERNETES_OBJECTS = "Kubernetes objects"


class ObjectKind(Struct, frozen=True, order=True):
    """Group, version and kind: what Kubernetes calls a GVK. The core API's group is empty."""

    group: str
    version: str
    kind: str

    @classmethod
    def of(cls, api_version: str, kind: str) -> "ObjectKind":
        """The kind that an object's `apiVersion` and `kind` name."""
        group, slash, version = api_version.rpartition("/")
        return cls(group if slash else "", version, kind)

    @property
    def api_version(self) -> str:
        """As objects have it: `apps/v1`, `v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.api_version} {self.kind}"


Parts: TypeAlias = frozenset[str] | None
"""Fields at the top of an object, such as `metadata`, `spec` and `status`; None: all of them."""
NODE = ObjectKind("", "v1", "Node")


class KubernetesObject(Struct, frozen=True):
    """An object as its source has it."""

    kind: ObjectKind
    name: str
    content: dict[str, Any]
    """All of it: `metadata`, `spec`, `status`; or what its extractors read. Read-only by agreement."""
    namespace: str = ""
    """Empty for kinds without namespaces, such as Node."""

    @property
    def key(self) -> tuple[ObjectKind, str, str]:
        """Its identity: kind, namespace and name."""
        return self.kind, self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.kind} {f'{self.namespace}/' if self.namespace else ''}{self.name}"


class NotificationEvent(Struct, frozen=True):
    """An object came, changed or went."""

    change: Change
    object: KubernetesObject
    """As it is now; one that went, as it was last."""
    previous: KubernetesObject | None = None
    """Of one that changed: as it was before."""


class NotificationSource(Plugin):
    """Names a kind of objects that its extractors subscribe to."""

    ROLES: ClassVar[frozenset[Role]] = frozenset({Role.DATA_SOURCE})
    TIER: ClassVar[Tier] = Tier.WATCHER
    OUTPUT: ClassVar[str] = KUBERNETES_OBJECTS

    @property
    def kind(self) -> ObjectKind:
        """The kind; extractors get all objects of it."""
        raise NotImplementedError


class NotificationExtractor(Plugin):
    """Receives events about objects and derives attributes of endpoints from them. `produces` declares these
    attributes."""

    ROLES: ClassVar[frozenset[Role]] = frozenset({Role.EXTRACTOR})
    TIER: ClassVar[Tier] = Tier.WATCHER
    INPUT: ClassVar[str] = KUBERNETES_OBJECTS
    READS: ClassVar[Parts] = None
    """Parts of an object that it reads. If all extractors of a kind declare them, other parts are left out and their
    changes are no events; if only `metadata` is read, the API server is asked for nothing else. Objects of files are
    complete."""

    def on_object(self, event: NotificationEvent) -> bool:
        """Handle the event; returns whether `attributes` may differ for any endpoint. Return False for objects that
        Kubernetes repeats every few seconds with only a new time."""
        raise NotImplementedError

    def attributes(self, endpoint: Endpoint) -> Mapping[AttributeKey[Any], Any]:
        """What is known of the endpoint now. A declared attribute that isn't among it is known to be absent."""
        return {}

    def describe(self) -> dict[str, Any]:
        """What it has learnt, for the debug pages."""
        return {}


ObjectExtractors: TypeAlias = SourceExtractors[NotificationSource, NotificationExtractor]


class ObjectDispatcher:
    """Tells extractors what happens to objects. One configuration's, as `EndpointDispatcher` is."""

    def __init__(self, feeds: Sequence[ObjectExtractors], event_counts: EventCounts) -> None:
        self.feeds = tuple(feeds)
        self._event_counts = event_counts
        self._known: dict[tuple[ObjectKind, str, str], KubernetesObject] = {}

    @property
    def kinds(self) -> frozenset[ObjectKind]:
        """The subscribed kinds."""
        return frozenset(feed.source.kind for feed in self.feeds)

    @property
    def parts(self) -> dict[ObjectKind, Parts]:
        """The subscribed kinds, each with what is read of its objects."""
        found: dict[ObjectKind, Parts] = {}
        for feed in self.feeds:
            for extractor in feed.extractors:
                before, read = found.get(feed.source.kind, frozenset()), extractor.READS
                found[feed.source.kind] = None if before is None or read is None else before | read
        return {kind: found.get(kind) for kind in self.kinds}

    @property
    def extractors(self) -> tuple[NotificationExtractor, ...]:
        """All of them, each once."""
        return tuple({extractor.name: extractor for feed in self.feeds for extractor in feed.extractors}.values())

    def reset(self, objects: Iterable[KubernetesObject]) -> bool:
        """These are all objects; others are deleted. Returns whether any extractor's attributes may differ."""
        wanted = self.kinds
        now = {found.key: found for found in objects if found.kind in wanted}
        changed = False
        for key in [key for key in self._known if key not in now]:
            changed |= self._notify(NotificationEvent(Change.DELETED, self._known.pop(key)))
        for key, found in now.items():
            previous = self._known.get(key)
            if previous is found or previous == found:
                continue
            self._known[key] = found
            changed |= self._notify(
                NotificationEvent(Change.ADDED if previous is None else Change.UPDATED, found, previous)
            )
        return changed

    def describe(self) -> list[dict[str, object]]:
        """For the debug pages: sources with their kinds, extractors, and how many objects there are."""
        return [
            {
                **feed.describe(),
                "kind": str(feed.source.kind),
                "objects": sum(known.kind == feed.source.kind for known in self._known.values()),
            }
            for feed in self.feeds
        ]

    def _notify(self, event: NotificationEvent) -> bool:
        changed = False
        for feed in self.feeds:
            if feed.source.kind != event.object.kind:
                continue
            self._event_counts.sent(feed.source.name, event.change)
            for extractor in feed.extractors:
                try:
                    changed |= extractor.on_object(event)
                except Exception as error:  # noqa: BLE001 - a plugin's failure is counted, and no other plugin's
                    self._event_counts.failures.record(extractor.name, error, object=str(event.object))
                    changed = True
        return changed

    def __repr__(self) -> str:
        return (
            f"<ObjectDispatcher {len(self._known)} objects of {', '.join(sorted(map(str, self.kinds))) or 'no kind'}>"
        )
