"""One configuration's notification sources: the objects that they read, and the attributes that follow from them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import structlog

from services.watcher.notifications.attribute_table import AttributeTable
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid
from shared.datalayer.events import EventCounts
from shared.datalayer.objects import (
    KubernetesObject,
    NotificationExtractor,
    NotificationSource,
    ObjectDispatcher,
    ObjectKind,
    Parts,
)
from shared.datalayer.wiring import feeds, plan
from shared.model import Endpoint
from shared.plugin import Tier
from shared.plugin_failures import reason_of

log = structlog.get_logger(__name__)


class Notifications:
    """Takes a configuration, objects and endpoints in any order, and keeps the attributes that follow from them."""

    def __init__(self, event_counts: EventCounts) -> None:
        self._event_counts = event_counts
        self._plan: tuple[object, ...] = ()
        self._dispatcher = ObjectDispatcher((), event_counts)
        self.table = AttributeTable((), event_counts)
        self._objects: tuple[KubernetesObject, ...] = ()
        self._stale = False
        """Whether extractors may say something else than the table."""

    @property
    def kinds(self) -> Mapping[ObjectKind, Parts]:
        """The kinds of objects that extractors read, each with the parts that they read."""
        return self._dispatcher.parts

    def use(self, config: LoadedConfig | None) -> None:
        """Use this configuration; None has no sources. Extractors that it changes start with all objects. If a plugin
        can't be made, nothing changes."""
        wanted = () if config is None else plan(config, NotificationSource)
        if wanted == self._plan:
            return
        try:
            found = (
                ()
                if config is None
                else feeds(config, config.instances(Tier.WATCHER), NotificationSource, NotificationExtractor)
            )
            _ = [feed.source.kind for feed in found]
        except Invalid as error:
            log.error("notifications.refused", problems=error.lines())
            return
        except Exception as error:
            log.error("notifications.refused", problems=[reason_of(error)], exc_info=error)
            return
        self._plan = wanted
        self._event_counts.follow(self, found)
        self._dispatcher = ObjectDispatcher(found, self._event_counts)
        self.table = AttributeTable(self._dispatcher.extractors, self._event_counts, self.table.keys)
        self._dispatcher.reset(self._objects)
        self._stale = True
        log.info("notifications.loaded", sources=self._dispatcher.describe())

    def set_objects(self, objects: Iterable[KubernetesObject]) -> None:
        """Set all objects."""
        self._objects = tuple(objects)
        self._stale |= self._dispatcher.reset(self._objects)

    def take_stale(self) -> bool:
        """Whether the attributes of all endpoints may have changed since the last call."""
        stale, self._stale = self._stale, False
        return stale and self.table.makes

    def set_endpoints(self, endpoints: Mapping[str, Endpoint], ids: Collection[str] | None = None) -> list[str]:
        """Set all endpoints, of which only `ids` may have changed (None: all). Returns the ids of those whose
        attributes have changed."""
        return self.table.update(endpoints, ids)

    def state(self) -> dict[str, Any]:
        """For `/debug/state`."""
        return {
            "sources": self._dispatcher.describe(),
            "extractors": {extractor.name: self._describe(extractor) for extractor in self._dispatcher.extractors},
            "failures": {name: count for name, count in self._event_counts.failures.counts().items() if count},
        }

    def _describe(self, extractor: NotificationExtractor) -> dict[str, Any]:
        try:
            return extractor.describe()
        except Exception as error:  # noqa: BLE001 - a plugin's failure is counted and doesn't affect the page
            self._event_counts.failures.record(extractor.name, error)
            return {"error": reason_of(error)}

    def __repr__(self) -> str:
        return f"<Notifications {self._dispatcher!r} {self.table!r}>"
