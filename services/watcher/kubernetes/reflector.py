"""Lists and watches the objects of a selection for ever, as client-go's Reflector does.

`Reset` holds all objects, `Upsert` and `Delete` change one. So an object that was deleted while the connection was down
doesn't stay. The reflector lists, then watches, call after call, until only a new list helps.

A watch resumes from the last resource version after an ordinary end: the server's time-out, or a connection that broke
or fell silent. If the server was unreachable in between, everything is listed again: it may have been restored from a
backup, with another history of versions.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeAlias

import structlog
from msgspec import Struct

from services.watcher.collection import await_without_collection
from services.watcher.kubernetes import watch_events
from services.watcher.kubernetes.backoff import Backoff, Timing
from services.watcher.kubernetes.client import Api, Page
from services.watcher.kubernetes.errors import (
    AnswerTooLarge,
    BadAnswer,
    ConnectionFailed,
    ErrorKind,
    Expired,
    KubernetesError,
    TimedOut,
    error_from_status,
)
from services.watcher.kubernetes.resource import JsonObject, Resource, Selection, tidy
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.kubernetes.watch_events import LineSplitter, WatchEvent, check_object, parse_event
from shared.long_lived import long_lived
from shared.tasks import in_turns

log = structlog.get_logger(__name__)

MIN_WATCH = 1.0
"""Seconds, or half of the requested duration. A second watch in a row that ends sooner, without an event, is a failure:
otherwise there would be no pause."""

MAX_OBJECTS, MAX_PAGES = 200_000, 10_000
"""Limits of one list. A cluster has at most 150 000 pods; endless pages would take all memory."""
Strip: TypeAlias = Callable[[JsonObject, Resource], JsonObject]
"""Returns what is kept of an object, as client-go's TransformFunc does."""


class Reset(Struct, frozen=True):
    """All objects. What was reported before and isn't among them is gone."""

    items: list[JsonObject]


class Upsert(Struct, frozen=True):
    """An object is new or has changed."""

    object: JsonObject


class Delete(Struct, frozen=True):
    """An object was deleted, or isn't selected any more; in its last version."""

    object: JsonObject


class Problem(Struct, frozen=True):
    """Why the current objects are unknown."""

    kind: ErrorKind
    text: str
    since: float
    """Seconds of the clock: the first of an uninterrupted series of problems."""


class Failed(Struct, frozen=True):
    """A problem has occurred, other than the last one. The objects reported last stay the last known ones."""

    problem: Problem


Event: TypeAlias = Reset | Upsert | Delete | Failed


class Paging:
    """How many objects to request in a page: `size`, or fewer as long as pages with so many are too large."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.limit = size

    def too_large(self) -> None:
        self.limit = max(self.limit // 4, 1)

    def listed(self) -> None:
        """A whole list had no page that was too large."""
        self.limit = min(2 * self.limit, self._size)

    def __repr__(self) -> str:
        return f"<Paging {self.limit} of {self._size}>"


async def list_all(api: Api, selection: Selection, paging: Paging, strip: Strip = tidy) -> tuple[list[JsonObject], str]:
    """All objects of one consistent list, and its resource version. Raises KubernetesError.

    The API server keeps the snapshot behind the pages for about five minutes. If it has expired (410 within the list),
    pages would be too slow again: everything is listed again, in one page. `paging` learns from pages that are too
    large, for the rest of the list and for the next one.
    """
    used: Paging | None = paging
    while True:
        try:
            return await long_lived(_list_pages(api, selection, used, strip))
        except Expired as error:
            if used is None:
                raise
            log.info("kubernetes.list.expired", selection=str(selection), reason=str(error))
            used = None


async def _list_pages(
    api: Api, selection: Selection, paging: Paging | None, strip: Strip
) -> tuple[list[JsonObject], str]:
    limit = None if paging is None else paging.limit
    page = await _page(api, selection, paging)
    # All pages have the first one's version. If a server says otherwise, the first version misses nothing: the watch
    # from there repeats what later pages have.
    version = page.resource_version
    items = await _objects(page, selection, strip)
    for _ in range(MAX_PAGES):
        if not page.next:
            if paging is not None and paging.limit == limit:
                paging.listed()
            return items, version
        if len(items) > MAX_OBJECTS:
            raise BadAnswer(f"can't list {selection}: more than {MAX_OBJECTS} objects")
        page = await _page(api, selection, paging, page.next)
        items += await _objects(page, selection, strip)
    raise BadAnswer(f"can't list {selection}: more than {MAX_PAGES} pages")


async def _page(api: Api, selection: Selection, paging: Paging | None, after: str = "") -> Page:
    """A page that isn't too large."""
    while True:
        limit = None if paging is None else paging.limit
        try:
            return await api.page(selection, limit, after)
        except AnswerTooLarge as error:
            if paging is None:
                raise
            if limit == 1:
                raise BadAnswer(f"{error}, and it has a single {selection.resource.kind.kind}") from error
            paging.too_large()
            log.info("kubernetes.list.smaller_pages", selection=str(selection), limit=paging.limit, reason=str(error))


async def _objects(page: Page, selection: Selection, strip: Strip) -> list[JsonObject]:
    """A page's objects. Each has hundreds of containers for a moment: the garbage collector would search them all, for
    nothing."""

    async def made() -> list[JsonObject]:
        return [strip(item, selection.resource) async for item in in_turns(page.items)]

    return await await_without_collection(made())


class Reflector:
    """Lists and watches a selection for ever. Problems of the API are events, not exceptions."""

    def __init__(
        self,
        api: Api,
        selection: Selection,
        settings: KubernetesSettings,
        timing: Timing | None = None,
        strip: Strip = tidy,
    ) -> None:
        """`strip` takes each object as it arrives. One that keeps little of it saves most of a long list's memory. It
        calls `tidy` itself, if needed."""
        self.selection = selection
        self._api = api
        self._settings = settings
        self._timing = timing or Timing()
        self._strip = strip
        self._paging = Paging(settings.kubernetes_page_size)
        self._backoff = Backoff(settings.kubernetes_initial_backoff, settings.kubernetes_max_backoff, self._timing)
        self.listed = False
        """Whether there has been a complete list."""
        self.in_touch = False
        """Whether a watch is open."""
        self._confirmed_at: float | None = None
        self.problem: Problem | None = None
        """None while listing and watching work. A problem within a watch ends when a later watch has brought an event
        or lasted; other problems end when a watch starts."""
        self.resource_version = ""
        """The last known one."""
        self.lists = 0
        self.events = 0
        """Upserts and deletes that watches brought."""
        self._started_at: float | None = None
        """When the open watch started."""
        self._useful = False
        """Whether the open watch has brought anything."""
        self._doubted = False
        """Whether the last failure was within a watch: then the start of one proves nothing."""

    @property
    def confirmed_at(self) -> float | None:
        """When the server last confirmed the objects: by a list (the time of the request), an event, a bookmark, a
        watch that started a second ago and brought nothing new, or the orderly end of one. Seconds of the clock; None
        before the first list. Without changes and bookmarks, an open watch (`in_touch`) confirms the objects for as
        long as the server answers at all."""
        self._confirm_start()
        return self._confirmed_at

    async def run(self) -> AsyncGenerator[Event, None]:
        """Never ends, and raises only for a defect."""
        while True:
            try:
                async with aclosing(self._list_and_watch()) as events:
                    async for event in events:
                        yield event
                        del event  # free it before the next one arrives
            except KubernetesError as error:
                failed, pause = self._fail(error)
            finally:
                self.in_touch = False
            if failed is not None:
                yield failed
            await self._timing.sleep(pause)

    async def _list_and_watch(self) -> AsyncGenerator[Reset | Upsert | Delete, None]:
        """`Reset`, then changes for as long as a watch can be resumed. Raises KubernetesError if only a new list helps:
        Expired (410, when a watch begins or as its ERROR event), other ERROR events, invalid lines, no connection."""
        asked_at = self._timing.clock()
        items, version = await list_all(self._api, self.selection, self._paging, self._strip)
        self.listed = True
        self.lists += 1
        self.resource_version, self._confirmed_at = version, asked_at
        reset = Reset(items)
        del items
        yield reset
        del reset  # the reader may forget objects that it doesn't need
        in_a_row = useless = 0  # short watches, and short ones without an event
        while True:
            began = self._timing.clock()
            self._useful = orderly = False
            try:
                async with aclosing(self._watch()) as events:
                    async for event in events:
                        yield event
                        del event
                orderly = True
            except ConnectionFailed as error:
                if self._started_at is None:
                    raise
                # Silence is ordinary if nothing changes: not every server sends bookmarks then.
                log.log(
                    logging.DEBUG if isinstance(error, TimedOut) else logging.INFO,
                    "kubernetes.watch.broken",
                    selection=str(self.selection),
                    reason=str(error),
                    resource_version=self.resource_version,
                )
            now = self._timing.clock()
            short = now - began < self._shortest
            in_a_row = in_a_row + 1 if short else 0
            useless = useless + 1 if short and not self._useful else 0
            if useless > 1:
                raise ConnectionFailed(f"each watch of {self.selection} ends as soon as it has begun, without an event")
            if self._confirm_start():
                self._prove()
                if orderly:  # nothing was missing until now
                    self._confirmed_at = now
            self._started_at = None
            self.in_touch = False
            if in_a_row > 1:  # a server, or a proxy, may end each watch after its first event
                await self._timing.sleep(began + self._shortest - now)

    async def _watch(self) -> AsyncGenerator[Upsert | Delete, None]:
        """One call. Raises KubernetesError."""
        seconds = self._timing.jitter(self._settings.kubernetes_watch_timeout)
        async with self._api.stream(self.selection, self.resource_version, seconds) as chunks:
            self._started_at = self._timing.clock()
            self.in_touch = True
            if not self._doubted:
                self._recovered()
            lines = LineSplitter(self._settings.kubernetes_line_limit)
            async for chunk in chunks:
                async for line in in_turns(lines.feed(chunk)):
                    if (event := self._read(parse_event(line))) is not None:
                        yield event
                        del event
            if lines.pending:  # the event comes again after the last version
                raise ConnectionFailed(f"the watch of {self.selection} ended within an event")

    def _read(self, event: WatchEvent) -> Upsert | Delete | None:
        """Bookmarks only confirm: the API server sends one a minute, but none while no object of the resource changes
        anywhere in the cluster. Raises KubernetesError."""
        change: Upsert | Delete | None = None
        match event.type:
            case watch_events.ADDED | watch_events.MODIFIED | watch_events.DELETED:
                check_object(event.object)
                version = event.resource_version
                item = self._strip(event.object, self.selection.resource)
                change = Delete(item) if event.type == watch_events.DELETED else Upsert(item)
                self.events += 1
            case watch_events.BOOKMARK:
                version = event.resource_version
            case watch_events.ERROR:
                raise error_from_status(f"watch {self.selection}", event.object)
            case _:
                log.warning("kubernetes.watch.unknown_event", selection=str(self.selection), type=event.type)
                return None
        self._useful = True
        self.resource_version, self._confirmed_at = version, self._timing.clock()
        self._prove()
        return change

    @property
    def _shortest(self) -> float:
        return min(MIN_WATCH, self._settings.kubernetes_watch_timeout / 2)

    def _confirm_start(self) -> bool:
        """Whether the open watch has lasted long enough to count as started; then it confirms the objects."""
        started_at = self._started_at
        if started_at is None or self._timing.clock() - started_at < self._shortest:
            return False
        self._confirmed_at = started_at if self._confirmed_at is None else max(self._confirmed_at, started_at)
        return True

    def _prove(self) -> None:
        """Watching works beyond doubt."""
        self._backoff.reset()
        self._doubted = False
        self._recovered()

    def _recovered(self) -> None:
        if self.problem is not None:
            after = round(self._timing.clock() - self.problem.since, 3)
            log.info("kubernetes.watch.recovered", selection=str(self.selection), after=after)
            self.problem = None

    def _fail(self, error: KubernetesError) -> tuple[Failed | None, float]:
        """The event to report, and the seconds to wait until the next try."""
        self._confirm_start()
        self._doubted = self._started_at is not None
        self._started_at = None
        first = not self._backoff.failures
        pause = self._backoff.after(error, self._settings)
        if isinstance(error, Expired) and first:
            # Ordinary after a long pause, or if nothing changed for long and bookmarks were lost.
            log.info("kubernetes.watch.expired", selection=str(self.selection), reason=str(error))
            return None, 0.0
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
        return Failed(self.problem), pause

    def __repr__(self) -> str:
        state = "in touch" if self.in_touch else self.problem.text if self.problem else "not in touch"
        known = f"at {self.resource_version}" if self.listed else "never listed"
        return f"<Reflector {self.selection}: {state}, {known}, {self.lists} lists, {self.events} events>"
