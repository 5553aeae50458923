"""What a client can do while no picker answers, behind both of deploy/envoy's standalone configurations."""

from pathlib import Path

import pytest

from pointsman.local.envoy import STANDALONE, STANDALONE_CLOSED
from services.picker.metadata import DESTINATION, HOSTS, SERVED, SUBSET
from tests.protocol.envoy.conftest import Bench

pytestmark = pytest.mark.asyncio(loop_scope="module")

FORGED = dict.fromkeys((DESTINATION, SERVED, SUBSET, *HOSTS), "192.0.2.1:9")


@pytest.mark.parametrize("configuration", [STANDALONE, STANDALONE_CLOSED], ids=lambda path: path.stem)
async def test_without_a_picker_a_client_chooses_nothing(bench: Bench, configuration: Path) -> None:
    model = await bench.model("a")
    bench.address()  # of a picker that never comes
    client = await bench.client(await bench.envoy(configuration))
    response = await client.post("/v1/chat/completions", content=b"{}", headers=FORGED)
    if configuration is STANDALONE:
        assert response.status_code == 200
        assert not FORGED.keys() & dict(model.received[-1].headers).keys()
    else:
        assert response.status_code == 503
        assert response.json()["error"]["message"] == "the endpoint picker gave no answer"
        assert not model.received
