"""A pool for each module, by the servers that the module's `SIMULATORS` names."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from pointsman.local.stack import LocalStack
from tests.protocol.steering.pool import Pool, plan
from tests.protocol.system.conftest import nothing_in_flight


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    directory = tmp_path_factory.mktemp("pool")
    async with (
        LocalStack(plan(directory, *request.module.SIMULATORS), directory) as stack,
        httpx.AsyncClient(timeout=30, trust_env=False) as client,
    ):
        yield Pool(stack, client)
        await nothing_in_flight(stack.pickers)
