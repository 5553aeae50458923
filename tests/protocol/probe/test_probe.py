"""`pointsman probe` against real servers: what it reads from each engine, and the reasons where there is no page."""

import asyncio
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pointsman.probe import main
from services.simulator.app import Simulator
from services.simulator.gauges import Pins
from services.simulator.settings import EngineType, SimulatorSettings
from tests.certificates import Authority
from tests.protocol.collector.harness import OddServer, answer, vllm

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
PINS = Pins(waiting=5, running=7, kv_usage=0.25, running_adapters=("tuned",), waiting_adapters=("other",))


def settings(engine: EngineType, **given: Any) -> SimulatorSettings:
    return SimulatorSettings(port=0, engine=engine, kv_blocks=1000, block_tokens=32, drain_timeout=1, **given)


async def probe(*arguments: str) -> int:
    """The command's exit code; it runs beside the servers of this loop."""
    return await asyncio.to_thread(main, list(arguments))


async def probed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """The pages that it tells of as JSON; all of them were read."""
    capsys.readouterr()  # what servers have logged so far
    assert await probe("--format=json", *arguments) == 0
    pages: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["pages"]
    return pages


def values(page: dict[str, Any]) -> dict[str, Any]:
    """What was found on a page, by attribute."""
    found = [each for extraction in page["extractions"] for each in extraction["attributes"]]
    return {entry["name"]: entry["value"] for entry in found if entry["outcome"] == "found"}


REQUESTS: dict[str, Any] = {"WaitingQueueSize": 5, "RunningRequestsSize": 7}
CACHE: dict[str, Any] = {"KVCacheUsagePercent": 0.25, "CacheBlockSize": 32, "CacheNumBlocks": 1000}
ADAPTERS: dict[str, Any] = {"ActiveModels": ["tuned"], "WaitingModels": ["other"], "MaxActiveModels": 4}
SHOWN: dict[EngineType, dict[str, Any]] = {
    EngineType.VLLM: REQUESTS | CACHE | ADAPTERS,
    EngineType.SGLANG: REQUESTS | CACHE,
    EngineType.TRTLLM_SERVE: REQUESTS | CACHE,
    EngineType.TRITON_TENSORRT_LLM: REQUESTS | CACHE,
    EngineType.TRITON: {"WaitingQueueSize": 5},
}


@pytest.mark.parametrize("engine", EngineType)
async def test_every_engine_shows_its_values(engine: EngineType, capsys: pytest.CaptureFixture[str]) -> None:
    async with Simulator(settings(engine, adapters=("tuned", "other"))) as running:
        running.server.page.pin(PINS)
        url = running.url + (engine.metrics_path if engine is EngineType.TRTLLM_SERVE else "")
        (page,) = await probed(capsys, url)
    assert page["url"] == running.url + engine.metrics_path
    assert page["extractions"][0]["decided"]["engine"] == engine
    found = values(page)
    assert found.pop("KVCacheUsagePercent", 0.25) == pytest.approx(0.25, abs=0.01)
    assert found == {name: value for name, value in SHOWN[engine].items() if name != "KVCacheUsagePercent"}
    assert page["bytes"] > 500
    assert page["seconds"] > 0


async def test_a_configuration_asks_as_its_sources_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each source by its own rules, for an endpoint of these labels: path by override, the list of models beside it."""
    config = tmp_path / "config.yaml"
    config.write_text(
        HEAD + "plugins:\n- type: metrics-data-source\n  parameters:\n    overrides:\n"
        "    - {matchLabels: {llm-d.ai/engine-type: trtllm-serve}, path: /prometheus/metrics}\n"
        "- type: models-data-extractor\n"
    )
    async with Simulator(settings(EngineType.TRTLLM_SERVE, models=("base",))) as running:
        running.server.page.pin(PINS)
        engine = "llm-d.ai/engine-type=trtllm-serve"
        pages = await probed(capsys, running.url, "--config", str(config), "--label", engine)
    assert {page["source"]: page["url"].removeprefix(running.url) for page in pages} == {
        "metrics-data-source": "/prometheus/metrics",
        "models-data-source": "/v1/models",
    }
    found = {name: value for page in pages for name, value in values(page).items()}
    assert found["WaitingQueueSize"] == 5
    assert found["/v1/models"] == ["base"]


async def test_the_node_of_an_endpoint_is_asked_for_its_own_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = answer(
        b'DCGM_FI_DEV_GPU_UTIL{gpu="0",pod="vllm-0",namespace="llm"} 40\n'
        b'DCGM_FI_DEV_GPU_UTIL{gpu="1",pod="vllm-1",namespace="llm"} 90\n'
    )
    async with OddServer(page) as exporter:
        config = tmp_path / "config.yaml"
        config.write_text(
            f"{HEAD}plugins:\n- type: dcgm-data-source\n  parameters: {{useNodeAddress: true, port: {exporter.port}}}\n"
            "- type: dcgm-extractor\ndataLayer: {injectDefaults: false}\n"
        )
        common = ("http://127.0.0.2:1", "--config", str(config), "--allow-experimental-plugins")
        (found,) = await probed(capsys, *common, "--name", "llm/vllm-0", "--node-address", "127.0.0.1")
        assert values(found) == {"GPUUtilization": 0.4}
        assert await probe(*common) == 1
        assert "the endpoint's node address is unknown" in capsys.readouterr().err


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the client leaves


BAD: dict[str, tuple[Any, str, str]] = {
    "HTML": (
        answer(b"<html>login</html>", headers="Content-Type: text/html"),
        "the response is HTML",
        "set the metrics page",
    ),
    "404": (answer(b"", status="404 Not Found"), "status 404 Not Found", "another path"),
    "redirect": (
        answer(b"", status="302 Found", headers="Location: https://elsewhere/metrics"),
        "redirected (302) to 'https://elsewhere/metrics', not followed",
        "use the URL of the target",
    ),
    "hang": (hang, "no complete response within 300ms", "--timeout"),
    "too large": (answer(b"x" * 20_000), "the page is larger than 10000 bytes", "--page-limit"),
    "no HTTP": (b"hello\r\n\r\n", "no valid response", "is it an HTTP server"),
}


@pytest.mark.parametrize("fault", BAD)
async def test_a_server_without_a_page_is_told_with_the_reason_and_what_to_do(
    fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    behaviour, reason, hint = BAD[fault]
    async with OddServer(behaviour) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert await probe(url, "--timeout", "300ms" if fault == "hang" else "30s", "--page-limit", "10k") == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"{url}/metrics: no page: {reason}")
    assert hint in output.err


async def test_a_server_that_fails_between_two_scrapes(capsys: pytest.CaptureFixture[str]) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(vllm(3) if len(server.requests) == 1 else answer(b"", status="503 Service Unavailable"))

    async with OddServer(once) as server:
        code = await probe(f"127.0.0.1:{server.port}", "--count", "3", "--interval", "10ms", "--format=json")
    assert code == 1
    read, failed = json.loads(capsys.readouterr().out)["pages"]
    assert (failed["ok"], failed["scrapes"], failed["error"]) == (False, 1, "status 503 Service Unavailable")
    assert (read["ok"], read["scrapes"], values(read)["WaitingQueueSize"]) == (True, 1, 3)


async def test_certificates_of_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority, stranger = Authority(tmp_path, "known"), Authority(tmp_path, "stranger")
    context = authority.server()
    context.load_verify_locations(authority.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key = authority.issue()
    client = ["--client-cert", str(certificate), "--client-key", str(key)]
    async with OddServer(vllm(5), ssl=context) as server:
        url = f"https://127.0.0.1:{server.port}"
        assert await probe(url) == 1, "the server asks for a certificate"
        for arguments in (["--verify"], ["--ca-cert", str(stranger.ca)]):
            capsys.readouterr()
            assert await probe(url, *client, *arguments) == 1
            output = capsys.readouterr().err
            assert f"{url}/metrics: no page: TLS failed: " in output
            assert "with --ca-cert" in output
        for arguments in ([], ["--ca-cert", str(authority.ca)]):
            (page,) = await probed(capsys, url, *client, *arguments)
            assert values(page)["WaitingQueueSize"] == 5


async def test_it_is_a_command_that_takes_a_page_from_a_pipe() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "pointsman", "probe", "-", "--engine", "vllm"],
        input=b"vllm:num_requests_waiting 9\n",
        capture_output=True,
        env=environment,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert "WaitingQueueSize     9 " in ended.stdout.decode()
