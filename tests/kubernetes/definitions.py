"""Definitions of the custom resources that tests install, as small as they need them: names, fields, bounds and
defaults as in the real ones, and no others."""

from collections.abc import Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]
Definition: TypeAlias = dict[str, Any]

STABLE, EXPERIMENTAL, LLMD = "inference.networking.k8s.io", "inference.networking.x-k8s.io", "llm-d.ai"
GATEWAY = "gateway.networking.k8s.io"
STRING: Schema = {"type": "string"}
PORT: Schema = {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535}
WEIGHT: Schema = {"type": "integer", "format": "int32", "minimum": 1, "maximum": 1000000}
ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
ANYTHING: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def text(longest: int = 253, shortest: int = 1) -> Schema:
    return {"type": "string", "minLength": shortest, "maxLength": longest}


def word(*words: str, **more: Any) -> Schema:
    return {"type": "string", "enum": list(words), **more}


def fields(required: str = "", /, **properties: Schema) -> Schema:
    """An object; `required` names fields that can't be left out."""
    return {"type": "object", "properties": properties, **({"required": required.split()} if required else {})}


def several(items: Schema, most: int = 0, least: int = 0, **more: Any) -> Schema:
    return {"type": "array", "items": items, **({"maxItems": most} if most else {}), "minItems": least, **more}


def mapping(**values: Any) -> Schema:
    return {"type": "object", "additionalProperties": {"type": "string", **values}}


def checked(schema: Schema, rule: str) -> Schema:
    return {**schema, "x-kubernetes-validations": [{"rule": rule}]}


def reference(group: str, kind: str, **more: Schema) -> Schema:
    """To another object; these are the defaults."""
    named = {"group": {**text(shortest=0), "default": group}, "kind": {**text(63), "default": kind}, "name": text()}
    return fields("name", **named, **more)


def conditions(pending: str = "") -> Schema:
    """A list of them; `pending` is the type of the one that is there from the beginning."""
    one = fields(
        "type status reason message lastTransitionTime",
        type=text(316, 0),
        status=word("True", "False", "Unknown"),
        reason=text(1024),
        message=text(32768, 0),
        lastTransitionTime={"type": "string", "format": "date-time"},
        observedGeneration={"type": "integer", "format": "int64", "minimum": 0},
    )
    as_map: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    if pending:
        as_map["default"] = _pending(pending)
    return several(one, 8, **as_map)


def _pending(kind: str) -> list[dict[str, str]]:
    pending = {"reason": "Pending", "message": "Waiting for controller", "lastTransitionTime": "1970-01-01T00:00:00Z"}
    return [{"type": kind, "status": "Unknown", **pending}]


def definition(
    group: str,
    version: str,
    kind: str,
    spec: Schema,
    status: Schema | None = None,
    required: str = "spec",
    short: str = "",
) -> Definition:
    plural = kind.lower().replace("policy", "policie") + "s"
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    schema = fields(required, apiVersion=STRING, kind=STRING, metadata={"type": "object"}, spec=spec)
    served: dict[str, Any] = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    if status is not None:
        schema["properties"]["status"] = status
        served["subresources"] = {"status": {}}
    metadata: dict[str, Any] = {"name": f"{plural}.{group}"}
    if group.endswith(".k8s.io"):  # a protected group: the API server wants to be told who approved
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, only for tests"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": group,
            "names": {**names, "shortNames": [short] if short else []},
            "scope": "Namespaced",
            "versions": [served],
        },
    }


def loosened(found: Definition) -> Definition:
    """One that takes any `spec`, as older definitions may."""
    (version,) = found["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    loose = {**schema, "properties": {**schema["properties"], "spec": ANYTHING}}
    return {**found, "spec": {**found["spec"], "versions": [{**version, "schema": {"openAPIV3Schema": loose}}]}}


def _pool() -> Definition:
    ports = several(fields("number", number=PORT), 8, 1, **ATOMIC)
    picker = reference("", "Service", port=fields("number", number=PORT), failureMode=FAILURE_MODE)
    labels = {**mapping(maxLength=63), "minProperties": 1, "maxProperties": 64}
    spec = fields(
        "selector targetPorts",
        selector=fields("matchLabels", matchLabels=labels),
        targetPorts=checked(ports, "self.all(one, self.exists_one(other, one.number == other.number))"),
        appProtocol=word("http", "kubernetes.io/h2c", default="http"),
        endpointPickerRef=checked(picker, "self.kind != 'Service' || has(self.port)"),
    )
    parent = {"parentRef": PARENT, "controllerName": text(), "conditions": conditions()}
    status = fields(parents=several(fields("parentRef", **parent), 32, **ATOMIC))
    return definition(STABLE, "v1", "InferencePool", spec, status, short="infpool")


def _former_pool() -> Definition:
    spec = fields(
        "selector targetPortNumber extensionRef",
        selector=mapping(maxLength=63),
        targetPortNumber=PORT,
        extensionRef=reference("", "Service", portNumber=PORT, failureMode=FAILURE_MODE),
    )
    parents = several(fields("parentRef", parentRef=PARENT, conditions=conditions("Accepted")), 32)
    # A new pool has no status; the first one that is written gets this beside it unless it names parents.
    none = {"parentRef": {"kind": "Status", "name": "default"}, "conditions": _pending("Accepted")}
    status = {**fields(parent=parents), "default": {"parent": [none]}}
    return definition(EXPERIMENTAL, "v1alpha2", "InferencePool", spec, status, "", "xinfpool")


FAILURE_MODE = word("FailOpen", "FailClose", default="FailClose")
PARENT = reference(GATEWAY, "Gateway", namespace=text(63))


def _referring(group: str, kind: str, required: str, pending: str, /, pool: str = STABLE, **more: Schema) -> Definition:
    spec = fields(f"poolRef {required}", poolRef=reference(pool, "InferencePool"), **more)
    return definition(group, "v1alpha2", kind, spec, fields(conditions=conditions(pending)), "")


_MATCH = fields("model", model=fields("value", type=word("Exact", default="Exact"), value={**STRING, "minLength": 1}))
_TARGETS = several(fields("modelRewrite", weight=WEIGHT, modelRewrite=STRING), least=1)
CRDS = (
    _pool(),
    _former_pool(),
    *(
        made
        for group in (EXPERIMENTAL, LLMD)
        for made in (
            _referring(group, "InferenceObjective", "", "Ready", priority={"type": "integer", "format": "int32"}),
            _referring(
                group,
                "InferenceModelRewrite",
                "rules",
                "Accepted",
                rules=several(fields(matches=several(_MATCH), targets=_TARGETS)),
            ),
        )
    ),
    _referring(
        EXPERIMENTAL,
        "InferenceModel",
        "modelName",
        "Ready",
        pool=EXPERIMENTAL,
        modelName=checked(text(256, 0), "self == oldSelf"),
        criticality=word("Critical", "Standard", "Sheddable"),
        targetModels=checked(
            several(fields("name", name=text(shortest=0), weight=WEIGHT), 10),
            "self.all(one, has(one.weight)) || self.all(one, !has(one.weight))",
        ),
    ),
)
"""Every resource that Pointsman reads."""


def kinds(found: tuple[Definition, ...]) -> Mapping[str, Definition]:
    """By the kinds' plural and group, as they are named."""
    return {item["metadata"]["name"]: item for item in found}


# Of kinds that deploy/kubernetes uses, its fields alone.
_TLS = fields(
    mode=word("DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL"), insecureSkipVerify={"type": "boolean", "nullable": True}
)
_LISTENER = fields("name port protocol", name=text(), port=PORT, protocol=text(255))
_TARGET = fields("group kind name", group=text(shortest=0), kind=text(63), name=text())
_SECONDS: Schema = {"type": "integer", "minimum": 1, "maximum": 2147483647}
_CHECK = fields(
    "type",
    type=word("TCP", "HTTP", "HTTPS", "HTTP2", "GRPC"),
    httpHealthCheck=fields(port=PORT, requestPath=text(2048, 0)),
)
_PATH = fields(
    type=word("Exact", "PathPrefix", "RegularExpression", default="PathPrefix"),
    value={**text(1024, 0), "default": "/"},
)
_RULE = fields(
    matches=several(fields(path=_PATH)),
    backendRefs=several(reference("", "Service"), 16),
    timeouts=fields(request={**STRING, "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}),
)
_INTERVAL = "".join(f"(([0-9]+){unit})?" for unit in ("y", "w", "d", "h", "m", "s", "ms"))
_DURATION: Schema = {**STRING, "pattern": f"^(0|{_INTERVAL})$"}
_ENDPOINT = fields(port=STRING, path=STRING, interval=_DURATION, honorLabels={"type": "boolean"})
_ALERT = fields("expr", alert=STRING, expr=STRING, **{"for": _DURATION}, labels=mapping(), annotations=mapping())
_SPECS: dict[tuple[str, str], Schema] = {
    ("networking.istio.io", "DestinationRule"): fields("host", host=STRING, trafficPolicy=fields(tls=_TLS)),
    (GATEWAY, "Gateway"): fields(
        "gatewayClassName listeners", gatewayClassName=text(), listeners=several(_LISTENER, 64, 1)
    ),
    (GATEWAY, "HTTPRoute"): fields(parentRefs=several(reference(GATEWAY, "Gateway"), 32), rules=several(_RULE, 16)),
    ("networking.gke.io", "GCPBackendPolicy"): fields(
        "targetRef", targetRef=_TARGET, default=fields(timeoutSec=_SECONDS)
    ),
    ("networking.gke.io", "HealthCheckPolicy"): fields("targetRef", targetRef=_TARGET, default=fields(config=_CHECK)),
    ("monitoring.coreos.com", "ServiceMonitor"): fields(
        "endpoints selector",
        selector=fields(matchLabels=mapping()),
        podTargetLabels=several(STRING),
        endpoints=several(_ENDPOINT),
    ),
    ("monitoring.coreos.com", "PrometheusRule"): fields(
        groups=several(fields("name", name=text(shortest=1), rules=several(_ALERT)))
    ),
}
GATEWAYS = tuple(definition(group, "v1", kind, spec) for (group, kind), spec in _SPECS.items())
