"""What a watcher says of itself over the bus."""

from collections.abc import Iterable, Sequence

from services.watcher.leadership import Leadership
from services.watcher.reconciler import PoolReconciler
from shared.service.status import WatcherStatus, seconds


def watcher_status(
    reconcilers: Sequence[PoolReconciler], leadership: Leadership, now: float
) -> tuple[tuple[str, ...], WatcherStatus]:
    """(the other watchers that it knows of; its own status)."""
    own = leadership.lease.owner
    confirmed = max((now - reconciler.confirmed_at(now) for reconciler in reconcilers), default=0.0)
    status = WatcherStatus(
        leads=leadership.leads,
        owner=own,
        acquisitions=leadership.lease.acquisitions,
        fitness=leadership.candidacy.fitness(),
        epoch=leadership.publisher.epoch if leadership.leads else leadership.replica.epoch,
        published=leadership.publisher.published,
        source_age=seconds(max(0.0, confirmed)),
        invalid=sum(reconciler.desired.problematic_count for reconciler in reconcilers),
        unpublishable=sum(len(reconciler.unpublishable.reasons) for reconciler in reconcilers),
        unresolved_names=sum(len(reconciler.names.unresolved) for reconciler in reconcilers),
        disagreement=leadership.disagreement.reason or "",
    )
    return _ids(owner for owner in leadership.candidacy.others() if owner != own), status


def _ids(owners: Iterable[str]) -> tuple[str, ...]:
    """The ids of the processes: an owner's name is its id, and what tells its runs apart."""
    return tuple(sorted({owner.rpartition("/")[0] for owner in owners}))
