"""A server that misbehaves costs its own freshness, and nobody else's."""

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest

from services.collector.http import Failure
from shared.attributes import RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from tests.nats import NatsServer
from tests.protocol.collector.harness import (
    Behaviour,
    Frames,
    OddServer,
    Owner,
    answer,
    collector,
    endpoint,
    eventually,
    vllm,
)


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the client leaves


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    left = asyncio.ensure_future(reader.read())
    for byte in vllm(9):
        writer.write(bytes([byte]))
        await asyncio.wait([left], timeout=0.1)
        if left.done():
            return


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    raise ConnectionResetError


async def broken_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(vllm(9)[:-10])
    writer.close()
    raise ConnectionResetError


HUGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 50000000\r\n\r\n" + b"x" * 100_000

MISBEHAVIOURS: dict[str, tuple[Behaviour | bytes, Failure]] = {
    "hangs": (hang, Failure.TIMEOUT),
    "trickles": (trickle, Failure.TIMEOUT),
    "500": (answer(b"", status="500 Internal Server Error"), Failure.STATUS),
    "404": (answer(b"", status="404 Not Found"), Failure.STATUS),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", Failure.STATUS),
    "redirects": (
        answer(b"", status="302 Found", headers="Location: http://127.0.0.1:1/metrics"),
        Failure.REDIRECT,
    ),
    "HTML": (answer(b"<html>login</html>", headers="Content-Type: text/html; charset=utf-8"), Failure.CONTENT),
    "huge": (HUGE, Failure.TOO_LARGE),
    "endless": (endless, Failure.TOO_LARGE),
    "resets": (reset, Failure.PROTOCOL),
    "breaks off": (broken_off, Failure.PROTOCOL),
    "no HTTP": (b"hello\r\n\r\n", Failure.PROTOCOL),
}


@pytest.mark.parametrize("fault", MISBEHAVIOURS)
async def test_a_server_that_misbehaves_disturbs_no_other(
    nats: NatsServer, owner: Owner, frames: Frames, fault: str
) -> None:
    behaviour, kind = MISBEHAVIOURS[fault]
    async with (
        OddServer(vllm(1)) as good,
        OddServer(vllm(7)) as odd,
        collector(nats.url, scrape_timeout=0.3, page_limit=1 << 20) as service,
    ):
        await owner.publish([endpoint("good", good.port), endpoint("odd", odd.port)])
        await eventually(lambda: frames.value("odd", WAITING_QUEUE_SIZE) == 7.0, "the server at its best")
        odd.behaviour = behaviour
        await eventually(lambda: service.scraper.failures[kind] >= 2, f"failures of kind {kind}")
        before = len(good.requests)
        oldest = 0.0
        for _ in range(50):
            await asyncio.sleep(0.01)
            oldest = max(oldest, frames.age("good", WAITING_QUEUE_SIZE))
        assert len(good.requests) >= before + 3
        assert oldest < 2.0  # the limit above which pickers hold a value to be stale
        assert frames.age("odd", WAITING_QUEUE_SIZE) > 0.3
        assert odd.most_in_flight == 1
        (described,) = [one for one in service.scraper.describe() if one["id"] == "default/odd"]
        assert not described["up"]
        assert described["sources"][0]["error"]
        odd.behaviour = vllm(8)
        await eventually(lambda: frames.value("odd", WAITING_QUEUE_SIZE) == 8.0, "recovery")


async def test_nobody_listens_and_then_somebody_does(nats: NatsServer, owner: Owner, frames: Frames) -> None:
    async with OddServer(vllm(3)) as gone:
        pass
    async with OddServer(vllm(1)) as good, collector(nats.url) as service:
        await owner.publish([endpoint("good", good.port), endpoint("dead", gone.port)])
        await eventually(lambda: service.scraper.failures[Failure.CONNECT] >= 2, "failures to connect")
        assert frames.value("good", WAITING_QUEUE_SIZE) == 1.0
        assert frames.values("dead") == {}


async def test_a_bad_line_costs_only_itself(nats: NatsServer, owner: Owner, frames: Frames) -> None:
    page = b"vllm:num_requests_waiting{ 5\nnonsense\n\xff\xfe{\nvllm:num_requests_running 4\n"
    async with OddServer(answer(page)) as server, collector(nats.url):
        await owner.publish([endpoint("a", server.port)])
        await eventually(lambda: frames.value("a", RUNNING_REQUESTS_SIZE) == 4.0, "the good line's value")
        assert frames.value("a", WAITING_QUEUE_SIZE) is None


async def test_a_metric_that_disappears_ages_alone(nats: NatsServer, owner: Owner, frames: Frames) -> None:
    async with OddServer(vllm(5, 4)) as server, collector(nats.url):
        await owner.publish([endpoint("a", server.port)])
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 5.0, "the page")
        server.behaviour = answer(b"vllm:num_requests_running 6\n")
        await eventually(lambda: frames.age("a", WAITING_QUEUE_SIZE) > 0.8, "age")
        assert frames.value("a", WAITING_QUEUE_SIZE) == 5.0
        assert frames.age("a", RUNNING_REQUESTS_SIZE) < 0.6
        assert frames.value("a", RUNNING_REQUESTS_SIZE) == 6.0


async def test_a_server_that_closes_after_each_answer_is_scraped_all_the_same(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nvllm:num_requests_waiting 2\n")
        await writer.drain()
        writer.close()
        raise ConnectionResetError

    async with OddServer(closing) as server, collector(nats.url) as service:
        await owner.publish([endpoint("a", server.port)])
        await eventually(lambda: len(server.requests) >= 10, "ten scrapes")
        assert frames.value("a", WAITING_QUEUE_SIZE) == 2.0
        assert service.scraper.failures.total() == 0


async def test_a_changed_port_takes_effect_at_once(nats: NatsServer, owner: Owner, frames: Frames) -> None:
    async with OddServer(hang) as former, OddServer(vllm(6)) as present, collector(nats.url, scrape_timeout=30.0):
        await owner.publish([endpoint("a", former.port)])
        await eventually(lambda: former.in_flight == 1, "a scrape that hangs")
        await owner.publish([endpoint("a", present.port)])
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 6.0, "the new port's value", 2.0)


async def test_an_endpoint_that_is_gone_is_not_scraped_any_more(nats: NatsServer, owner: Owner) -> None:
    async with OddServer(vllm(1)) as server, OddServer(vllm(2)) as other, collector(nats.url) as service:
        await owner.publish([endpoint("a", server.port), endpoint("b", other.port)])
        await eventually(lambda: len(server.requests) >= 2, "scrapes")
        await owner.publish([endpoint("b", other.port)])
        await eventually(lambda: list(service.scraper.watched) == ["default/b"], "the endpoint's end")
        count, since = len(server.requests), len(other.requests)
        await eventually(lambda: len(other.requests) >= since + 5, "scrapes of the other one")
        assert len(server.requests) <= count + 1


def certificate(directory: Path) -> ssl.SSLContext:
    """A server's context with a certificate that nobody has signed."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    files = ["-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")]
    subprocess.run([*command, *files, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    return context


CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{name: secure, type: metrics-data-source, parameters: {{scheme: https, {}}}}}
- {{type: core-metrics-extractor}}
dataLayer:
  sources: [{{pluginRef: secure, extractors: [{{pluginRef: core-metrics-extractor}}]}}]
"""


async def test_a_certificate_that_nobody_signed_is_taken_or_refused_as_the_source_says(
    nats: NatsServer, owner: Owner, frames: Frames, tmp_path: Path
) -> None:
    async with OddServer(vllm(5), ssl=certificate(tmp_path)) as server, collector(nats.url) as service:
        await owner.publish([endpoint("a", server.port)], CONFIG.format("insecureSkipVerify: false"))
        await eventually(lambda: service.scraper.failures[Failure.TLS] >= 1, "a failure of TLS")
        assert frames.values("a") == {}
        trusted = f"insecureSkipVerify: false, caCertPath: {tmp_path}/cert.pem"
        await owner.publish([endpoint("a", server.port)], CONFIG.format(trusted))
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 5.0, "trust by CA")
        server.behaviour = vllm(6)
        await owner.publish([endpoint("a", server.port)], CONFIG.format("insecureSkipVerify: true"))
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 6.0, "no verification")
