"""The domain: endpoints, their pool, and the resources that steer its traffic.

Every struct is a fact on the bus (`shared.bus`): its tag names kind and version, and readers ignore unknown fields.
Resources follow the Gateway API Inference Extension (InferencePool v1, InferenceObjective, InferenceModelRewrite and
InferenceModel v1alpha2), as far as a tier reads them.
"""

from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import TypeAlias

from msgspec import Struct

ROLE = "llm-d.ai/role"
"""The label with an endpoint's part in disaggregated serving."""
HELPERS = frozenset(("prefill", "encode", "encode-prefill"))
"""Roles of servers that other servers ask, and no client."""
DRAIN = "pointsman/drain"
"""The label of an endpoint, or annotation of its pod, that drains it: with any value but `false`."""


def drains(marks: Mapping[str, str]) -> bool:
    """Whether labels or annotations drain an endpoint."""
    return marks.get(DRAIN, "false") != "false"


class Endpoint(Struct, frozen=True, kw_only=True, tag="endpoint/1"):
    """One model server port that can take a request: a pod's port, or one rank of a data-parallel pod."""

    id: str
    """Names namespace, pod and port or rank; unique in its pool, and stable for as long as it is the same server."""
    name: str
    namespace: str = "default"
    address: str
    """An IP address: Envoy can't resolve names, so the watcher has done it."""
    port: int
    labels: dict[str, str] = {}
    metrics_host: str = ""
    """`address:port` of the metrics page where it isn't the serving port; a source's own `port` goes before it."""
    host: str = ""
    """The host name that `address` was resolved from, or empty."""
    rank: int = 0
    node: str = ""
    """Name of the node that it runs on, where that is known."""
    node_address: str = ""
    """Address of that node: where exporters of the node, such as NVIDIA's DCGM exporter, answer."""
    uid: str = ""
    """Tells a server from an earlier one of the same name and address, as a pod's UID does; may be empty."""
    draining: bool = False
    """Whether its requests finish and it gets no new ones."""

    @property
    def authority(self) -> str:
        """`address:port`, as the destination header and Envoy's `upstream.address` spell it; IPv6 in brackets."""
        return join_host_port(self.address, self.port)

    @property
    def pod_name(self) -> str:
        """The name without its rank, which a watcher adds to the name of a pod."""
        return self.name.removesuffix(f"-rank-{self.rank}")


class FailureMode(StrEnum):
    """What a gateway does with a request when no picker answers (InferencePool `endpointPickerRef.failureMode`)."""

    FAIL_CLOSE = "FailClose"
    FAIL_OPEN = "FailOpen"


class Pool(Struct, frozen=True, kw_only=True, tag="pool/1"):
    """An InferencePool: the endpoints that serve the same models, and are picked from together."""

    name: str
    namespace: str = "default"
    selector: dict[str, str] = {}
    target_ports: tuple[int, ...] = ()
    app_protocol: str = ""
    """`http` or `kubernetes.io/h2c`; empty means no constraint."""
    failure_mode: FailureMode = FailureMode.FAIL_CLOSE


class Objective(Struct, frozen=True, kw_only=True, tag="objective/1"):
    """An InferenceObjective: a name that requests give in a header, and the priority that it stands for."""

    name: str
    priority: int = 0
    """Higher is more important; a negative one may be shed when the pool is saturated."""


class Target(Struct, frozen=True, kw_only=True):
    """Where a rewrite or a traffic split leads: a model name, and its share among its siblings."""

    model: str
    weight: int | None = None


class RewriteRule(Struct, frozen=True, kw_only=True):
    """Requests for one of `models` go to one of `targets`; no models means every model."""

    models: tuple[str, ...] = ()
    targets: tuple[Target, ...]


class ModelRewrite(Struct, frozen=True, kw_only=True, tag="rewrite/1"):
    """An InferenceModelRewrite. Among rules that match equally well the oldest resource's comes first."""

    name: str
    created: float = 0.0
    """Unix seconds."""
    rules: tuple[RewriteRule, ...]


class Criticality(StrEnum):
    """InferenceModel `spec.criticality`."""

    CRITICAL = "Critical"
    STANDARD = "Standard"
    SHEDDABLE = "Sheddable"


class Model(Struct, frozen=True, kw_only=True, tag="model/1"):
    """An InferenceModel: a model name that clients ask for, how much it matters, and the models that serve it."""

    name: str
    model_name: str
    criticality: Criticality = Criticality.STANDARD
    targets: tuple[Target, ...] = ()
    created: float = 0.0
    """Unix seconds; of two resources for one model name the older one holds."""


class Configuration(Struct, frozen=True, kw_only=True, tag="config/1"):
    """An EndpointPickerConfig as it was written: every tier parses it with its own plugins."""

    text: str
    origin: str = ""
    """Where it was read, for messages: a file, a ConfigMap's key."""


SHOWN_ADDRESS = 80
"""Characters of an invalid address in messages."""

Fact: TypeAlias = Endpoint | Pool | Objective | ModelRewrite | Model | Configuration


def unusable_address(endpoint: Endpoint) -> str | None:
    """The first address of an endpoint that can't be part of a request, with its field; None if all can."""
    if _is_plain(f"{endpoint.address}{endpoint.host}{endpoint.metrics_host}{endpoint.node_address}"):
        return None
    for field in ("address", "host", "metrics_host", "node_address"):
        if not _is_plain(text := getattr(endpoint, field)):
            return f"{field}: {text[:SHOWN_ADDRESS]!r} isn't an address: it has characters that none has"
    return None


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def entries_of(fact: Fact) -> int:
    """How many entries a fact's lists and maps have."""
    match fact:
        case Endpoint(labels=labels):
            return len(labels)
        case Pool(selector=selector, target_ports=ports):
            return len(selector) + len(ports)
        case ModelRewrite(rules=rules):
            return sum(1 + len(rule.models) + len(rule.targets) for rule in rules)
        case Model(targets=targets):
            return len(targets)
        case _:
            return 0


def join_host_port(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> tuple[str, int | None]:
    """The parts of `10.0.0.1:8000`, `[fd00::1]:8000`, `[fd00::1]`, `fd00::1` or `host`; a missing port is None. Raises
    ValueError with the text for anything else."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        sound = bool(bracket) and colon in ("", ":") and ":" in host and is_ip(host)
    elif text.count(":") == 1:
        host, colon, port = text.partition(":")
        sound = bool(host)
    else:
        host, colon, port = text, "", ""
        sound = bool(host) and (":" not in host or is_ip(host))
    if not sound or (colon and not _is_port(port)):
        raise ValueError(f"{text!r} is not an address with an optional port")
    return host, int(port) if colon else None


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536


def is_ip(text: str) -> bool:
    """Whether the text is an IPv4 or IPv6 address, without brackets."""
    if not text.isascii():  # a zone may be anything
        return False
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
