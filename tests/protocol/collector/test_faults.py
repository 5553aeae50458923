"""A server that misbehaves costs its own freshness, and nobody else's."""

import asyncio

import pytest

from services.collector.http.client import Failure
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
    percentile,
    vllm,
)


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the client leaves


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    left = asyncio.ensure_future(reader.read())
    for byte in vllm(9):
        writer.write(bytes([byte]))
        await asyncio.wait([left], timeout=1.0)
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


async def fifty_megabytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 50000000\r\n\r\n")
    for _ in range(500):
        writer.write(b"a_metric 1\n" * 9090 + b"#12345678\n")
        await writer.drain()


MISBEHAVIOURS: dict[str, tuple[Behaviour | bytes, Failure]] = {
    "hangs": (hang, Failure.TIMEOUT),
    "trickles a byte a second": (trickle, Failure.TIMEOUT),
    "500": (answer(b"", status="500 Internal Server Error"), Failure.STATUS),
    "404": (answer(b"", status="404 Not Found"), Failure.STATUS),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", Failure.STATUS),
    "redirects": (
        answer(b"", status="302 Found", headers="Location: http://127.0.0.1:1/metrics"),
        Failure.REDIRECT,
    ),
    "HTML": (answer(b"<html>login</html>", headers="Content-Type: text/html; charset=utf-8"), Failure.CONTENT),
    "50 MB": (fifty_megabytes, Failure.TOO_LARGE),
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
        await eventually(lambda: frames.value("good", WAITING_QUEUE_SIZE) == 1.0, "the good server's value")
        assert frames.values("dead") == {}


async def test_a_bad_line_costs_only_itself(nats: NatsServer, owner: Owner, frames: Frames) -> None:
    page = b"vllm:num_requests_waiting{ 5\nnonsense\n\xff\xfe{\nvllm:num_requests_running 4\n"
    async with OddServer(answer(page)) as server, collector(nats.url):
        await owner.publish([endpoint("a", server.port)])
        await eventually(lambda: frames.value("a", RUNNING_REQUESTS_SIZE) == 4.0, "the good line's value")
        assert frames.value("a", WAITING_QUEUE_SIZE) is None


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        # a number, but none that an amount can be
        *((value, "invalid") for value in ("NaN", "-1", "-0.5", "+Inf", "-Inf")),
        # no number, so the line is no sample
        *((value, "absent") for value in ("1_0", "0x10", "nonsense")),
    ],
)
async def test_a_value_that_no_amount_can_have_is_not_taken(
    nats: NatsServer, owner: Owner, frames: Frames, value: str, outcome: str
) -> None:
    bad = f"vllm:num_requests_waiting {value}\nvllm:num_requests_running 4\n".encode()
    async with OddServer(vllm(5, 3)) as server, collector(nats.url) as service:
        await owner.publish([endpoint("a", server.port)])
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 5.0, "the page")
        server.behaviour = answer(bad)
        await eventually(lambda: frames.value("a", RUNNING_REQUESTS_SIZE) == 4.0, "the other value")
        await eventually(lambda: frames.age("a", WAITING_QUEUE_SIZE) > 0.5, "age")
        assert frames.value("a", WAITING_QUEUE_SIZE) == 5.0
        ((described,),) = [one["sources"] for one in service.scraper.describe()]
        assert described["up"]
        outcomes = {one["attribute"]: one["outcome"] for one in described["specifications"]}
        assert outcomes["WaitingQueueSize"] == outcome
        assert outcomes["RunningRequestsSize"] == "found"


@pytest.mark.serial
async def test_a_page_of_a_million_series_is_read_and_delays_no_other(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    """All of them are of a metric that is looked for. The page has 31 MB: less than the limit here, and read in steps
    between which others have their turn."""
    lines = b"".join(b'vllm:num_requests_waiting{i="%d"} 7\n' % number for number in range(10**6))
    page = answer(lines + b"vllm:num_requests_running 3\n")
    limits = {"interval": 0.25, "scrape_timeout": 10.0, "page_limit": 2**26}
    async with OddServer(vllm(1)) as good, OddServer(page) as odd, collector(nats.url, **limits) as service:
        await owner.publish([endpoint("good", good.port), endpoint("odd", odd.port)])
        await eventually(lambda: frames.value("good", WAITING_QUEUE_SIZE) == 1.0, "the good server's value")
        ages: list[float] = []

        def read() -> bool:
            ages.append(frames.age("good", WAITING_QUEUE_SIZE))
            return bool(frames.value("odd", RUNNING_REQUESTS_SIZE) == 3.0)

        await eventually(read, "the end of the page", 60.0)
        assert frames.value("odd", WAITING_QUEUE_SIZE) == 7.0
        assert percentile(ages, 99) <= 2 * 0.25
        assert service.scraper.failures.total() == 0


@pytest.mark.serial
async def test_a_metric_that_disappears_ages_alone(nats: NatsServer, owner: Owner, frames: Frames) -> None:
    async with OddServer(vllm(5, 4)) as server, collector(nats.url):
        await owner.publish([endpoint("a", server.port)])
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 5.0, "the page")
        server.behaviour = answer(b"vllm:num_requests_running 6\n")
        await eventually(
            lambda: frames.age("a", WAITING_QUEUE_SIZE) > 0.8 and frames.age("a", RUNNING_REQUESTS_SIZE) < 0.6,
            "the age of the one value alone",
        )
        assert frames.value("a", WAITING_QUEUE_SIZE) == 5.0
        assert frames.value("a", RUNNING_REQUESTS_SIZE) == 6.0


async def test_a_server_that_closes_after_each_answer_is_scraped_all_the_same(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nvllm:num_requests_waiting 2\n")
        await writer.drain()
        writer.close()
        raise ConnectionResetError

    async with OddServer(closing) as server, collector(nats.url, scrape_timeout=10.0) as service:
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
