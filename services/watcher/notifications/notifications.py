"""One configuration's notification sources at work: what they want, what they were told, what follows from it."""

from collections.abc import Iterable, Mapping
from typing import Any

import structlog

from services.watcher.notifications.board import Board, Described
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid
from shared.datalayer.events import Tally
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
    """`use` a configuration, `tell` of objects, `follow` endpoints, in any order; then send what is `described`."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._plan: tuple[object, ...] = ()
        self._dispatcher = ObjectDispatcher((), tally)
        self._board = Board((), tally)
        self._objects: tuple[KubernetesObject, ...] = ()
        self._stale = False
        """What is on the board may no longer be what extractors say."""
        self._endpoints: tuple[Endpoint, ...] = ()

    @property
    def kinds(self) -> Mapping[ObjectKind, Parts]:
        """The kinds of objects that somebody wants to hear of, each with what is read of it."""
        return self._dispatcher.parts

    @property
    def makes(self) -> bool:
        """Whether some extractor makes attributes, or did until now: else nothing is to be sent."""
        return self._board.makes

    def use(self, config: LoadedConfig | None) -> None:
        """Work by this configuration from now on, None being one without sources. Extractors that it changes begin with
        all objects; where plugins refuse what it gives them, everything stays as it is."""
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
        self._dispatcher = ObjectDispatcher(found, self._tally)
        self._board = Board(self._dispatcher.extractors, self._tally, self._board.keys)
        self._dispatcher.reset(self._objects)
        self._stale = True
        log.info("notifications.taken", sources=self._dispatcher.describe())

    def tell(self, objects: Iterable[KubernetesObject]) -> None:
        """These are all objects."""
        self._objects = tuple(objects)
        self._stale |= self._dispatcher.reset(self._objects)

    def follow(self, endpoints: tuple[Endpoint, ...]) -> list[str]:
        """These are all endpoints; ids of those of which something else is said than before."""
        if not self._stale and endpoints == self._endpoints:
            return []
        self._stale, self._endpoints = False, endpoints
        return self._board.update(endpoints)

    def described(self, confirmed_at: float) -> Mapping[str, Described]:
        """All attributes by endpoint id, as of the time at which they were last known to hold."""
        return self._board.described(confirmed_at)

    def of(self, id: str) -> dict[str, Any]:
        """An endpoint's attributes for the debug pages."""
        return self._board.of(id)

    def state(self) -> dict[str, Any]:
        """For `/debug/state`: sources, and what extractors have learnt."""
        return {
            "sources": self._dispatcher.describe(),
            "extractors": {one.name: self._describe(one) for one in self._dispatcher.extractors},
            "failures": {name: count for name, count in self._tally.failures.counts().items() if count},
        }

    def _describe(self, extractor: NotificationExtractor) -> dict[str, Any]:
        try:
            return extractor.describe()
        except Exception as error:  # noqa: BLE001 - a plugin's failure is counted, and costs no page
            self._tally.failures.record(extractor.name, error)
            return {"error": reason_of(error)}

    def __repr__(self) -> str:
        return f"<Notifications {self._dispatcher!r} {self._board!r}>"
