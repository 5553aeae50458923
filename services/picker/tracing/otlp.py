"""Spans over OTLP, in JSON over HTTP (https://opentelemetry.io/docs/specs/otlp/#otlphttp).

The exporters of the SDK need `opentelemetry-proto`. `xds-protos` has older versions of the same files, and overwrites
them if it is installed last. So JSON, which needs neither.
"""

import gzip
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Any

import msgspec
import structlog
import urllib3
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext
from opentelemetry.util.re import parse_env_headers
from opentelemetry.util.types import AttributeValue
from urllib3.connection import HTTPConnection, HTTPSConnection

from shared.config.problems import Invalid, Problem

log = structlog.get_logger(__name__)

DEFAULT_ENDPOINT = "http://localhost:4318"
DEFAULT_TIMEOUT = 10.0
"""Seconds for one attempt, once there is a connection; and for that."""
RETRIES = 4
"""Attempts after the first."""
BACKOFF = 0.5
"""Seconds between attempts: none after the first, then twice as many, four times, …, or what `Retry-After` says."""
MAX_PAUSE = 30
"""The most seconds of a `Retry-After` that are waited for. A date in it isn't read."""
SHOWN = 200
"""Bytes of an answer that are read."""
RETRYABLE = (429, 502, 503, 504)
"""HTTP statuses after which OTLP asks a client to try again."""
COMPRESSIONS = ("none", "gzip")
IS_REMOTE_KNOWN, IS_REMOTE = 0x100, 0x200
"""Bits of a span's flags: whether its parent is of another process is known, and so."""


class OTLPExporter(SpanExporter):
    """Sends batches of spans, from the SDK's thread, to where the standard variables say."""

    def __init__(self) -> None:
        """Raises `Invalid` for variables that can't be used."""
        if own := os.environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT):
            self._url, named = own, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT
        else:
            common = os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or DEFAULT_ENDPOINT
            self._url, named = common.removesuffix("/") + "/v1/traces", OTEL_EXPORTER_OTLP_ENDPOINT
        if (shown := _without_secrets(self._url)) is None:
            raise Invalid([Problem(named, "no URL that begins with http:// or https://")])
        self._shown = shown
        self._headers = {"content-type": "application/json", "user-agent": "pointsman"}
        self._headers.update(parse_env_headers(_variable("HEADERS"), liberal=True))
        self._gzip = _compression() == "gzip"
        if self._gzip:
            self._headers["content-encoding"] = "gzip"
        parts, self._timeout = urllib3.util.parse_url(self._url), _timeout()
        self._path = parts.request_uri
        host = (parts.host or "").strip("[]")
        files = {name: _file(name) for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")}
        self._connection = HTTPConnection(host, parts.port, timeout=self._timeout)
        if parts.scheme == "https":
            self._connection = HTTPSConnection(
                host,
                parts.port,
                timeout=self._timeout,
                ca_certs=files["CERTIFICATE"],
                cert_file=files["CLIENT_CERTIFICATE"],
                key_file=files["CLIENT_KEY"],
            )

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        data = encode(spans)
        body = gzip.compress(data) if self._gzip else data
        for attempt in range(1 + RETRIES):
            try:
                status, problem, pause = self._post(body)
            except (urllib3.exceptions.HTTPError, HTTPException, OSError) as error:
                status, problem, pause = 0, {"error": str(error)}, None
            if 200 <= status < 300:
                return SpanExportResult.SUCCESS
            if attempt == RETRIES or (status and status not in RETRYABLE):
                break
            time.sleep((BACKOFF * 2**attempt if attempt else 0.0) if pause is None else pause)
        log.warning("tracing.export_failed", url=self._shown, spans=len(spans), **problem)
        return SpanExportResult.FAILURE

    def _post(self, body: bytes) -> tuple[int, dict[str, object], float | None]:
        """One attempt: the status, what to log of it, and in how many seconds to try again, if the receiver says so.
        Raises HTTPError, HTTPException and OSError."""
        connection = self._connection
        if not connection.is_connected:
            connection.close()
            connection.connect()
        assert connection.sock is not None
        # The socket's time-out is for each read, and a receiver can send bytes, or `100 Continue`, for ever.
        until = time.monotonic() + self._timeout
        timer = threading.Timer(self._timeout, _end, [connection.sock])
        timer.daemon = True
        timer.start()
        complete = False
        try:
            with suppress(BrokenPipeError):  # it may have answered before
                connection.request("POST", self._path, body=body, headers=self._headers, preload_content=False)
            with connection.getresponse() as answer:  # what else it sends isn't read: it may never end
                text = answer.read1(SHOWN, decode_content=False).decode(errors="replace")
                after = answer.headers.get("retry-after", "")
                complete = answer.closed
        finally:
            timer.cancel()
            if not complete:
                connection.close()
            if time.monotonic() >= until:  # what came until then may look like a whole answer
                raise TimeoutError(f"no answer in {self._timeout:g} s")
        known = after.isascii() and after.isdigit() and len(after) <= len(str(MAX_PAUSE))
        return answer.status, {"status": answer.status, "error": text}, min(int(after), MAX_PAUSE) if known else None

    def shutdown(self) -> None:
        self._connection.close()

    def __repr__(self) -> str:
        return f"<OTLPExporter {self._shown}>"


def encode(spans: Sequence[ReadableSpan]) -> bytes:
    """The JSON of an `ExportTraceServiceRequest`. The spans may have no links."""
    return b"".join(pieces(spans))


def pieces(spans: Sequence[ReadableSpan]) -> Iterator[bytes]:
    """The same, of at most one span each: the encoder holds the interpreter's lock, and so the event loop."""
    groups: dict[Resource, dict[InstrumentationScope | None, list[ReadableSpan]]] = {}
    for span in spans:
        groups.setdefault(span.resource, {}).setdefault(span.instrumentation_scope, []).append(span)
    json = msgspec.json.encode
    yield b'{"resourceSpans":['
    for number, (resource, scopes) in enumerate(groups.items()):
        attributes = json({"attributes": _attributes(resource.attributes)})
        yield b'%s{"resource":%s,"scopeSpans":[' % (b"," * (number > 0), attributes)
        for place, (scope, members) in enumerate(scopes.items()):
            named = json({"name": scope.name, "version": scope.version} if scope else {})
            yield b'%s{"scope":%s,"spans":[' % (b"," * (place > 0), named)
            for at, span in enumerate(members):
                yield b"," * (at > 0) + json(_span(span))
            yield b"]}"
        yield b"]}"
    yield b"]}"


def _span(span: ReadableSpan) -> dict[str, Any]:
    context: SpanContext = span.context
    return {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "parentSpanId": f"{span.parent.span_id:016x}" if span.parent else "",
        "traceState": context.trace_state.to_header(),
        "flags": context.trace_flags | IS_REMOTE_KNOWN | (IS_REMOTE if span.parent and span.parent.is_remote else 0),
        "name": span.name,
        "kind": span.kind.value + 1,  # 0 is "unspecified" there
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes),
        "droppedAttributesCount": span.dropped_attributes,
        "events": [
            {
                "name": event.name,
                "timeUnixNano": str(event.timestamp),
                "attributes": _attributes(event.attributes),
                "droppedAttributesCount": event.dropped_attributes,
            }
            for event in span.events
        ],
        "droppedEventsCount": span.dropped_events,
        "status": {"code": span.status.status_code.value, "message": span.status.description or ""},
    }


def _attributes(attributes: Mapping[str, AttributeValue] | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case str():
            return {"stringValue": value}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case _:
            return {"arrayValue": {"values": [_value(each) for each in value]}}


def _end(connected: socket.socket) -> None:
    """Let the other thread read and write no more. Below TLS: what ends TLS waits for the peer."""
    with suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


def _without_secrets(url: str) -> str | None:
    """The URL without user, password and query, for messages and logs; None if it can't be requested."""
    try:
        parts = urllib3.util.parse_url(url)
    except urllib3.exceptions.LocationParseError:
        return None
    if parts.scheme not in ("http", "https") or not parts.host:
        return None
    return parts._replace(auth=None, query=None, fragment=None).url


def _variable(name: str) -> str:
    """`OTEL_EXPORTER_OTLP_TRACES_…`, or that of all signals; empty if there is neither."""
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _file(name: str) -> str | None:
    asked = _variable(name) or None
    if asked and not os.access(asked, os.R_OK):
        raise Invalid([Problem(f"OTEL_EXPORTER_OTLP_{name}", f"{asked!r} can't be read")])
    return asked


def _compression() -> str:
    asked = _variable("COMPRESSION") or "none"
    if asked not in COMPRESSIONS:
        raise Invalid([Problem("OTEL_EXPORTER_OTLP_COMPRESSION", f"{asked!r} isn't one of {', '.join(COMPRESSIONS)}")])
    return asked


def _timeout() -> float:
    """Seconds, as in OpenTelemetry's SDK for Python."""
    asked = _variable("TIMEOUT")
    try:
        seconds = float(asked or DEFAULT_TIMEOUT)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise Invalid([Problem("OTEL_EXPORTER_OTLP_TIMEOUT", f"{asked!r} isn't a number of seconds")])
    return seconds
