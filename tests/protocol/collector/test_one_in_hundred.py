"""One server of each kind that misbehaves, among a hundred that don't: the others don't notice."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from services.collector.http.client import Failure
from shared.attributes import RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from shared.model import Endpoint
from tests.nats import NatsServer
from tests.protocol.collector.certificates import Authority
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
from tests.protocol.collector.test_faults import MISBEHAVIOURS

pytestmark = pytest.mark.serial

HEALTHY = 100
INTERVAL = 0.5
WATCHED = 4.0
"""Seconds for which the ages are looked at."""
MOVES = 1.0
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

SERIES = answer(b"".join(b'm{i="%06d"} 1\n' % number for number in range(10**6)))
"""1 M series in 15 MB, below the limit of a page, and all of them of the metric that is looked for."""


async def close_after_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(vllm(2).replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
    await writer.drain()
    writer.close()
    raise ConnectionResetError


ODD: dict[str, Behaviour | bytes] = {
    **{name: behaviour for name, (behaviour, _) in MISBEHAVIOURS.items()},
    "1 M series": SERIES,
    "NaN": vllm(float("nan"), 4),
    "negative": vllm(-3, 4),
    "closes after each answer": close_after_answer,
}
LABELS = {"1 M series": {"engine": "short"}}


async def test_a_hundred_healthy_servers_stay_fresh_beside_one_of_each_misbehaviour(
    nats: NatsServer, owner: Owner, frames: Frames, tmp_path: Path
) -> None:
    """Of the ages of the healthy ones' values 99 in 100 are at most two intervals. The odd ones hang, trickle, fail,
    redirect, break off and so on; one has a certificate of a stranger, one changes its port again and again."""
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
        troubled.append(endpoint("broken certificate", secure.port, tls="yes"))

        def endpoints(moves: int) -> list[Endpoint]:
            return [*healthy, *troubled, endpoint("changes its port", ports[moves % len(ports)].port)]

        await owner.publish(endpoints(0), config)
        await eventually(lambda: all(frames.values(one.name) for one in healthy), "the healthy ones' values")
        began, moves, ages = time.monotonic(), 0, list[float]()
        while (passed := time.monotonic() - began) < WATCHED:
            if passed > (moves + 1) * MOVES:
                moves += 1
                await owner.publish(endpoints(moves), config)
            ages += [frames.age(one.name, WAITING_QUEUE_SIZE) for one in healthy]
            await asyncio.sleep(0.02)

        assert percentile(ages, 99) <= 2 * INTERVAL
        watched = {one.endpoint.name: one.targets[0] for one in service.scraper.watched.values()}
        failing = {name for name in (*ODD, "broken certificate") if watched[name].error}
        assert failing == {*MISBEHAVIOURS, "broken certificate"}
        for name, (_, kind) in MISBEHAVIOURS.items():
            assert watched[name].failures[kind] >= 1, name
        assert watched["broken certificate"].failures[Failure.TLS] >= 1
        assert frames.value("NaN", RUNNING_REQUESTS_SIZE) == frames.value("negative", RUNNING_REQUESTS_SIZE) == 4.0
        assert frames.value("NaN", WAITING_QUEUE_SIZE) is frames.value("negative", WAITING_QUEUE_SIZE) is None
        assert frames.value("closes after each answer", WAITING_QUEUE_SIZE) == 2.0
        await eventually(
            lambda: frames.value("changes its port", WAITING_QUEUE_SIZE) == moves % len(ports), "the last port's value"
        )
        await eventually(
            lambda: frames.value("1 M series", WAITING_QUEUE_SIZE) == 1.0, "the end of the long page", 30.0
        )
