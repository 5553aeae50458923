"""A whole list, page by page: one consistent snapshot, or an error."""

from collections.abc import Callable

import structlog
from msgspec import Struct

from services.watcher.kubernetes.client import Api
from services.watcher.kubernetes.errors import BadAnswer, Expired
from services.watcher.kubernetes.resource import JsonObject, Resource, Selection

log = structlog.get_logger(__name__)

MOST_OBJECTS, MOST_PAGES = 200_000, 10_000
"""Of one list. A cluster has 150 000 pods at most; pages that never end would take all memory."""


class Snapshot(Struct):
    """All objects of a selection at one resource version."""

    items: list[JsonObject]
    resource_version: str


async def list_all(
    api: Api, selection: Selection, page_size: int, arrive: Callable[[JsonObject, Resource], JsonObject]
) -> Snapshot:
    """List in pages of `page_size`; `arrive` takes each object as it comes, and what it returns is in the snapshot.

    The API server keeps the snapshot that pages are cut from for about five minutes. When it has let go of it (410
    within the list), pages would be too slow again: the list is begun anew, all of it at once. Raises KubernetesError.
    """
    limit: int | None = page_size
    while True:
        try:
            return await _list(api, selection, limit, arrive)
        except Expired as error:
            if limit is None:
                raise
            log.info("kubernetes.list.expired", selection=str(selection), reason=str(error))
            limit = None


async def _list(
    api: Api, selection: Selection, limit: int | None, arrive: Callable[[JsonObject, Resource], JsonObject]
) -> Snapshot:
    page = await api.page(selection, limit)
    # All pages have the first one's version. Where a server should say otherwise, the first is the one that misses
    # nothing: the watch from there repeats what later pages know already.
    snapshot = Snapshot([], page.resource_version)
    for _ in range(MOST_PAGES):
        snapshot.items += [arrive(item, selection.resource) for item in page.items]
        if not page.next:
            return snapshot
        if len(snapshot.items) > MOST_OBJECTS:
            raise BadAnswer(f"can't list {selection}: more than {MOST_OBJECTS} objects")
        page = await api.page(selection, limit, page.next)
    raise BadAnswer(f"can't list {selection}: more than {MOST_PAGES} pages")
