"""What each gateway's form does without a picker, fail closed and fail open."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from pointsman.local.envoy import Envoy
from tests.protocol.gateways.conftest import CHAT, PATH, Pool, client_of, pool
from tests.protocol.gateways.forms import DESTINATION, FORMS, fail_open
from tests.waiting import TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPEN = ["istio", "kgateway"]
"""The forms that follow the pool's failureMode."""
STREAM = CHAT | {"stream": True, "max_tokens": 40_000, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    async with pool(tmp_path_factory.mktemp("failures"), endpoints=1, pickers=1) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def envoys(shared: Pool) -> dict[str, Envoy]:
    closed = {name: await shared.gateway(name, form()) for name, form in FORMS.items()}
    return closed | {f"{name}-open": await shared.gateway(f"{name}-open", fail_open(FORMS[name]())) for name in OPEN}


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
    before = {name: await _streams_to_pickers(envoys[name]) for name in names}
    picker.pause()
    waiting = [asyncio.create_task(_status(envoys[name])) for name in names]
    for name in names:  # a request that comes to a picker that is gone isn't held there

        async def sent(name: str = name) -> bool:
            return await _streams_to_pickers(envoys[name]) == before[name] + 1

        await eventually(sent)
    await asyncio.sleep(0.5)  # for the bodies, too
    assert not any(task.done() for task in waiting)
    await picker.kill()
    try:
        assert await asyncio.gather(*streams) == [True] * len(names)
        assert dict(zip(names, await asyncio.gather(*waiting), strict=True)) == dict.fromkeys(names, 500)
    finally:
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


async def _streams_to_pickers(envoy: Envoy) -> int:
    """ext_proc streams that an Envoy has opened since it started."""
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{envoy.admin_url}/stats?filter=ext_proc.streams_started$")
    return sum(int(line.rsplit(":", 1)[1]) for line in answer.text.splitlines())


async def _status(envoy: Envoy) -> int:
    async with client_of(envoy) as client:
        return (await client.post(PATH, json=CHAT)).status_code


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
                    answers.append(await client.post(PATH, content=_late_body(), headers=wish))
                    answers.append(await client.get("/v1/models", headers=wish))
            if not name.endswith("-open"):
                assert {answer.status_code for answer in answers} == {500}, name
                continue
            assert {answer.status_code for answer in answers} == {200}, name
            served = {answer.headers["x-simulator-endpoint"] for answer in answers}
            assert served == ({"model-2"} if name == "kgateway-open" else {"model-1", "model-2", "model-3"})
    finally:
        await _back(shared, envoys)


async def _late_body() -> AsyncIterator[bytes]:
    """That comes after the connection to the picker was refused, and before Envoy closes a connection that it has
    answered on already (1 s). One that comes with the headers may be a 500."""
    await asyncio.sleep(0.5)
    yield json.dumps(CHAT).encode()
