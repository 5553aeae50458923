"""What there is of a resource and what becomes of it, for as long as anybody asks: three generators, one in the other.

`watch_once` is one HTTP call. `follow` lists, then watches, call after call, and fails at the first thing that it can't
go on from. `Watch.forever` begins `follow` again after any failure. Who reads it keeps a set: `Listed` replaces all of
it, `Changed` and `Gone` concern one object. So nothing that was deleted while nobody looked stays: no ghosts.

A watch goes on from the last resource version after an end that is ordinary (the server's time-out, a connection that
broke off or fell silent). When the server couldn't be reached in between, everything is listed again: a server that
comes back may be one that was restored from a backup, whose versions have another history.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeAlias

import structlog
from msgspec import Struct

from services.watcher.kubernetes import lines
from services.watcher.kubernetes.backoff import Backoff, Timing
from services.watcher.kubernetes.client import Api
from services.watcher.kubernetes.errors import (
    ConnectionFailed,
    Expired,
    Kind,
    KubernetesError,
    TimedOut,
    error_of_status,
)
from services.watcher.kubernetes.lines import Lines, WatchEvent, check_object, parse_event
from services.watcher.kubernetes.listing import list_all
from services.watcher.kubernetes.resource import JsonObject, Resource, Selection, tidy
from services.watcher.kubernetes.settings import KubernetesSettings

log = structlog.get_logger(__name__)

SHORTEST_WATCH = 1.0
"""Seconds, or half of what a watch was asked to last. A second watch in a row that ends sooner, without an event, is a
failure: else there would be no pause."""
SLOW = frozenset({Kind.FORBIDDEN, Kind.NOT_FOUND, Kind.REFUSED})
"""What time doesn't heal, but somebody may: tried again slowly."""


class Opened(Struct, frozen=True):
    """The server has begun to answer a watch."""


class Closed(Struct, frozen=True):
    """A watch has ended, and another one is going to be tried from the last version."""

    orderly: bool
    """Whether the server ended it: until then nothing was missing. Else the connection broke off, or was silent for too
    long."""


class Bookmark(Struct, frozen=True):
    """Nothing is missing up to this version. The API server sends one a minute, but none while no object of the
    resource changes anywhere in the cluster."""

    resource_version: str


class Listed(Struct, frozen=True):
    """All objects that there are. What was reported before and isn't among them is gone."""

    items: list[JsonObject]
    resource_version: str
    asked_at: float
    """Seconds of the clock: they were so then, or later."""


class Changed(Struct, frozen=True):
    """An object is new, or as it is now."""

    object: JsonObject
    resource_version: str


class Gone(Struct, frozen=True):
    """An object was deleted, or isn't selected any more; as it was last."""

    object: JsonObject
    resource_version: str


class Problem(Struct, frozen=True):
    """Why the state of things isn't known now."""

    kind: Kind
    text: str
    since: float
    """Seconds of the clock: since when it doesn't go well, be it that other problems were before this one."""


class Troubled(Struct, frozen=True):
    """There is a problem, another one than before: what was reported last is all that is known. `Listed` ends it."""

    problem: Problem


Happening: TypeAlias = Listed | Changed | Gone
Report: TypeAlias = Happening | Troubled


async def watch_once(
    api: Api, selection: Selection, resource_version: str, settings: KubernetesSettings, timing: Timing
) -> AsyncGenerator[Opened | WatchEvent, None]:
    """One call: `Opened`, then its events as the server sends them, until it ends. Raises KubernetesError."""
    seconds = timing.spread(settings.kubernetes_watch_timeout)
    async with api.stream(selection, resource_version, seconds) as chunks:
        yield Opened()
        collected = Lines(settings.kubernetes_line_limit)
        async for chunk in chunks:
            for line in collected.feed(chunk):
                yield parse_event(line)
        if collected.pending:  # not the whole event: it comes again after the last version
            raise ConnectionFailed(f"the watch of {selection} ended within an event")


async def follow(
    api: Api,
    selection: Selection,
    settings: KubernetesSettings,
    timing: Timing,
    arrive: Callable[[JsonObject, Resource], JsonObject] = tidy,
) -> AsyncGenerator[Happening | Opened | Closed | Bookmark, None]:
    """`Listed`, then what changes, as long as the server lets itself be watched. Raises KubernetesError for all from
    which only a new list leads on: Expired (410, at the beginning of a watch or as its ERROR event), other ERROR
    events, lines that aren't events, no connection."""
    asked_at = timing.clock()
    snapshot = await list_all(api, selection, settings.kubernetes_page_size, arrive)
    version = snapshot.resource_version
    listed = Listed(snapshot.items, version, asked_at)
    del snapshot
    yield listed
    del listed  # the reader may forget objects that it doesn't need: so have we
    shortest = _shortest(settings)
    hasty = 0
    while True:
        began = timing.clock()
        opened = useful = orderly = False
        try:
            async with aclosing(watch_once(api, selection, version, settings, timing)) as events:
                async for event in events:
                    if isinstance(event, Opened):
                        opened = True
                        yield event
                        continue
                    happening = _read(event, selection, arrive)
                    if happening is not None:
                        useful = True
                        version = happening.resource_version
                        yield happening
            orderly = True
        except ConnectionFailed as error:
            if not opened:
                raise
            # Silence is ordinary where nothing changes: not every server sends bookmarks then.
            level = logging.DEBUG if isinstance(error, TimedOut) else logging.INFO
            log.log(
                level,
                "kubernetes.watch.broken",
                selection=str(selection),
                reason=str(error),
                resource_version=version,
            )
        hasty = hasty + 1 if not useful and timing.clock() - began < shortest else 0
        if hasty > 1:
            raise ConnectionFailed(f"each watch of {selection} ends as soon as it has begun, without an event")
        yield Closed(orderly)


def _shortest(settings: KubernetesSettings) -> float:
    return min(SHORTEST_WATCH, settings.kubernetes_watch_timeout / 2)


def _read(
    event: WatchEvent, selection: Selection, arrive: Callable[[JsonObject, Resource], JsonObject]
) -> Changed | Gone | Bookmark | None:
    """What an event means; None for one of a type that isn't known. Raises KubernetesError."""
    match event.type:
        case lines.ADDED | lines.MODIFIED | lines.DELETED:
            check_object(event.object)
            version = event.resource_version
            item = arrive(event.object, selection.resource)
            return Gone(item, version) if event.type == lines.DELETED else Changed(item, version)
        case lines.BOOKMARK:
            return Bookmark(event.resource_version)
        case lines.ERROR:
            raise error_of_status(f"watch {selection}", event.object)
        case _:
            log.warning("kubernetes.watch.unknown_event", selection=str(selection), type=event.type)
            return None


class Watch:
    """Follows a selection for ever, and knows how well that goes. The API's failures are told, never raised."""

    def __init__(
        self,
        api: Api,
        selection: Selection,
        settings: KubernetesSettings,
        timing: Timing | None = None,
        arrive: Callable[[JsonObject, Resource], JsonObject] = tidy,
    ) -> None:
        """`arrive` takes each object when it comes; a function that keeps only what is needed saves most of the memory
        of a long list. It has to call `tidy` itself if it wants that."""
        self.selection = selection
        self._api = api
        self._settings = settings
        self._timing = timing or Timing()
        self._arrive = arrive
        self._backoff = Backoff(settings.kubernetes_first_backoff, settings.kubernetes_longest_backoff, self._timing)
        self.listed = False
        """Whether there was a complete list, ever."""
        self.in_touch = False
        """Whether a watch is open now."""
        self._confirmed_at: float | None = None
        self.problem: Problem | None = None
        """None while listing and watching go well. One that arose within a watch ends when a watch has brought
        something or lasted, others when a watch begins."""
        self.resource_version = ""
        """The last one that is known."""
        self.lists = 0
        self.events = 0
        """Changes and deletions that watches brought."""
        self.bookmarks = 0
        self.failures = 0
        """All that there were; `consecutive_failures` those since it last went well."""
        self._opened_at: float | None = None
        """When the watch that is open began."""
        self._doubted = False
        """Whether things went wrong after a watch had begun: then that one begins proves nothing."""

    @property
    def confirmed_at(self) -> float | None:
        """When the server last confirmed that what was reported holds: by a list (the time of asking), an event, a
        bookmark, by answering a watch from the last version with nothing new for a second, or by ending one after its
        time. Seconds of the clock; None before the first list. While `in_touch`, without changes and bookmarks, what
        was reported holds as long as the server answers at all."""
        self._confirm_begin()
        return self._confirmed_at

    @property
    def consecutive_failures(self) -> int:
        """Since the last event, bookmark or watch of full length."""
        return self._backoff.failures

    async def forever(self) -> AsyncGenerator[Report, None]:
        """`Listed`, `Changed`, `Gone`, and `Troubled` whenever another problem arises. Never ends, never raises but by
        being closed or cancelled, or for a defect."""
        while True:
            try:
                happenings = follow(self._api, self.selection, self._settings, self._timing, self._arrive)
                async with aclosing(happenings):
                    async for happening in happenings:
                        self._note(happening)
                        if isinstance(happening, Listed | Changed | Gone):
                            yield happening
                        del happening  # not to be held until the next one comes
            except KubernetesError as error:
                report, pause = self._fail(error)
            finally:
                self.in_touch = False
            if report is not None:
                yield report
            await self._timing.sleep(pause)

    def _note(self, happening: Happening | Opened | Closed | Bookmark) -> None:
        """Keep what it says about how well things go."""
        now = self._timing.clock()
        match happening:
            case Opened():
                self._opened_at = now
                self.in_touch = True
                if not self._doubted:
                    self._recovered()
            case Closed(orderly):
                if self._confirm_begin():
                    self._proven()
                    if orderly:
                        self._confirmed_at = now
                self._opened_at = None
                self.in_touch = False
            case Listed(_, version, asked_at):
                self.listed = True
                self.lists += 1
                self.resource_version = version
                self._confirmed_at = asked_at
            case Changed(_, version) | Gone(_, version) | Bookmark(version):
                if isinstance(happening, Bookmark):
                    self.bookmarks += 1
                else:
                    self.events += 1
                self.resource_version = version
                self._confirmed_at = now
                self._proven()

    def _confirm_begin(self) -> bool:
        """Whether the watch that is open has lasted long enough to show that it began well; then it confirms."""
        opened_at = self._opened_at
        if opened_at is None or self._timing.clock() - opened_at < _shortest(self._settings):
            return False
        self._confirmed_at = opened_at if self._confirmed_at is None else max(self._confirmed_at, opened_at)
        return True

    def _proven(self) -> None:
        """Watching works, beyond doubt."""
        self._backoff.reset()
        self._doubted = False
        self._recovered()

    def _recovered(self) -> None:
        if self.problem is not None:
            away = round(self._timing.clock() - self.problem.since, 3)
            log.info("kubernetes.watch.recovered", selection=str(self.selection), after=away)
            self.problem = None

    def _fail(self, error: KubernetesError) -> tuple[Troubled | None, float]:
        """Count a failure. What is to be told of it, and the seconds to wait until the next try."""
        self.failures += 1
        self._confirm_begin()
        self._doubted = self._opened_at is not None
        self._opened_at = None
        first = not self._backoff.failures
        pause = self._backoff.next()
        if isinstance(error, Expired) and first:
            # Ordinary after a long pause, or when nothing changed for long and bookmarks were lost.
            log.info("kubernetes.watch.expired", selection=str(self.selection), reason=str(error))
            return None, 0.0
        if error.kind in SLOW:
            pause = self._timing.spread(self._settings.kubernetes_refused_interval)
        if error.retry_after is not None:
            pause = max(pause, min(error.retry_after, self._settings.kubernetes_longest_retry_after))
        before, text = self.problem, str(error)
        self.problem = Problem(error.kind, text, self._timing.clock() if before is None else before.since)
        if before is not None and (before.kind, before.text) == (error.kind, text):
            return None, pause
        log.warning(
            "kubernetes.watch.failed",
            selection=str(self.selection),
            kind=error.kind.value,
            reason=text,
            retry_in=round(pause, 3),
        )
        return Troubled(self.problem), pause

    def __repr__(self) -> str:
        state = "in touch" if self.in_touch else self.problem.text if self.problem else "not in touch"
        known = f"at {self.resource_version}" if self.listed else "never listed"
        return f"<Watch {self.selection}: {state}, {known}, {self.lists} lists, {self.events} events>"
