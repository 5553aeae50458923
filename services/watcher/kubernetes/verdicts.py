"""What is to be said of each resource that a watcher reads: whether it is accepted, and what is wrong with it. Pure.

A resource that refers to a pool is spoken of by the watcher that serves this pool, and by no other: somebody else's
picker may serve the others. Only where there is no pool of the name at all, nobody else can say so.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from services.watcher.kubernetes.resource import JsonObject, ObjectId, Resource, identity
from services.watcher.resources import PoolId, group_of, pool_reference
from services.watcher.sources import Rejected, Reset
from shared.config.problems import Problem
from shared.model import Model

POOL = "InferencePool"
ACCEPTED = "Accepted"
"""The one condition that the API defines for what refers to a pool."""


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
    last_good: Reset | None = None
    """What it came to when it was good last; that holds while it is refused."""

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
    selected: Mapping[ObjectId, JsonObject] | None = None
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
    groups = {id(view): _groups_of_pools(view) for view in views}
    found = [
        _pool_verdict(reading, view) if reading.kind == POOL else _verdict(reading, view, groups[id(view)], in_use)
        for reading, view in best.values()
    ]
    found += [_configuration_verdict(one) for one in _configurations(views)]
    return tuple(found)


def _verdict(
    reading: Reading, view: PoolView, groups: Mapping[str, Sequence[str]], in_use: Mapping[str, tuple[Reading, Model]]
) -> Verdict:
    """Of a resource that refers to a pool. `groups` has the API groups in which there are pools of a name."""
    missing = _missing_pool(reading, view, groups)
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


def _pool_verdict(reading: Reading, view: PoolView) -> Verdict:
    if isinstance(reading.outcome, str) or reading.shadowed_by:
        return _say(reading, None)
    if isinstance(reading.outcome, Rejected):
        return _say(reading, None, _refused(reading.outcome.problems))
    return _say(reading, None, _without_endpoints(reading, view), _claimed_twice(reading, view))


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


def _groups_of_pools(view: PoolView) -> Mapping[str, Sequence[str]]:
    """By a pool's name, the API groups that have one."""
    found: dict[str, set[str]] = {}
    for one in view.readings:
        if one.kind == POOL:
            found.setdefault(one.id[1], set()).add(one.resource.kind.group)
    return {name: sorted(groups) for name, groups in found.items()}


def _missing_pool(reading: Reading, view: PoolView, groups: Mapping[str, Sequence[str]]) -> Finding | None:
    """There is no pool for it, whoever would serve that."""
    reference = pool_reference(reading.item)
    name = reference.get("name")
    if not isinstance(name, str):
        return None
    if name in (view.pools or ()):
        return _missing_in_group(reading, groups.get(name, ()), name)
    text = f"spec.poolRef.name: there is no InferencePool {name!r} in namespace {reading.id[0]}"
    return Finding("PoolNotFound", f"{text}; the name of one in the same namespace is expected", patient=True)


def _missing_in_group(reading: Reading, groups: Sequence[str], name: str) -> Finding | None:
    """There are pools of the name, and not in the API group that it refers to."""
    group = group_of(reading.kind, pool_reference(reading.item))
    if group is None or not groups or group in groups:
        return None
    text = f"spec.poolRef.group: InferencePool {name!r} of namespace {reading.id[0]} isn't in {group}"
    return Finding("PoolNotFound", f"{text}; {' or '.join(groups)}, where it is, is expected", patient=True)


def _names_in_use(readings: Iterable[Reading]) -> dict[str, tuple[Reading, Model]]:
    """The InferenceModel that has a model's name: the oldest, as the API defines it. By namespace, pool and name. One
    that is refused has the name that it had when it was good last: that is what is published."""
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
        holds = reading.last_good if isinstance(reading.outcome, Rejected) else reading.outcome
        if isinstance(holds, Reset) and not reading.shadowed_by:
            for one in holds.documents.resources:
                if isinstance(one, Model):
                    yield reading, one


def _name_key(reading: Reading, model: Model) -> str:
    return f"{reading.id[0]}/{pool_reference(reading.item).get('name')}/{model.model_name}"


def _without_endpoints(reading: Reading, view: PoolView) -> Finding | None:
    if view.selected is None or view.selected:
        return None
    namespace = view.pool.namespace
    if view.slices_of:
        text = f"there is no EndpointSlice of Service {view.slices_of!r} in namespace {namespace}"
        return Finding("NoEndpoints", f"{text}; --endpoint-slices names it", patient=True)
    wanted = ", ".join(f"{name}={value}" for name, value in sorted((_selector(reading) or {}).items())) or "any labels"
    text = f"spec.selector: no pod of namespace {namespace} has {wanted}; the labels of the model servers are expected"
    return Finding("NoEndpoints", text, patient=True)


def _claimed_twice(reading: Reading, view: PoolView) -> Finding | None:
    """An older pool of the namespace, whoever serves that, selects pods of this one too."""
    if not view.selected or view.slices_of:
        return None
    ours = _age(reading)
    older = [one for one in view.readings if _claims(one) and one.id[1] != reading.id[1] and _age(one) < ours]
    for other in sorted(older, key=_age):
        theirs = _selector(other)
        if theirs is None:
            continue
        both = [id for id, pod in view.selected.items() if theirs.items() <= _labels(pod).items()]
        if both:
            text = f"spec.selector: it selects pods that InferencePool {'/'.join(other.id)} selects too"
            hint = "labels that only its own model servers have are expected"
            example = f"({len(both)} of them, such as {min(both)[1]})"
            return Finding("PodClaimedTwice", f"{text}; {hint}", example, patient=True)
    return None


def _claims(reading: Reading) -> bool:
    """Whether it is a pool that is there to stay."""
    return reading.kind == POOL and not reading.shadowed_by and not reading.item["metadata"].get("deletionTimestamp")


def _age(reading: Reading) -> tuple[str, ObjectId]:
    """What tells the older of two pools: its creation, and of two of one second its name."""
    return str(reading.item["metadata"].get("creationTimestamp") or ""), reading.id


def _labels(item: JsonObject) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def _selector(reading: Reading) -> Mapping[str, str] | None:
    """The labels that a pool selects by, in any version; None where what is there is no such thing."""
    spec = reading.item.get("spec")
    selector = spec.get("selector") if isinstance(spec, Mapping) else None
    if reading.resource.kind.version == "v1" and isinstance(selector, Mapping):
        selector = selector.get("matchLabels")
    return selector if isinstance(selector, Mapping) else None


def _configurations(views: Iterable[PoolView]) -> Iterable[Reading]:
    """Each ConfigMap once, though several pools may have it."""
    return {one.configuration.id: one.configuration for one in views if one.configuration is not None}.values()
