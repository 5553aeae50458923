"""What one resource of a cluster comes to for one pool: facts, a refusal, or that it isn't for this pool. Pure."""

from collections.abc import Mapping

from services.watcher.documents import Documents
from services.watcher.kubernetes.resource import JsonObject
from services.watcher.resources import PoolId, read_resource
from services.watcher.sources import Rejected, Reset
from shared.config.problems import Problems
from shared.model import Pool


def read_item(item: JsonObject, kind: str, origin: str, pool: PoolId) -> Reset | Rejected | str:
    """A text says why it isn't for the pool."""
    metadata = item["metadata"]
    if kind == "InferencePool" and (metadata.get("namespace"), metadata["name"]) != (pool.namespace, pool.name):
        return f"{pool} is served"
    if metadata.get("deletionTimestamp"):
        return "it is being deleted"
    if (other := _other_pool(item, pool)) is not None:
        return f"for pool {other!r}, and {pool} is served"
    problems = Problems()
    read = read_resource(item, kind, "", problems, pool)
    if isinstance(read.resource, Pool) and not read.resource.target_ports:
        problems.error("spec.targetPorts", "empty; the port at which the model servers serve is needed")
    if problems.errors:
        return Rejected(origin, tuple(problems.errors))
    if read.resource is None:
        return read.ignored
    return Reset(origin, Documents(resources=(read.resource,), warnings=tuple(problems.warnings)))


def _other_pool(item: JsonObject, pool: PoolId) -> str | None:
    """The pool that it refers to, where that isn't this one: then it isn't for us to find anything wrong with it."""
    spec = item.get("spec")
    reference = spec.get("poolRef") if isinstance(spec, Mapping) else None
    name = reference.get("name") if isinstance(reference, Mapping) else None
    return name if isinstance(name, str) and name != pool.name else None
