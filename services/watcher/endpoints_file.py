"""The `endpoints` list: the `file-discovery` format of the Go EPP, with IPv6, host names and metrics hosts.

An entry is one port of a server. Its id is `namespace/name`; two entries with one id are an error. (The Go EPP uses the
last one, which hides a mistake.) A host name becomes `Endpoint.host` with an empty `Endpoint.address`, which
`services.watcher.resolve` fills in.
"""

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Any

from msgspec import Meta, Struct

from shared.bus.publishable import fault
from shared.config.decode import MISSING, decode
from shared.config.problems import MAX_PROBLEMS, Problems, join, show
from shared.model import Endpoint, drains, is_ip, join_host_port, split_host_port

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_NAME = re.compile(r"[^\s/\x00-\x1f\x7f]{1,253}")

MAX_HOST_NAME = 253
"""Characters of a host name (RFC 1035), and of an endpoint's name and namespace (Kubernetes)."""

MAX_RANK = 2**31 - 1


class _Entry(Struct, frozen=True, rename="camel"):
    """An entry. `port` may be a number or a string, so it is read separately."""

    name: Annotated[str, Meta(min_length=1)]
    address: Annotated[str, Meta(min_length=1)]
    port: Any
    namespace: str = "default"
    labels: dict[str, Any] = {}
    metrics_host: str = ""
    rank: Annotated[int, Meta(ge=0, le=MAX_RANK)] = 0
    node: str = ""
    node_address: str = ""
    drain: bool = False


def read_endpoints(raw: object, path: str, problems: Problems) -> tuple[Endpoint, ...]:
    """The valid entries of a list, in its order. Problems are added under `path`; after `MAX_PROBLEMS`, the rest isn't
    read.

    Null is an empty list, as in the Go EPP: a template without entries produces it.
    """
    if raw is None:
        return ()
    if not isinstance(raw, list):
        problems.error(path, f"{show(raw)} isn't a list of endpoints")
        return ()
    endpoints: list[Endpoint] = []
    places: dict[str, str] = {}
    servers: dict[str, str] = {}
    for index, item in enumerate(raw):
        if len(problems.errors) >= MAX_PROBLEMS:
            break
        place = join(path, index)
        endpoint = _read_entry(item, place, problems)
        if endpoint is None:
            continue
        first = places.setdefault(endpoint.id, place)
        if first != place:
            problems.error(join(place, "name"), f"{endpoint.id!r} is the id of {first} too; an id is given once")
            continue
        server = join_host_port(endpoint.address or endpoint.host, endpoint.port)
        if (other := servers.setdefault(server, place)) != place:
            problems.warn(place, f"{server} is {other} too: one server counts twice")
        endpoints.append(endpoint)
    return tuple(endpoints)


def _read_entry(raw: object, path: str, problems: Problems) -> Endpoint | None:
    before = len(problems.errors)
    entry = decode(_without_nulls(raw), _Entry, path, problems)
    values = raw if isinstance(raw, Mapping) else {}
    # Checked even if `decode` fails, so that all problems are reported at once.
    port = _read_port(values["port"], join(path, "port"), problems) if values.get("port") is not None else 0
    ip, host = _read_address(values.get("address"), join(path, "address"), problems)
    for field in ("name", "namespace"):
        _check_name(values.get(field), join(path, field), problems)
    _check_metrics_host(values.get("metricsHost"), join(path, "metricsHost"), problems)
    _check_node_address(values.get("nodeAddress"), join(path, "nodeAddress"), problems)
    labels = _read_labels(values.get("labels"), join(path, "labels"), problems)
    if len(problems.errors) > before or entry is MISSING:
        return None
    namespace = entry.namespace or "default"
    endpoint = Endpoint(
        id=f"{namespace}/{entry.name}",
        name=entry.name,
        namespace=namespace,
        address=ip,
        port=port,
        labels=labels,
        metrics_host=entry.metrics_host,
        host=host,
        rank=entry.rank,
        node=entry.node,
        node_address=entry.node_address,
        draining=entry.drain or drains(labels),
    )
    if reason := fault(endpoint):
        problems.error(path, reason)
        return None
    return endpoint


def _without_nulls(raw: object) -> object:
    """Null means that a field is missing."""
    return {key: value for key, value in raw.items() if value is not None} if isinstance(raw, Mapping) else raw


def _filled(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _read_port(raw: object, path: str, problems: Problems) -> int:
    """A number, or a string of digits as in the Go EPP."""
    if isinstance(raw, str) and raw.isascii() and raw.isdigit():
        number = int(raw) if len(raw) < 10 else 0
    elif isinstance(raw, int) and not isinstance(raw, bool):
        number = raw
    else:
        number = 0
    if not 0 < number < 65536:
        problems.error(path, f"{show(raw)} isn't a port; a number from 1 to 65535 is expected")
    return number


def _read_address(text: object, path: str, problems: Problems) -> tuple[str, str]:
    """(address, host name), one of them empty. Addresses are normalized as in Envoy."""
    if not isinstance(text, str) or not text:
        return "", ""  # reported by `decode`
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ip_address(bare)
    except ValueError:
        if reason := _host_name_problem(text):
            problems.error(path, f"{show(text)} {reason}")
            return "", ""
        return "", text.removesuffix(".").lower()
    if reason := address_problem(address):
        problems.error(path, f"{show(text)} {reason}")
    return str(address), ""


def address_problem(address: IPv4Address | IPv6Address) -> str:
    """Why no server can have this address; empty if one can."""
    if isinstance(address, IPv6Address) and address.scope_id:
        return "has a zone, which means something on one machine only; an address without one is expected"
    if isinstance(address, IPv6Address) and (own := address.ipv4_mapped):
        return f"is an IPv4 address in the form of IPv6, to which Envoy doesn't connect; {own} is expected"
    if address.is_unspecified:
        return "means every address of a machine; one that clients can reach is expected"
    if address.is_multicast:
        return "is a multicast address; a server's own is expected"
    return ""


def _host_name_problem(text: str) -> str:
    """Why a text isn't a host name; empty if it is. Underscores are allowed: container names have them."""
    expected = "an IPv4 or IPv6 address or a host name is expected"
    labels = text.removesuffix(".").split(".")
    try:
        split = split_host_port(text)
    except ValueError:
        split = ("", None)
    if split[1] is not None:
        return "has a port, which belongs in `port`"
    if "://" in text:
        return f"is a URL; {expected}"
    if len(text) > MAX_HOST_NAME or not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        return f"isn't an address; {expected}"
    return ""


def _check_name(raw: object, path: str, problems: Problems) -> None:
    if _filled(raw) and not _NAME.fullmatch(str(raw)):
        problems.error(path, f"{show(raw)} can't be part of an id: no spaces, no slashes, at most {MAX_HOST_NAME} long")


def _check_metrics_host(raw: object, path: str, problems: Problems) -> None:
    if not _filled(raw):
        return
    try:
        host, port = split_host_port(str(raw))
    except ValueError:
        host, port = "", None
    if port is None:
        problems.error(path, f"{show(raw)} isn't an address with a port; host:port is expected")
    elif ":" in host:
        if reason := address_problem(ip_address(host)):
            problems.error(path, f"{show(raw)} {reason}")
    elif (reason := _host_name_problem(host)) and not is_ip(host):
        problems.error(path, f"{show(raw)} {reason}")


def _check_node_address(raw: object, path: str, problems: Problems) -> None:
    if not _filled(raw):
        return
    if not is_ip(str(raw)):
        problems.error(path, f"{show(raw)} isn't an IP address")
    elif reason := address_problem(ip_address(str(raw))):
        problems.error(path, f"{show(raw)} {reason}")


def _read_labels(raw: object, path: str, problems: Problems) -> dict[str, str]:
    """Labels are compared as strings, so numbers and booleans have to be quoted."""
    if not isinstance(raw, Mapping):
        return {}  # missing, or reported by `decode`
    labels: dict[str, str] = {}
    for key, value in raw.items():
        if not isinstance(key, str):
            problems.error(join(path, str(key)), f"the label's name {show(key)} isn't a string; put it in quotes")
        elif isinstance(value, str):
            labels[key] = value
        elif value is None:
            labels[key] = ""
        elif isinstance(value, (dict, list)):
            problems.error(join(path, key), f"{show(value)} isn't a label's value; a string is expected")
        else:
            problems.error(join(path, key), f"{show(value)} isn't a string; put it in quotes")
    return labels
