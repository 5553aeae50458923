"""What gateways make of an InferencePool for Envoy, as documents of this directory, and the ways in which they vary.

A form is a function without arguments that makes the document; a variant takes a document, and changes it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pointsman.local.envoy import load
from shared.model import split_host_port

Document: TypeAlias = dict[str, Any]

DESTINATION = "x-gateway-destination-endpoint"
HINT_HEADER = "x-test-subset"
"""Of a client of `hinted`: the subset hint to forward."""
HURRIED = 1.0
"""Seconds, of `hurried`."""
_HERE = Path(__file__).parent
_EXT_PROC = "ext_proc.v3.ExternalProcessor"
_PER_ROUTE = "ext_proc.v3.ExtProcPerRoute"


def envoy_ai_gateway() -> Document:
    return load(_HERE / "envoy-ai-gateway.yaml")


def envoy_ai_gateway_buffered() -> Document:
    """With the pool's annotations `processing-body-mode: buffered` and `allow-mode-override: "true"`."""
    document = envoy_ai_gateway()
    modes = _filter(document)["processing_mode"]
    modes["request_body_mode"] = modes["response_body_mode"] = "BUFFERED"
    _filter(document)["allow_mode_override"] = True
    return document


def istio() -> Document:
    return load(_HERE / "istio.yaml")


def kgateway() -> Document:
    return load(_HERE / "kgateway.yaml")


FORMS: Mapping[str, Callable[[], Document]] = {
    "envoy-ai-gateway": envoy_ai_gateway,
    "envoy-ai-gateway-buffered": envoy_ai_gateway_buffered,
    "istio": istio,
    "kgateway": kgateway,
}


def fail_open(document: Document) -> Document:
    """With the pool's `failureMode: FailOpen`. Only forms that read it."""
    _per_route(document)["failure_mode_allow"] = True
    return document


def hinted(document: Document) -> Document:
    """With the subset hint where Envoy forwards it from, were the form to list its namespace: in the dynamic metadata.
    A client of the test names it in the header `HINT_HEADER`."""
    filling = {"metadata_namespace": "envoy.lb.subset_hint", "key": f"{DESTINATION}-subset", "type": "STRING"}
    config = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
        "request_rules": [{"header": HINT_HEADER, "on_header_present": filling, "remove": True}],
    }
    _http_filters(document).insert(0, {"name": "test.subset_hint", "typed_config": config})
    return document


def hurried(document: Document) -> Document:
    """What outlasts these time-outs outlasts the real ones."""
    return _timed(document, HURRIED)


def unhurried(document: Document) -> Document:
    """With time for a picker that stands still for a while, and for a client that Envoy has answered before it has
    sent its body. Envoy also closes the connection of a response that is cut off only after that time."""
    _manager(document)["delayed_close_timeout"] = "10s"
    return _timed(document, 100.0)


def _timed(document: Document, seconds: float) -> Document:
    """With these time-outs in place of all that the conversation has."""
    _filter(document)["message_timeout"] = f"{seconds}s"
    services = [_filter(document)["grpc_service"]]
    if _has_per_route(document):
        services.append(_per_route(document)["grpc_service"])
    for service in services:
        if "timeout" in service:
            service["timeout"] = f"{seconds}s"
    return document


def place(document: Document, authorities: Sequence[str]) -> Document:
    """With these endpoints in the pool, for a form that lists them in the cluster itself."""
    cluster = next(c for c in document["static_resources"]["clusters"] if c["name"] == "model-servers")
    if cluster["type"] != "STATIC":
        return document
    locality = cluster["load_assignment"]["endpoints"][0]
    pattern = json.dumps(locality["lb_endpoints"][0])
    endpoints = []
    for authority in authorities:
        host, port = split_host_port(authority)
        one = json.loads(pattern)
        one["endpoint"]["address"]["socket_address"] = {"address": host, "port_value": port}
        one["metadata"]["filter_metadata"]["envoy.lb"][DESTINATION] = authority
        endpoints.append(one)
    locality["lb_endpoints"] = endpoints
    return document


def _manager(document: Document) -> Any:
    listener = next(listener for listener in document["static_resources"]["listeners"] if listener["name"] == "gateway")
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def _http_filters(document: Document) -> list[Any]:
    filters: list[Any] = _manager(document)["http_filters"]
    return filters


def _filter(document: Document) -> Any:
    """The ext_proc filter's configuration."""
    found = (http_filter["typed_config"] for http_filter in _http_filters(document))
    return next(config for config in found if config["@type"].endswith(_EXT_PROC))


def _route(document: Document) -> Any:
    return _manager(document)["route_config"]["virtual_hosts"][0]["routes"][0]


def _has_per_route(document: Document) -> bool:
    return "typed_per_filter_config" in _route(document)


def _per_route(document: Document) -> Any:
    """What the route overrides of the filter."""
    found = _route(document)["typed_per_filter_config"].values()
    return next(config["overrides"] for config in found if config["@type"].endswith(_PER_ROUTE))
