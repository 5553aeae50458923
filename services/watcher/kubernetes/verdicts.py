"""What is to be said of each resource that a watcher reads: whether it is accepted, and what is wrong with it. Pure.

A resource that refers to a pool is spoken of by the watcher that serves this pool, and by no other: somebody else's
picker may serve the others. Only where there is no pool of the name at all, nobody else can say so.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from services.watcher.kubernetes.resource import JsonObject, Resource
from services.watcher.resources import PoolId
from services.watcher.sources import Rejected, Reset
from shared.config.problems import Problem
from shared.model import Model, Pool

POOL = "InferencePool"
ACCEPTED = "Accepted"
"""The one condition that the API defines for what refers to a pool."""

ObjectId: TypeAlias = tuple[str, str]
"""Namespace and name."""


class Condition(Struct, frozen=True):
    """What `Accepted` is to say. Reasons beside the API's own `Accepted` and `ModelNameInUse` are this program's."""

    accepted: bool
    reason: str
    message: str


class Finding(Struct, frozen=True):
    """Something that is wrong with a resource."""

    reason: str
    """One word, for machines."""
    text: str
    """Names the field and the value, and says what would be right. The same text is the same finding."""
    example: str = ""
    """What it can be seen by now; it may change while the finding stays the same."""
    patient: bool = False
    """Whether it may be over in a moment: what is about to be created explains it."""

    @property
    def note(self) -> str:
        return f"{self.text} {self.example}".rstrip()


class Reading(Struct, frozen=True):
    """What one pool's source makes of one resource."""

    resource: Resource
    """Where the API server has it."""
    item: JsonObject
    outcome: Reset | Rejected | str
    """A text says why it isn't for this pool."""
    shadowed_by: str = ""
    """The API group that has a resource of the same kind and name, which counts instead."""

    @property
    def kind(self) -> str:
        return self.resource.kind.kind

    @property
    def id(self) -> ObjectId:
        return identity(self.item)


class PoolView(Struct, frozen=True, kw_only=True):
    """What is known of one pool that is served."""

    pool: PoolId
    readings: Sequence[Reading] = ()
    pools: Collection[str] | None = None
    """The InferencePools of its namespace by name; None while that isn't known."""
    selected: Collection[ObjectId] | None = None
    """The pods, or EndpointSlices, that the pool selects; None while that isn't known."""
    slices_of: str = ""
    """The Service whose EndpointSlices are read instead of pods."""
    configuration: Reading | None = None
    """The ConfigMap with the EndpointPickerConfig, if there is one."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What is to be said of one resource."""

    resource: Resource
    item: JsonObject
    condition: Condition | None = None
    """None: it isn't ours to say."""
    findings: tuple[Finding, ...] = ()


def verdicts(views: Sequence[PoolView]) -> tuple[Verdict, ...]:
    """What is to be said, resource by resource. Of what is being deleted nothing, nor of what refers to pools while it
    isn't known which pools there are."""
    best: dict[tuple[str, str, ObjectId], tuple[Reading, PoolView]] = {}
    for view in views:
        for reading in view.readings:
            if reading.item["metadata"].get("deletionTimestamp") or (view.pools is None and reading.kind != POOL):
                continue
            key = reading.kind, reading.resource.kind.group, reading.id
            if key not in best or isinstance(best[key][0].outcome, str):
                best[key] = reading, view
    in_use = _names_in_use(reading for reading, _ in best.values())
    claims = _claims(views)
    found = [
        _pool_verdict(reading, view, claims) if reading.kind == POOL else _verdict(reading, view, in_use)
        for reading, view in best.values()
    ]
    found += [_configuration_verdict(one) for one in _configurations(views)]
    return tuple(found)


def identity(item: JsonObject) -> ObjectId:
    metadata = item["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def _verdict(reading: Reading, view: PoolView, in_use: Mapping[str, tuple[Reading, Model]]) -> Verdict:
    """Of a resource that refers to a pool."""
    missing = _missing_pool(reading, view)
    if isinstance(reading.outcome, str):
        return _say(reading, None, missing)
    if isinstance(reading.outcome, Rejected):
        refused = _refused(reading.outcome.problems)
        return _say(reading, Condition(False, "Invalid", refused.text), refused)
    if reading.shadowed_by:
        text = f"metadata.name: {reading.id[1]!r} is also in {reading.shadowed_by}, whose resource counts instead"
        return _say(reading, Condition(False, "Shadowed", text))
    if (taken := _taken(reading, in_use)) is not None:
        return _say(reading, Condition(False, taken.reason, taken.text), taken)
    if missing is not None:
        return _say(reading, Condition(False, missing.reason, missing.text), missing)
    warnings = "".join(f"; {one}" for one in reading.outcome.documents.warnings)
    return _say(reading, Condition(True, ACCEPTED, f"in force for InferencePool {view.pool}{warnings}"))


def _pool_verdict(reading: Reading, view: PoolView, claims: Mapping[PoolId, Finding]) -> Verdict:
    if isinstance(reading.outcome, str) or reading.shadowed_by:
        return _say(reading, None)
    if isinstance(reading.outcome, Rejected):
        return _say(reading, None, _refused(reading.outcome.problems))
    return _say(reading, None, _without_endpoints(reading, view), claims.get(view.pool))


def _configuration_verdict(reading: Reading) -> Verdict:
    refused = isinstance(reading.outcome, Rejected)
    return _say(reading, None, _refused(reading.outcome.problems) if refused else None)  # type: ignore[union-attr]


def _say(reading: Reading, condition: Condition | None, *findings: Finding | None) -> Verdict:
    return Verdict(
        resource=reading.resource,
        item=reading.item,
        condition=condition,
        findings=tuple(one for one in findings if one is not None),
    )


def _refused(problems: Iterable[Problem]) -> Finding:
    return Finding("ResourceRefused", "; ".join(map(str, problems)))


def _missing_pool(reading: Reading, view: PoolView) -> Finding | None:
    """There is no pool for it, whoever would serve that."""
    reference = (reading.item.get("spec") or {}).get("poolRef")
    name = reference.get("name") if isinstance(reference, Mapping) else None
    if not isinstance(name, str) or name in (view.pools or ()):
        return None
    text = f"spec.poolRef.name: there is no InferencePool {name!r} in namespace {reading.id[0]}"
    return Finding("PoolNotFound", f"{text}; the name of one in the same namespace is expected", patient=True)


def _names_in_use(readings: Iterable[Reading]) -> dict[str, tuple[Reading, Model]]:
    """The InferenceModel that has a model's name: the oldest, as the API defines it. By namespace, pool and name."""
    holders: dict[str, tuple[Reading, Model]] = {}
    for reading, model in _models(readings):
        key = _name_key(reading, model)
        other = holders.get(key)
        if other is None or (model.created, model.name) < (other[1].created, other[1].name):
            holders[key] = reading, model
    return holders


def _taken(reading: Reading, in_use: Mapping[str, tuple[Reading, Model]]) -> Finding | None:
    for _, model in _models([reading]):
        holder = in_use[_name_key(reading, model)][1]
        if holder.name != model.name:
            text = f"spec.modelName: {model.model_name!r} is taken by InferenceModel {holder.name!r}, which is older"
            return Finding("ModelNameInUse", f"{text}; another name is expected")
    return None


def _models(readings: Iterable[Reading]) -> Iterator[tuple[Reading, Model]]:
    for reading in readings:
        if isinstance(reading.outcome, Reset) and not reading.shadowed_by:
            for one in reading.outcome.documents.resources:
                if isinstance(one, Model):
                    yield reading, one


def _name_key(reading: Reading, model: Model) -> str:
    return f"{reading.id[0]}/{reading.item['spec']['poolRef']['name']}/{model.model_name}"


def _without_endpoints(reading: Reading, view: PoolView) -> Finding | None:
    if view.selected is None or view.selected:
        return None
    namespace = view.pool.namespace
    if view.slices_of:
        text = f"there is no EndpointSlice of Service {view.slices_of!r} in namespace {namespace}"
        return Finding("NoEndpoints", f"{text}; --endpoint-slices names it", patient=True)
    wanted = ", ".join(f"{name}={value}" for name, value in sorted(_selector(reading).items())) or "any labels"
    text = f"spec.selector: no pod of namespace {namespace} has {wanted}; the labels of the model servers are expected"
    return Finding("NoEndpoints", text, patient=True)


def _claims(views: Sequence[PoolView]) -> dict[PoolId, Finding]:
    """Of two pools that select the same pod, what is to be said of the younger one."""
    serving = [
        (str(one.item["metadata"].get("creationTimestamp") or ""), view)
        for view in views
        if view.selected and not view.slices_of
        for one in view.readings
        if one.kind == POOL and isinstance(one.outcome, Reset) and not one.shadowed_by
    ]
    serving.sort(key=lambda pair: (pair[0], pair[1].pool.namespace, pair[1].pool.name))
    found: dict[PoolId, Finding] = {}
    for at, (_, younger) in enumerate(serving):
        for _, older in serving[:at]:
            both = frozenset(younger.selected or ()).intersection(older.selected or ())
            if both and younger.pool not in found:
                text = f"spec.selector: it selects pods that InferencePool {older.pool} selects too"
                hint = "labels that only its own model servers have are expected"
                example = f"({len(both)} of them, such as {min(both)[1]})"
                found[younger.pool] = Finding("PodClaimedTwice", f"{text}; {hint}", example, patient=True)
    return found


def _selector(reading: Reading) -> Mapping[str, str]:
    documents = reading.outcome.documents if isinstance(reading.outcome, Reset) else None
    pools = [one for one in (documents.resources if documents else ()) if isinstance(one, Pool)]
    return pools[0].selector if pools else {}


def _configurations(views: Iterable[PoolView]) -> Iterable[Reading]:
    """Each ConfigMap once, though several pools may have it."""
    return {one.configuration.id: one.configuration for one in views if one.configuration is not None}.values()
