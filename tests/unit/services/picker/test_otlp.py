"""The exporter of spans against an HTTP server of this machine."""

import gzip
import json
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import create_server
from threading import Thread
from time import sleep
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from services.picker.tracing import otlp
from shared.config.problems import Invalid


class Receiver(HTTPServer):
    """Answers with these statuses, one after the other, then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses: list[int] = []
        self.retry_after = ""
        self.received: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((self.path, {k.lower(): v for k, v in self.headers.items()}, data))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.send_header("content-length", "0")
        if self.server.retry_after:
            self.send_header("retry-after", self.server.retry_after)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with Receiver() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url + "/")
        yield server
        server.shutdown()
        thread.join()


def span() -> ReadableSpan:
    made = TracerProvider().get_tracer("test", "1").start_span("one", attributes={"list": ["a", "b"], "yes": True})
    made.end()
    assert isinstance(made, ReadableSpan)
    return made


def test_what_is_sent(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20mine,x-scope=a")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip")
    assert otlp.OTLPExporter().export([span()]) is SpanExportResult.SUCCESS
    ((path, headers, data),) = receiver.received
    expected = {"authorization": "Bearer mine", "x-scope": "a", "content-type": "application/json"}
    assert path == "/v1/traces"
    assert expected.items() <= headers.items()
    (group,) = json.loads(gzip.decompress(data))["resourceSpans"]
    (scope,) = group["scopeSpans"]
    assert scope["scope"] == {"name": "test", "version": "1"}
    assert scope["spans"][0]["attributes"] == [
        {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}}},
        {"key": "yes", "value": {"boolValue": True}},
    ]


def test_spans_are_encoded_one_at_a_time() -> None:
    alone = max(map(len, otlp.pieces([span()])))
    spans = [span() for _ in range(50)]
    assert max(map(len, otlp.pieces(spans))) <= alone + 1
    groups = json.loads(otlp.encode(spans))["resourceSpans"]
    assert sum(len(scope["spans"]) for group in groups for scope in group["scopeSpans"]) == 50


def test_an_endpoint_of_traces_alone_is_taken_as_it_is(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.url}/mine")
    otlp.OTLPExporter().export([span()])
    assert receiver.received[0][0] == "/mine"


@pytest.mark.parametrize(
    ("statuses", "attempts", "result"),
    [
        ([503, 429], 3, SpanExportResult.SUCCESS),
        ([503] * 9, 5, SpanExportResult.FAILURE),
        ([400], 1, SpanExportResult.FAILURE),
    ],
)
def test_statuses(
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    statuses: list[int],
    attempts: int,
    result: SpanExportResult,
) -> None:
    monkeypatch.setattr(otlp, "BACKOFF", 0.001)
    receiver.statuses = statuses
    assert otlp.OTLPExporter().export([span()]) is result
    assert len(receiver.received) == attempts


@pytest.mark.parametrize(
    ("seconds", "head", "rest", "pause", "result"),
    [
        ("10", b"200 OK\r\n\r\n", b"x" * 2**16, 0.0, SpanExportResult.SUCCESS),
        ("10", b"400 Bad Request\r\n\r\n", b"x" * 2**16, 0.0, SpanExportResult.FAILURE),
        ("10", b"307 Elsewhere\r\nlocation: /\r\n\r\n", b"x" * 2**16, 0.0, SpanExportResult.FAILURE),
        ("0.3", b"100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, 0.0, SpanExportResult.FAILURE),
        ("0.3", b"200 OK\r\na: ", b"x", 0.02, SpanExportResult.FAILURE),
        ("0.3", b"200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;", b"x", 0.02, SpanExportResult.FAILURE),
    ],
)
def test_an_answer_without_end_is_not_read(
    monkeypatch: pytest.MonkeyPatch, seconds: str, head: bytes, rest: bytes, pause: float, result: SpanExportResult
) -> None:
    """The server sends until the exporter has closed the connection."""
    monkeypatch.setattr(otlp, "RETRIES", 0)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", seconds)
    with create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted, suppress(OSError):
                accepted.settimeout(1)  # a connection that is closed once all was read may leave the window shut
                accepted.recv(2**16)
                accepted.sendall(b"HTTP/1.1 " + head)
                while True:
                    accepted.sendall(rest)
                    sleep(pause)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert otlp.OTLPExporter().export([span()]) is result
        thread.join()


@pytest.mark.parametrize(
    ("header", "seconds"), [("0", 0), ("7", 7), ("99", otlp.MAX_PAUSE), ("9" * 30, 0.0), ("-1", 0.0), ("soon", 0.0)]
)
def test_a_receiver_says_when_to_try_again(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, header: str, seconds: float
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    receiver.statuses, receiver.retry_after = [503], header
    assert otlp.OTLPExporter().export([span()]) is SpanExportResult.SUCCESS
    assert waited == [seconds]


def test_a_receiver_that_isnt_there_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "BACKOFF", 0.001)
    with Receiver() as server:
        url = server.url
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    assert otlp.OTLPExporter().export([span()]) is SpanExportResult.FAILURE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COMPRESSION", "brotli"),
        ("TIMEOUT", "soon"),
        ("TIMEOUT", "-1"),
        ("TIMEOUT", "inf"),
        ("CERTIFICATE", "missing.pem"),
    ],
)
def test_variables_that_cant_be_used_are_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    with pytest.raises(Invalid, match=f"OTEL_EXPORTER_OTLP_{name}: '{value}'"):
        otlp.OTLPExporter()


@pytest.mark.parametrize("name", ["ENDPOINT", "TRACES_ENDPOINT"])
@pytest.mark.parametrize(
    "url", ["localhost:4318", "http:///a", "http://user:secret@[::1", "http://user:secret@a:99999"]
)
def test_an_endpoint_that_is_no_url_is_named_without_its_secrets(
    name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", url)
    with pytest.raises(Invalid, match=f"OTEL_EXPORTER_OTLP_{name}: no URL that begins with") as refused:
        otlp.OTLPExporter()
    assert "secret" not in str(refused.value)


def test_secrets_of_the_endpoint_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://user:secret@[::1]:9/traces?key=secret#secret")
    assert repr(otlp.OTLPExporter()) == "<OTLPExporter http://[::1]:9/traces>"
