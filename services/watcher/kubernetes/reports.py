"""What to report on each resource that a watcher reads: whether it is accepted, and what is wrong with it. Pure.

The watcher that serves a pool reports on the resources that refer to it; another picker may serve the others. Only if
there is no pool of the name at all, every watcher may report that.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from heapq import heappop, heappush
from typing import TypeAlias

from msgspec import Struct

from services.watcher.kubernetes.resource import JsonObject, ObjectId, Resource, identity
from services.watcher.resources import PoolId, group_of, pool_reference
from services.watcher.sources import Rejected, Reset
from shared.bus.subjects import fact_key, pool_token
from shared.model import Model

POOL = "InferencePool"
ACCEPTED = "Accepted"
"""The one condition that the API defines for what refers to a pool."""


class Condition(Struct, frozen=True):
    """The `Accepted` condition. Reasons other than `Accepted` and `ModelNameInUse` are this program's."""

    accepted: bool
    reason: str
    message: str


class Finding(Struct, frozen=True):
    """Something that is wrong with a resource."""

    reason: str
    """One word, for machines."""
    text: str
    """Names the field and the value, and says what is expected. Identifies the finding."""
    example: str = ""
    """An example that may change while the finding stays the same."""
    transient: bool = False
    """Whether it may resolve itself in a moment, by a resource that is about to be created."""

    @property
    def note(self) -> str:
        return f"{self.text} {self.example}".rstrip()


class ResourceResult(Struct, frozen=True):
    """What one pool's source has read from one resource."""

    resource: Resource
    """Where the API server has it."""
    item: JsonObject
    outcome: Reset | Rejected | str
    """A text says why it isn't for this pool."""
    shadowed_by: str = ""
    """The API group that has a resource of the same kind and name, which counts instead."""
    last_valid: Reset | None = None
    """What it stated when it was last valid, which stays in force while it is rejected."""

    @property
    def kind(self) -> str:
        return self.resource.kind.kind

    @property
    def id(self) -> ObjectId:
        return identity(self.item)


class PoolView(Struct, frozen=True, kw_only=True):
    """What is known of one pool that is served."""

    pool: PoolId
    results: Sequence[ResourceResult] = ()
    pools: Collection[str] | None = None
    """The names of its namespace's InferencePools; None while they are unknown."""
    selected: Mapping[ObjectId, JsonObject] | None = None
    """The pods, or EndpointSlices, that the pool selects; None while they are unknown."""
    slices_of: str = ""
    """The Service whose EndpointSlices are read instead of pods."""
    configuration: ResourceResult | None = None
    """The ConfigMap with the EndpointPickerConfig, if there is one."""
    unpublishable: Mapping[str, str] = {}
    """Why facts of the pool can't be published, by key on the bus."""


class Report(Struct, frozen=True, kw_only=True):
    """What to report on one resource."""

    resource: Resource
    item: JsonObject
    condition: Condition | None = None
    """None: another watcher's business."""
    findings: tuple[Finding, ...] = ()


Guard: TypeAlias = Callable[[ResourceResult | Report], AbstractContextManager[None, bool | None]]
"""Ends what is done for one resource if that fails, and nothing else."""


def iterate_reports(views: Sequence[PoolView], guard: Guard = lambda _: nullcontext()) -> Iterator[Report | None]:
    """A report for each resource, except those being deleted, in steps: None is a step without a report. While the
    existing pools are unknown, there are none for what refers to pools. The views may not change meanwhile."""
    best: dict[tuple[str, str, ObjectId], tuple[ResourceResult, PoolView]] = {}
    for view in views:
        for result in view.results:
            yield None
            if result.item["metadata"].get("deletionTimestamp") or (view.pools is None and result.kind != POOL):
                continue
            key = result.kind, result.resource.kind.group, result.id
            if key not in best or _weight(result) > _weight(best[key][0]):
                best[key] = result, view
    holders: dict[str, tuple[ResourceResult, Model]] = {}
    for result, view in best.values():
        with guard(result):
            _hold_name(result, view, holders)
        yield None
    groups: dict[int, dict[str, set[str]]] = {}
    for view in views:
        groups[id(view)] = yield from _pool_groups(view)
    for result, view in best.values():
        with guard(result):
            if result.kind == POOL:
                report = yield from _pool_report(result, view)
            else:
                report = _resource_report(result, view, groups[id(view)], holders)
            yield report
    configurations = {view.configuration.id: view.configuration for view in views if view.configuration is not None}
    for result in configurations.values():
        yield _report(result, None, _rejection(result))


def _weight(result: ResourceResult) -> int:
    """Grows with what the resource is to the pool: nothing, rejected, in force."""
    if isinstance(result.outcome, str):
        return 0
    return 1 if _in_force(result) is None else 2


def _pool_groups(view: PoolView) -> Generator[None, None, dict[str, set[str]]]:
    """The API groups that have a pool, by the pool's name."""
    groups: dict[str, set[str]] = {}
    for result in view.results:
        yield
        if result.kind == POOL:
            groups.setdefault(result.id[1], set()).add(result.resource.kind.group)
    return groups


def _resource_report(
    result: ResourceResult,
    view: PoolView,
    groups: Mapping[str, Collection[str]],
    holders: Mapping[str, tuple[ResourceResult, Model]],
) -> Report:
    """On a resource that refers to a pool. `groups` are the API groups of the pools, by name."""
    missing = _missing_pool(result, view, groups)
    if isinstance(result.outcome, str):
        return _report(result, None, missing)
    if (rejection := _rejection(result)) is not None:
        return _report(result, Condition(False, "Invalid", rejection.text), rejection)
    if result.shadowed_by:
        text = f"metadata.name: {result.id[1]!r} is also in {result.shadowed_by}, whose resource counts instead"
        return _report(result, Condition(False, "Shadowed", text))
    if (unpublishable := _unpublishable(result, view)) is not None:
        return _report(result, Condition(False, "Invalid", unpublishable.text), unpublishable)
    if (finding := _name_taken(result, view, holders) or missing) is not None:
        return _report(result, Condition(False, finding.reason, finding.text), finding)
    assert isinstance(result.outcome, Reset)
    warnings = "".join(f"; {warning}" for warning in result.outcome.documents.warnings)
    return _report(result, Condition(True, ACCEPTED, f"in force for InferencePool {view.pool}{warnings}"))


def _pool_report(result: ResourceResult, view: PoolView) -> Generator[None, None, Report]:
    if isinstance(result.outcome, str) or result.shadowed_by:
        return _report(result, None)
    if (rejection := _rejection(result)) is not None:
        return _report(result, None, rejection)
    shared = yield from _pods_shared(result, view)
    return _report(result, None, _without_endpoints(result, view), shared)


def _report(result: ResourceResult, condition: Condition | None, *findings: Finding | None) -> Report:
    found = tuple(finding for finding in findings if finding is not None)
    return Report(resource=result.resource, item=result.item, condition=condition, findings=found)


def _rejection(result: ResourceResult) -> Finding | None:
    if not isinstance(result.outcome, Rejected):
        return None
    return Finding("ResourceRefused", "; ".join(map(str, result.outcome.problems)))


def _unpublishable(result: ResourceResult, view: PoolView) -> Finding | None:
    """It is valid, and pickers can't get it."""
    if not view.unpublishable or not isinstance(result.outcome, Reset):
        return None
    token = pool_token(view.pool.namespace, view.pool.name)
    keys = (fact_key(token, resource) for resource in result.outcome.documents.resources)
    reasons = "; ".join(view.unpublishable[key] for key in keys if key in view.unpublishable)
    return Finding("ResourceRefused", reasons) if reasons else None


def _missing_pool(result: ResourceResult, view: PoolView, groups: Mapping[str, Collection[str]]) -> Finding | None:
    """The resource refers to a pool that doesn't exist."""
    reference = pool_reference(result.item)
    name = reference.get("name")
    if not isinstance(name, str):
        return None
    if name not in (view.pools or ()):
        text = f"spec.poolRef.name: there is no InferencePool {name!r} in namespace {result.id[0]}"
        return Finding("PoolNotFound", f"{text}; the name of one in the same namespace is expected", transient=True)
    group = group_of(result.kind, reference)
    existing = sorted(groups.get(name, ()))
    if group is None or not existing or group in existing:
        return None
    text = f"spec.poolRef.group: InferencePool {name!r} of namespace {result.id[0]} isn't in {group}"
    return Finding("PoolNotFound", f"{text}; {' or '.join(existing)}, where it is, is expected", transient=True)


def _hold_name(result: ResourceResult, view: PoolView, holders: dict[str, tuple[ResourceResult, Model]]) -> None:
    """Note the InferenceModel that holds a model's name, by namespace, pool and name: the oldest, as the API defines. A
    rejected one holds the name of its last valid version, which is published."""
    for model in _models(result):
        key = _name_key(view, model)
        other = holders.get(key)
        if other is None or (model.created, model.name) < (other[1].created, other[1].name):
            holders[key] = result, model


def _name_taken(
    result: ResourceResult, view: PoolView, holders: Mapping[str, tuple[ResourceResult, Model]]
) -> Finding | None:
    for model in _models(result):
        holder = holders[_name_key(view, model)][1]
        if holder.name != model.name:
            text = f"spec.modelName: {model.model_name!r} is taken by InferenceModel {holder.name!r}, which is older"
            return Finding("ModelNameInUse", f"{text}; another name is expected")
    return None


def _models(result: ResourceResult) -> Iterator[Model]:
    effective = _in_force(result)
    if effective is not None and not result.shadowed_by:
        for resource in effective.documents.resources:
            if isinstance(resource, Model):
                yield resource


def _in_force(result: ResourceResult) -> Reset | None:
    """What the resource states for the pool; while it is rejected, what it stated last."""
    effective = result.last_valid if isinstance(result.outcome, Rejected) else result.outcome
    return effective if isinstance(effective, Reset) else None


def _name_key(view: PoolView, model: Model) -> str:
    """A rejected resource may not name its pool any more."""
    return f"{view.pool.namespace}/{view.pool.name}/{model.model_name}"


def _without_endpoints(result: ResourceResult, view: PoolView) -> Finding | None:
    if view.selected is None or view.selected:
        return None
    namespace = view.pool.namespace
    if view.slices_of:
        text = f"there is no EndpointSlice of Service {view.slices_of!r} in namespace {namespace}"
        return Finding("NoEndpoints", f"{text}; --endpoint-slices names it", transient=True)
    labels = ", ".join(f"{name}={value}" for name, value in sorted((_selector(result) or {}).items())) or "any labels"
    text = f"spec.selector: no pod of namespace {namespace} has {labels}; the labels of the model servers are expected"
    return Finding("NoEndpoints", text, transient=True)


Selector: TypeAlias = Mapping[str, str]
PodsByLabel: TypeAlias = Mapping[tuple[str, str], Set[ObjectId]]


def _pods_shared(result: ResourceResult, view: PoolView) -> Generator[None, None, Finding | None]:
    """An older pool of the namespace, whoever serves it, selects pods of this one too. The oldest one is reported."""
    if not view.selected or view.slices_of:
        return None
    older = yield from _older_pools(result, view)
    pods = yield from _pods_by_label(view.selected, older)
    oldest_first: list[tuple[tuple[str, ObjectId], int, ResourceResult, Selector]] = []
    for at, (other, selector) in enumerate(older):
        yield
        if selector.items() <= pods.keys():
            heappush(oldest_first, (_age(other), at, other, selector))  # sorting all would take too long for a step
    while oldest_first:
        _, _, other, selector = heappop(oldest_first)
        shared = yield from _selected_by(selector, pods, view.selected.keys())
        if shared:
            text = f"spec.selector: it selects pods that InferencePool {'/'.join(other.id)} selects too"
            hint = "labels that only its own model servers have are expected"
            example = f"({len(shared)} of them, such as {min(shared)[1]})"
            return Finding("PodClaimedTwice", f"{text}; {hint}", example, transient=True)
    return None


def _older_pools(
    result: ResourceResult, view: PoolView
) -> Generator[None, None, Sequence[tuple[ResourceResult, Selector]]]:
    """Those that compete with this one, with their selectors."""
    age, older = _age(result), list[tuple[ResourceResult, Selector]]()
    for other in view.results:
        yield
        selector = _selector(other)
        if selector is not None and _competes(other) and other.id[1] != result.id[1] and _age(other) < age:
            older.append((other, selector))
    return older


def _pods_by_label(
    selected: Mapping[ObjectId, JsonObject], older: Sequence[tuple[ResourceResult, Selector]]
) -> Generator[None, None, PodsByLabel]:
    """The pods that have a label of some pool's selector, by that label."""
    wanted: set[tuple[str, str]] = set()
    for _, selector in older:
        yield
        wanted.update(selector.items())
    found: dict[tuple[str, str], set[ObjectId]] = {}
    for id, pod in selected.items() if wanted else ():
        yield
        for label in wanted.intersection(_labels(pod)):
            found.setdefault(label, set()).add(id)
    return found


def _selected_by(selector: Selector, pods: PodsByLabel, every: Set[ObjectId]) -> Generator[None, None, Set[ObjectId]]:
    """The pods with all labels of the selector. To begin with the rarest label makes it cheap."""
    having = sorted((pods[label] for label in selector.items()), key=len)
    shared = having[0] if having else every
    for others in having[1:]:
        yield
        shared = shared & others
        if not shared:
            break
    yield
    return shared


def _competes(result: ResourceResult) -> bool:
    """Whether it is a pool that counts and isn't being deleted."""
    return result.kind == POOL and not result.shadowed_by and not result.item["metadata"].get("deletionTimestamp")


def _age(result: ResourceResult) -> tuple[str, ObjectId]:
    """Sorts the older of two pools first; by name if they were created in the same second."""
    return str(result.item["metadata"].get("creationTimestamp") or ""), result.id


def _labels(item: JsonObject) -> Iterator[tuple[str, str]]:
    labels = item["metadata"].get("labels")
    found = labels.items() if isinstance(labels, Mapping) else ()
    return (label for label in found if isinstance(label[1], str))


def _selector(result: ResourceResult) -> Selector | None:
    """The labels that a pool of any version selects; None if its selector is invalid."""
    spec = result.item.get("spec")
    selector = spec.get("selector") if isinstance(spec, Mapping) else None
    if result.resource.kind.version == "v1" and isinstance(selector, Mapping):
        selector = selector.get("matchLabels")
    valid = isinstance(selector, Mapping) and all(isinstance(value, str) for value in selector.values())
    return selector if valid else None
