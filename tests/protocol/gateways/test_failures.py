"""What each gateway's form does without a picker, fail closed and fail open."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pointsman.local.envoy import Envoy
from tests.protocol.gateways.conftest import CHAT, PATH, Pool, client_of, pool
from tests.protocol.gateways.forms import DESTINATION, FORMS, fail_open, unhurried
from tests.waiting import TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPEN = ["istio", "kgateway"]
"""The forms that follow the pool's failureMode."""
SIZE = 10_000
LONG = CHAT | {"messages": [{"role": "user", "content": "x" * SIZE}]}
"""When Envoy has received `SIZE` bytes of this request, it has got of the body."""
STREAM = CHAT | {"stream": True, "max_tokens": 40_000, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    async with pool(tmp_path_factory.mktemp("failures"), endpoints=1, pickers=1) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def envoys(shared: Pool) -> dict[str, Envoy]:
    documents = {name: form() for name, form in FORMS.items()}
    documents |= {f"{name}-open": fail_open(FORMS[name]()) for name in OPEN}
    return {name: await shared.gateway(name, unhurried(document)) for name, document in documents.items()}


async def test_a_killed_picker_takes_its_open_requests_with_it(shared: Pool, envoys: dict[str, Envoy]) -> None:
    """A response that streams through it is cut off, and a request that waits for its answer is a 500: fail open or
    not, the body is at the picker."""
    picker = shared.stack.pickers[0]
    names = [name for name in envoys if "buffered" not in name]
    begun = asyncio.Semaphore(0)
    streams = [asyncio.create_task(_cut_off(envoys[name], begun)) for name in names]
    async with asyncio.timeout(TIMEOUT):
        for _ in streams:
            await begun.acquire()
    before = {name: await _received(envoys[name]) for name in names}
    picker.pause()
    try:
        waiting = [asyncio.create_task(_status(envoys[name], LONG)) for name in names]
        for name in names:  # Envoy opens the stream to the picker before it gets of the body

            async def sent(name: str = name) -> bool:
                return await _received(envoys[name]) >= before[name] + SIZE

            await eventually(sent)
        assert not any(task.done() for task in waiting)
        await picker.kill()
        assert await asyncio.gather(*streams) == [True] * len(names)
        assert dict(zip(names, await asyncio.gather(*waiting), strict=True)) == dict.fromkeys(names, 500)
    finally:
        await picker.kill()
        await _back(shared, envoys)


async def _cut_off(envoy: Envoy, begun: asyncio.Semaphore) -> bool:
    """Read a stream; whether it ended without its end."""
    async with client_of(envoy) as client:
        try:
            async with client.stream("POST", PATH, json=STREAM) as response:
                first = True
                async for _ in response.aiter_bytes():
                    if first:
                        begun.release()
                    first = False
        except httpx.RemoteProtocolError:
            return True
    return False


async def _received(envoy: Envoy) -> int:
    """Bytes that clients have sent to an Envoy since it started."""
    return await _statistic(envoy, "downstream_cx_rx_bytes_total")


async def _streams_failed(envoy: Envoy) -> int:
    """ext_proc streams that have failed since an Envoy started."""
    return await _statistic(envoy, "ext_proc.streams_failed")


async def _statistic(envoy: Envoy, name: str) -> int:
    async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client:
        answer = await client.get(f"{envoy.admin_url}/stats?filter=^http.*{name}$")
    lines = [line.rsplit(":", 1) for line in answer.text.splitlines()]
    return sum(int(value) for of, value in lines if not of.startswith(("http.admin.", "http.stats.")))


async def _status(envoy: Envoy, body: Mapping[str, Any] = CHAT) -> int:
    async with client_of(envoy) as client:
        return (await client.post(PATH, json=body)).status_code


async def _back(of: Pool, envoys: dict[str, Envoy]) -> None:
    """Start the picker again, and wait until every Envoy has noticed."""
    await of.stack.pickers[0].start()
    for envoy in envoys.values():

        async def works(envoy: Envoy = envoy) -> bool:
            return await _status(envoy) == 200

        await eventually(works)


async def test_without_a_picker(shared: Pool, envoys: dict[str, Envoy]) -> None:
    """Closed, nobody gets through. Open, requests do whose body hasn't come when no picker can be reached; they are
    balanced, and at kgateway a client's own header steers."""
    await shared.stack.pickers[0].kill()
    wish = {DESTINATION: shared.authorities[1]}
    try:
        for name, envoy in envoys.items():
            async with client_of(envoy) as client:
                answers = []
                for _ in range(3):
                    answers.append(await client.post(PATH, content=await _late_body(envoy), headers=wish))
                    answers.append(await client.get("/v1/models", headers=wish))
            if not name.endswith("-open"):
                assert {answer.status_code for answer in answers} == {500}, name
                continue
            assert {answer.status_code for answer in answers} == {200}, name
            served = {answer.headers["x-simulator-endpoint"] for answer in answers}
            assert served == ({"model-2"} if name == "kgateway-open" else {"model-1", "model-2", "model-3"})
    finally:
        await _back(shared, envoys)


async def _late_body(envoy: Envoy) -> AsyncIterator[bytes]:
    """That comes after the connection to the picker was refused. One that comes with the headers may be a 500."""
    before = await _streams_failed(envoy)

    async def body() -> AsyncIterator[bytes]:
        async def failed() -> bool:
            return await _streams_failed(envoy) > before

        await eventually(failed, "a failed stream")
        yield json.dumps(CHAT).encode()

    return body()
