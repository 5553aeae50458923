"""What one resource of a cluster states for a pool: facts, a rejection, or that it isn't for this pool. Pure."""

from collections.abc import Collection

import structlog

from services.watcher.documents import Documents
from services.watcher.kubernetes.resource import JsonObject
from services.watcher.resources import PoolId, fact_of, group_of, pool_reference, read_resource
from services.watcher.sources import Rejected, Reset
from shared.config.problems import Problem, Problems, first_problems, show
from shared.model import Pool

log = structlog.get_logger(__name__)


def read_item(
    item: JsonObject, kind: str, origin: str, pool: PoolId, groups: Collection[str] = ()
) -> Reset | Rejected | str:
    """A text says why the resource isn't for the pool. `groups` are the API groups that have the pool. Without any, a
    resource that refers to the pool's name is read."""
    try:
        return _read(item, kind, origin, pool, groups)
    except Exception as error:  # an unexpected resource doesn't affect the others
        log.exception("kubernetes.resource.unreadable", origin=origin)
        problem = Problem("", f"it can't be read: {type(error).__name__}: {error}")
        return Rejected(origin, (problem,), fact_of(kind, item["metadata"]["name"]))


def _read(item: JsonObject, kind: str, origin: str, pool: PoolId, groups: Collection[str]) -> Reset | Rejected | str:
    metadata = item["metadata"]
    if kind == "InferencePool" and (metadata.get("namespace"), metadata["name"]) != (pool.namespace, pool.name):
        return f"{pool} is served"
    if metadata.get("deletionTimestamp"):
        return "it is being deleted"
    if (other := _other_pool(item, kind, pool, groups)) is not None:
        return f"for pool {other}, and {pool} is served"
    problems = Problems()
    read = read_resource(item, kind, "", problems, pool)
    if isinstance(read.resource, Pool) and not read.resource.target_ports:
        problems.error("spec.targetPorts", "empty; the port at which the model servers serve is needed")
    if problems.errors:
        return Rejected(origin, first_problems(problems.errors), fact_of(kind, metadata["name"]))
    if read.resource is None:
        return read.ignored
    return Reset(origin, Documents(resources=(read.resource,), warnings=first_problems(problems.warnings)))


def _other_pool(item: JsonObject, kind: str, pool: PoolId, groups: Collection[str]) -> str | None:
    """The pool that it refers to, unless that is this one. Another pool's resource isn't checked here."""
    reference = pool_reference(item)
    name = reference.get("name")
    if not isinstance(name, str):
        return None
    if name != pool.name:
        return show(name)
    group = group_of(kind, reference)
    return f"{show(name)} of {group}" if groups and group is not None and group not in groups else None
