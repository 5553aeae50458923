"""One server of each kind that misbehaves, among a hundred that don't: the others don't notice."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from services.collector.http.client import Failure
from shared.attributes import RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from shared.model import Endpoint
from tests.certificates import Authority
from tests.nats import NatsServer, free_port
from tests.protocol.collector.harness import Behaviour, Frames, OddServer, Owner, answer, collector, endpoint, vllm
from tests.soak.promises import ODD_SERVERS, measured, soaking
from tests.waiting import eventually

HEALTHY, SERIES, WATCHED = (100, 10**6, 4.0) if soaking() else (20, 10**5, 1.0)
"""Servers that are well; series on the long page; seconds for which the ages are looked at."""
INTERVAL = 0.5
MOVES = 0.5
"""Seconds after which the server that changes its port does so."""
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: metrics-data-source
  parameters:
    insecureSkipVerify: false
    caCertPath: {ca}
    overrides: [{{matchLabels: {{tls: "yes"}}, scheme: https}}]
- type: core-metrics-extractor
  parameters: {{engineConfigs: [{{name: short, queuedRequestsSpec: m}}]}}
"""


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


async def interim(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100)
        await writer.drain()


MISBEHAVIOURS: dict[str, tuple[Behaviour | bytes, Failure]] = {
    "hangs": (hang, Failure.TIMEOUT),
    "trickles a byte a second": (trickle, Failure.TIMEOUT),
    "500": (answer(b"", status="500 Internal Server Error"), Failure.STATUS),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", Failure.STATUS),
    "redirects": (answer(b"", status="302 Found", headers="Location: http://127.0.0.1:1/metrics"), Failure.REDIRECT),
    "HTML": (answer(b"<html>login</html>", headers="Content-Type: text/html; charset=utf-8"), Failure.CONTENT),
    "endless": (endless, Failure.TOO_LARGE),
    "resets": (reset, Failure.PROTOCOL),
    "breaks off": (broken_off, Failure.PROTOCOL),
    "a header of blanks": (answer(b"", headers="X-A: a" + " " * 60_000 + "b"), Failure.PROTOCOL),
    "endless interim answers": (interim, Failure.PROTOCOL),
    "no HTTP": (b"hello\r\n\r\n", Failure.PROTOCOL),
}


async def close_after_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(vllm(2).replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
    await writer.drain()
    writer.close()
    raise ConnectionResetError


ODD: dict[str, Behaviour | bytes] = {
    **{name: behaviour for name, (behaviour, _) in MISBEHAVIOURS.items()},
    "many series": answer(b"".join(b'm{i="%06d"} 1\n' % number for number in range(SERIES))),
    "NaN": vllm(float("nan"), 4),
    "negative": vllm(-3, 4),
    "closes after each answer": close_after_answer,
}
LABELS = {"many series": {"engine": "short"}}


@pytest.mark.soak
async def test_a_hundred_healthy_servers_stay_fresh_beside_one_of_each_misbehaviour(
    nats: NatsServer, owner: Owner, frames: Frames, tmp_path: Path
) -> None:
    """The odd ones hang, trickle, fail, redirect, break off and so on; one has a certificate
    of a stranger, one changes its port again and again."""
    async with AsyncExitStack() as stack:
        good = [await stack.enter_async_context(OddServer(vllm(number))) for number in range(5)]
        odd = {name: await stack.enter_async_context(OddServer(behaviour)) for name, behaviour in ODD.items()}
        ports = [await stack.enter_async_context(OddServer(vllm(number))) for number in range(2)]
        secure = await stack.enter_async_context(
            OddServer(vllm(1), ssl=Authority(tmp_path, "stranger").server("127.0.0.1"))
        )
        service = await stack.enter_async_context(collector(nats.url, interval=INTERVAL))
        config = CONFIG.format(ca=Authority(tmp_path, "trusted").ca)
        healthy = [endpoint(f"good-{number}", good[number % len(good)].port) for number in range(HEALTHY)]
        troubled = [endpoint(name, server.port, **LABELS.get(name, {})) for name, server in odd.items()]
        troubled += [endpoint("broken certificate", secure.port, tls="yes"), endpoint("nobody listens", free_port())]

        def endpoints(moves: int) -> list[Endpoint]:
            return [*healthy, *troubled, endpoint("changes its port", ports[moves % len(ports)].port)]

        await owner.publish(endpoints(0), config)
        await eventually(lambda: all(frames.values(entry.name) for entry in healthy), "the healthy ones' values")
        began, moves, ages = time.monotonic(), 0, list[float]()
        while (passed := time.monotonic() - began) < WATCHED:
            if passed > (moves + 1) * MOVES:
                moves += 1
                await owner.publish(endpoints(moves), config)
            ages += [frames.age(each.name, WAITING_QUEUE_SIZE) for each in healthy]
            await asyncio.sleep(0.02)

        measured(ODD_SERVERS, float(np.percentile(ages, 99)))
        watched = {
            each_endpoint.endpoint.name: each_endpoint.targets[0]
            for each_endpoint in service.scraper.endpoints.values()
        }
        kinds = {name: kind for name, (_, kind) in MISBEHAVIOURS.items()}
        kinds |= {"broken certificate": Failure.TLS, "nobody listens": Failure.CONNECT}
        for name, kind in kinds.items():
            await eventually(lambda: watched[name].failures[kind] >= 1 and watched[name].error, name)  # noqa: B023
        for name in ("NaN", "negative"):
            await eventually(lambda: frames.value(name, RUNNING_REQUESTS_SIZE) == 4.0, name)  # noqa: B023
            assert frames.value(name, WAITING_QUEUE_SIZE) is None
        await eventually(lambda: frames.value("closes after each answer", WAITING_QUEUE_SIZE) == 2.0, "its value")
        await eventually(
            lambda: frames.value("changes its port", WAITING_QUEUE_SIZE) == moves % len(ports), "the last port's value"
        )
        await eventually(lambda: frames.value("many series", WAITING_QUEUE_SIZE) == 1.0, "the end of the long page")
        for server in odd.values():
            server.behaviour = vllm(8)
        for name in odd:
            if name not in LABELS:
                await eventually(lambda: frames.value(name, WAITING_QUEUE_SIZE) == 8.0, f"recovery of {name!r}")  # noqa: B023
