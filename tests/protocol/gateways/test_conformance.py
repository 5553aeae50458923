"""The cases of the Gateway API Inference Extension's conformance suite that are about traffic and need no cluster,
with the suite's own configuration of the picker.

GatewayFollowingEPPRouting and GatewayFollowingEPPRoutingWithDataParallelism are one case here, as all servers have one
address and ports of their own. EppUnAvailableFailOpen is
`tests/faults/system/test_ours.py::test_with_all_pickers_gone_requests_are_routed_all_the_same`.
"""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.protocol.gateways.conftest import CHAT, PATH, Pool, pool

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIGURATION = """\
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: header-based-testing-filter
- type: destination-endpoint-served-verifier
- type: random-picker
schedulingProfiles:
- name: conformance-profile
  plugins:
  - pluginRef: header-based-testing-filter
  - pluginRef: random-picker
"""
REQUESTS, AT_A_TIME = 30, 10
"""The suite sends 100."""
REPORT = ("istio",)
"""Gateways that report the endpoint that served."""
MISSING = "fail: missing destination endpoint served metadata"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    async with pool(tmp_path_factory.mktemp("conformance"), configuration=CONFIGURATION) as started:
        yield started


async def test_requests_go_to_the_endpoint_that_the_header_selects_and_the_response_names_it(
    shared: Pool, client: httpx.AsyncClient, form: str
) -> None:
    """GatewayFollowingEPPRouting, …WithDataParallelism, GatewayDestinationEndpointServed."""
    slots = asyncio.Semaphore(AT_A_TIME)

    async def ask(authority: str) -> httpx.Response:
        async with slots:
            return await client.post(PATH, json=CHAT, headers={"test-epp-endpoint-selection": authority})

    for server in shared.stack.simulators:
        answers = await asyncio.gather(*(ask(server.authority) for _ in range(REQUESTS)))
        assert {(answer.status_code, answer.headers.get("x-simulator-endpoint")) for answer in answers} == {
            (200, server.name)
        }
        served = {answer.headers["x-conformance-test-served-endpoint"] for answer in answers}
        assert served == {server.authority if form in REPORT else MISSING}


async def test_without_a_selection_a_request_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, json=CHAT)
    assert answer.status_code == 429
