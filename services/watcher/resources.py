"""The resources of the Gateway API Inference Extension: InferencePool, InferenceObjective, InferenceModelRewrite and
InferenceModel become the facts of `shared.model`.

A resource is accepted as by a Kubernetes API server with the resources' definitions, in each version that they had. An
unknown field of a `spec` is an error, because nothing else checks files. `metadata` and `status` aren't checked.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from shared.bus.publishable import fault
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems, join, nearest, show
from shared.model import Criticality, FailureMode, Model, ModelRewrite, Objective, Pool, RewriteRule, Target

GROUPS = ("inference.networking.k8s.io", "inference.networking.x-k8s.io", "llm-d.ai")
"""API groups of the resources: the stable one, the experimental one, and llm-d's own."""

MAX_TARGET_PORTS = 8
MAX_TARGET_MODELS = 10
MAX_WEIGHT = 1_000_000
MAX_MODEL_NAME = 256

Resource = Pool | Objective | ModelRewrite | Model

_Port = Annotated[int, Meta(ge=1, le=65535)]
_Weight = Annotated[int, Meta(ge=1, le=MAX_WEIGHT)]
_Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_Text = Annotated[str, Meta(min_length=1)]


class PoolId(Struct, frozen=True):
    """Namespace and name of an InferencePool."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ReadResource(Struct, frozen=True):
    """A resource, or why a valid one isn't for the pool."""

    resource: Resource | None = None
    ignored: str = ""


class _PoolRef(Struct, frozen=True, rename="camel"):
    name: _Text
    group: Literal["inference.networking.k8s.io", "inference.networking.x-k8s.io", "llm-d.ai"] = (
        "inference.networking.k8s.io"
    )
    kind: Literal["InferencePool"] = "InferencePool"


class _PortNumber(Struct, frozen=True, rename="camel"):
    number: _Port


class _Selector(Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str] = {}


class _EndpointPickerRef(Struct, frozen=True, rename="camel"):
    name: _Text
    group: str = ""
    kind: str = "Service"
    port: _PortNumber | None = None
    failure_mode: FailureMode = FailureMode.FAIL_CLOSE


class _PoolSpec(Struct, frozen=True, rename="camel"):
    """InferencePool v1. Selector and ports are optional: only Kubernetes uses them."""

    selector: _Selector = _Selector()
    target_ports: tuple[_PortNumber, ...] = ()
    app_protocol: Literal["", "http", "kubernetes.io/h2c"] = ""
    endpoint_picker_ref: _EndpointPickerRef | None = None


class _ExtensionRef(Struct, frozen=True, rename="camel"):
    name: _Text
    group: str = ""
    kind: str = "Service"
    port_number: _Port = 9002
    target_port_number: _Port | None = None
    failure_mode: FailureMode = FailureMode.FAIL_CLOSE


class _AlphaPoolSpec(Struct, frozen=True, rename="camel"):
    """InferencePool v1alpha1 and v1alpha2. In v1alpha1, the target port may be in the extension reference."""

    selector: dict[str, str] = {}
    target_port_number: _Port | None = None
    extension_ref: _ExtensionRef | None = None


class _ObjectiveSpec(Struct, frozen=True, rename="camel"):
    pool_ref: _PoolRef
    priority: _Int32 = 0


class _ModelMatch(Struct, frozen=True, rename="camel"):
    value: _Text
    type: Literal["Exact"] = "Exact"


class _Match(Struct, frozen=True, rename="camel"):
    model: _ModelMatch | None = None


class _RewriteTarget(Struct, frozen=True, rename="camel"):
    model_rewrite: _Text
    weight: _Weight | None = None


class _Rule(Struct, frozen=True, rename="camel"):
    targets: tuple[_RewriteTarget, ...]
    matches: tuple[_Match, ...] = ()


class _RewriteSpec(Struct, frozen=True, rename="camel"):
    pool_ref: _PoolRef
    rules: tuple[_Rule, ...] = ()


class _TargetModel(Struct, frozen=True, rename="camel"):
    name: _Text
    weight: _Weight | None = None


class _ModelSpec(Struct, frozen=True, rename="camel"):
    pool_ref: _PoolRef
    model_name: _Text
    criticality: Criticality = Criticality.STANDARD
    target_models: tuple[_TargetModel, ...] = ()


class _Metadata(Struct, frozen=True):
    name: str
    namespace: str
    created: float
    """Unix seconds; 0 if unknown."""


_Build = Callable[[_Metadata, Any, str, Problems], Resource]


class _Kind(Struct, frozen=True):
    specs: dict[str, type[Struct]]
    """By version."""
    build: _Build
    fact: str = ""
    """The kind in keys on the bus; empty for the pool."""


def _pool(metadata: _Metadata, spec: _PoolSpec | _AlphaPoolSpec, path: str, problems: Problems) -> Pool:
    if isinstance(spec, _AlphaPoolSpec):
        reference = spec.extension_ref
        port = spec.target_port_number or (reference.target_port_number if reference else None)
        return Pool(
            name=metadata.name,
            namespace=metadata.namespace,
            selector=spec.selector,
            target_ports=(port,) if port else (),
            failure_mode=reference.failure_mode if reference else FailureMode.FAIL_CLOSE,
        )
    ports = tuple(port.number for port in spec.target_ports)
    at = join(path, "targetPorts")
    if len(ports) > MAX_TARGET_PORTS:
        problems.error(at, f"{len(ports)} ports; at most {MAX_TARGET_PORTS} are allowed")
    for index, port in enumerate(ports[:MAX_TARGET_PORTS]):
        if port in ports[:index]:
            problems.error(join(at, index), f"port {port} is given twice")
    return Pool(
        name=metadata.name,
        namespace=metadata.namespace,
        selector=spec.selector.match_labels,
        target_ports=ports,
        app_protocol=spec.app_protocol,
        failure_mode=spec.endpoint_picker_ref.failure_mode if spec.endpoint_picker_ref else FailureMode.FAIL_CLOSE,
    )


def _objective(metadata: _Metadata, spec: _ObjectiveSpec, path: str, problems: Problems) -> Objective:
    return Objective(name=metadata.name, priority=spec.priority)


def _rewrite(metadata: _Metadata, spec: _RewriteSpec, path: str, problems: Problems) -> ModelRewrite:
    rules: list[RewriteRule] = []
    for index, rule in enumerate(spec.rules):
        at = join(join(path, "rules"), index)
        if not rule.targets:
            problems.error(join(at, "targets"), "empty; at least one model is expected")
        models = tuple(match.model.value for match in rule.matches if match.model)
        if rule.matches and not models:
            # Without matches, the rule would apply to every model.
            problems.warn(join(at, "matches"), "no match names a model, so the rule is never used")
            continue
        targets = tuple(Target(model=target.model_rewrite, weight=target.weight) for target in rule.targets)
        rules.append(RewriteRule(models=models, targets=targets))
    return ModelRewrite(name=metadata.name, created=metadata.created, rules=tuple(rules))


def _model(metadata: _Metadata, spec: _ModelSpec, path: str, problems: Problems) -> Model:
    if len(spec.model_name) > MAX_MODEL_NAME:
        problems.error(
            join(path, "modelName"), f"{len(spec.model_name)} characters; at most {MAX_MODEL_NAME} are allowed"
        )
    at = join(path, "targetModels")
    if len(spec.target_models) > MAX_TARGET_MODELS:
        problems.error(at, f"{len(spec.target_models)} models; at most {MAX_TARGET_MODELS} are allowed")
    weighted = [target.weight is not None for target in spec.target_models]
    if any(weighted) and not all(weighted):
        bare = weighted.index(False)
        problems.error(join(join(at, bare), "weight"), "missing, where others have one; all or none have a weight")
    return Model(
        name=metadata.name,
        model_name=spec.model_name,
        criticality=spec.criticality,
        targets=tuple(Target(model=target.name, weight=target.weight) for target in spec.target_models),
        created=metadata.created,
    )


KINDS: Mapping[str, _Kind] = {
    "InferencePool": _Kind({"v1": _PoolSpec, "v1alpha2": _AlphaPoolSpec, "v1alpha1": _AlphaPoolSpec}, _pool),
    "InferenceObjective": _Kind({"v1": _ObjectiveSpec, "v1alpha2": _ObjectiveSpec}, _objective, "objective"),
    "InferenceModelRewrite": _Kind({"v1": _RewriteSpec, "v1alpha2": _RewriteSpec}, _rewrite, "rewrite"),
    "InferenceModel": _Kind({"v1alpha2": _ModelSpec, "v1alpha1": _ModelSpec}, _model, "model"),
}
"""By kind, with all versions."""
_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")


def fact_of(kind: str, name: str) -> tuple[str, str]:
    """Kind and name of a resource's fact, as in keys on the bus; empty for a pool."""
    word = KINDS[kind].fact
    return (word, name) if word else ("", "")


def pool_reference(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """The unchecked `poolRef` of a resource; empty if there is none."""
    spec = item.get("spec")
    reference = spec.get("poolRef") if isinstance(spec, Mapping) else None
    return reference if isinstance(reference, Mapping) else {}


def group_of(kind: str, reference: Mapping[str, Any]) -> str | None:
    """The API group that a `poolRef` refers to; None if that is unknown. For an InferenceModel it is: its definition
    fills in the experimental group, which had the only pool when there were models."""
    group = reference.get("group")
    if kind == "InferenceModel" or not isinstance(group, str | None):
        return None
    return group or GROUPS[0]


def read_resource(
    raw: Mapping[str, Any], kind: str, path: str, problems: Problems, pool: PoolId | None
) -> ReadResource:
    """Read a document of one of `KINDS`. Problems are added under `path`.

    A resource without a namespace is in the pool's. With `pool`, a resource of another pool is ignored.
    """
    before = len(problems.errors)
    known = KINDS[kind]
    spec_type = _spec_type(raw.get("apiVersion"), known, join(path, "apiVersion"), problems)
    for key in raw:
        if key not in _FIELDS:
            hint = nearest(str(key), _FIELDS) or f"; known: {', '.join(_FIELDS)}"
            problems.error(join(path, str(key)), f"unknown field{hint}")
    metadata = _read_metadata(raw.get("metadata"), join(path, "metadata"), problems, pool)
    if "spec" not in raw:
        problems.error(join(path, "spec"), "required, and missing")
    spec_path = join(path, "spec")
    spec = decode(raw["spec"], spec_type, spec_path, problems) if spec_type and "spec" in raw else MISSING
    if metadata is None or spec is MISSING:
        return ReadResource()
    resource = known.build(metadata, spec, spec_path, problems)
    if reason := fault(resource):
        problems.error(path, reason)
    if len(problems.errors) > before:
        return ReadResource()
    if pool and (reason := _foreign(resource, metadata, spec, pool)):
        return ReadResource(ignored=f"{kind} {metadata.namespace}/{metadata.name}: {reason}")
    return ReadResource(resource)


def _foreign(resource: Resource, metadata: _Metadata, spec: Any, pool: PoolId) -> str:
    if isinstance(resource, Pool):
        return "" if (metadata.namespace, metadata.name) == (pool.namespace, pool.name) else f"{pool} is served"
    if metadata.namespace != pool.namespace:
        return f"pool {pool} is in another namespace"
    return "" if spec.pool_ref.name == pool.name else f"for pool {spec.pool_ref.name!r}, and {pool} is served"


def _spec_type(version: object, kind: _Kind, path: str, problems: Problems) -> type[Struct] | None:
    if version is None:
        problems.error(path, "required, and missing")
        return None
    group, slash, number = version.partition("/") if isinstance(version, str) else ("", "", "")
    if not slash or group not in GROUPS:
        groups = " or ".join(GROUPS)
        problems.error(
            path, f"{show(version)} isn't an API version of this resource; a version of {groups} is expected"
        )
    elif number not in kind.specs:
        problems.error(path, f"{show(version)} isn't known; {', '.join(kind.specs)} are")
    return kind.specs.get(number)


def read_names(raw: object, path: str, problems: Problems, namespace: str = "") -> dict[str, str] | None:
    """The `name` and `namespace` of a `metadata`; None if they have problems, which are added under `path`."""
    if not isinstance(raw, Mapping):
        problems.error(path, "required, and missing" if raw is None else f"{show(raw)} isn't a mapping")
        return None
    before = len(problems.errors)
    names = {"name": "", "namespace": namespace}
    for field in names:
        value = raw.get(field)
        if isinstance(value, str) and value:
            names[field] = value
        elif value is not None:
            problems.error(join(path, field), f"{show(value)} isn't a name; a string is expected")
        elif field == "name":
            problems.error(join(path, field), "required, and missing")
    return None if len(problems.errors) > before else names


def _read_metadata(raw: object, path: str, problems: Problems, pool: PoolId | None) -> _Metadata | None:
    before = len(problems.errors)
    names = read_names(raw, path, problems, pool.namespace if pool else "default")
    created = raw.get("creationTimestamp") if isinstance(raw, Mapping) else None
    at = _read_time(created, join(path, "creationTimestamp"), problems)
    return None if names is None or len(problems.errors) > before else _Metadata(**names, created=at)


def _read_time(raw: object, path: str, problems: Problems) -> float:
    """Unix seconds of an RFC 3339 time, which YAML may have parsed; 0 if there is none."""
    if raw is None:
        return 0.0
    try:
        if isinstance(raw, datetime):
            moment = raw
        elif isinstance(raw, date):
            moment = datetime(raw.year, raw.month, raw.day)
        elif isinstance(raw, str):
            moment = datetime.fromisoformat(raw)
        else:
            raise ValueError("not a time")
    except ValueError:
        problems.error(path, f"{show(raw)} isn't a time such as 2026-08-01T12:00:00Z")
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
