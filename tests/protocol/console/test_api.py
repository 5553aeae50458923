"""The console's API, over a real nats-server, without a browser."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from services.console.app import ConsoleService
from services.console.settings import ConsoleSettings
from shared.bus.query_messages import MAX_DOCUMENT
from shared.config.problems import Invalid
from shared.service import replay
from tests.browser.conftest import console, patient_checks
from tests.browser.invented_pool import InventedPool, invented, invented_pool
from tests.children import children_end_before_the_loop
from tests.protocol.bus.logins import PASSWORDS, secured, violations
from tests.waiting import TIMEOUT, eventually

__all__ = ["children_end_before_the_loop", "patient_checks"]

CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
dataLayer: {staleMetrics: {after: 7s}}
"""


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[InventedPool]:
    endpoints = [invented("model-1", 1, zone="a"), invented("model-2", 2)]
    async with invented_pool(tmp_path, endpoints) as started:
        yield started


@asynccontextmanager
async def client(pool: InventedPool, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a console of the pool, which knows it."""
    async with console(pool.nats.url, **settings) as service:
        url = f"http://127.0.0.1:{service.console_port}"
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT, trust_env=False) as opened:
            await eventually(lambda: service.readiness.ready)
            yield opened


async def events(asking: httpx.AsyncClient, path: str) -> AsyncIterator[tuple[str, Any]]:
    """The events of a stream: names and documents."""
    async with asking.stream("GET", path) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, msgspec.json.decode(line.removeprefix("data: "))


async def test_endpoints_have_what_is_known_of_them(pool: InventedPool) -> None:
    async with client(pool) as asking:

        async def complete() -> bool:
            page = (await asking.get("/api/pool")).json()
            first, second = page["endpoints"]
            assert (first["name"], first["labels"], second["name"]) == ("model-1", {"zone": "a"}, "model-2")
            assert page["about"]["name"] == "default"
            assert first["reachable"] is True
            assert (first["collector"], second["in_flight"]) == ("collector-1", 1)
            return isinstance(first["queue"], int) and 0 <= first["kv_cache"] <= 1 and first["age"] < TIMEOUT

        await eventually(complete)
        attributes = (await asking.get("/api/pool/endpoint", params={"id": "default/model-1"})).json()["attributes"]
        assert attributes["ActiveModels/core-metrics-extractor"]["value"] == ["adapter-a"]

        async def sampled() -> bool:
            query = {"endpoint": ["default/model-1", "nobody"]}
            history = (await asking.get("/api/pool/history", params=query)).json()
            assert list(history["endpoints"]) == ["default/model-1"]
            return True

        await eventually(sampled)


async def test_a_stream_begins_with_everything_and_goes_on_with_changes(pool: InventedPool) -> None:
    async with client(pool) as asking:
        stream = events(asking, "/api/pool/stream")
        name, whole = await anext(stream)
        assert (name, [endpoint["id"] for endpoint in whole["endpoints"]]) == (
            "whole",
            ["default/model-1", "default/model-2"],
        )
        await pool.replace(pool.endpoints[:1])
        gone = whole["endpoints"][1]["slot"]
        async for name, change in stream:
            assert name == "changes"
            if gone in change.get("removed", ()):
                break


async def test_a_stream_ends_before_its_time_limit(pool: InventedPool) -> None:
    async with client(pool, console_timeout=1.0) as asking:
        assert (await asking.get("/api/flow/stream")).status_code == 200


async def test_changed_limits_take_effect(pool: InventedPool) -> None:
    async with client(pool, console_body=20, console_connections=1, console_history=1) as asking:
        assert (await asking.post("/api/explain", json={"picker": "nobody at all"})).status_code == 413
        opened = [await asyncio.open_connection("127.0.0.1", asking.base_url.port) for _ in range(2)]
        assert await opened[0][0].read() == b"", "closed, because it was idle the longest"
        for _, writer in opened:
            writer.close()
        known = {"endpoint": ["default/model-1", "default/model-2"]}

        async def histories() -> int:
            return len((await asking.get("/api/pool/history", params=known)).json()["endpoints"])

        await eventually(histories)
        assert await histories() == 1


async def test_what_waits_is_shown_of_pickers_with_flow_control(pool: InventedPool) -> None:
    async with client(pool) as asking:
        assert (await asking.get("/api/flow")).json()["pickers"] == {}


async def test_documents_are_checked_and_the_running_one_is_shown(pool: InventedPool) -> None:
    await pool.owner.publish(pool.endpoints, CONFIGURATION)
    async with client(pool) as asking:

        async def running() -> bool:
            page = (await asking.get("/api/configuration")).json()
            return bool(page["text"] == CONFIGURATION and page["about"]["stale_after"] == 7.0 and not page["errors"])

        await eventually(running)
        good = (await asking.post("/api/configuration/check", json={"text": CONFIGURATION})).json()
        assert (good["errors"], len(good["revision"])) == ([], 12)
        bad = (await asking.post("/api/configuration/check", json={"text": "kind: [Nonsense"})).json()
        assert bad["errors"]
        huge = await asking.post("/api/configuration/check", json={"text": "#" * (2**20 + 1)})
        assert "are allowed" in huge.json()["errors"][0]
        schemas = (await asking.get("/openapi.json")).json()["paths"]["/api/configuration/check"]["post"]["requestBody"]
        assert schemas["content"]["application/json"]["schema"]["required"] == ["text"]


async def test_a_dry_run_names_the_pickers_that_give_no_answer(
    pool: InventedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "MAX_WAIT", 0.5)
    async with client(pool) as asking:

        async def silent() -> bool:
            page = (await asking.post("/api/configuration/replay", json={"text": CONFIGURATION})).json()
            assert (page["replayed"], page["pickers"], page["moves"], page["more_moves"]) == (0, [], [], 0)
            return bool(page["missing"] == ["picker picker-1 doesn't answer"])

        await eventually(silent)
        huge = (await asking.post("/api/configuration/replay", json={"text": "#" * (MAX_DOCUMENT + 1)})).json()
        assert huge["errors"] == [f"the document has {MAX_DOCUMENT + 1} bytes; {MAX_DOCUMENT} are allowed"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/explain", {"picker": "nobody"}, 404),
        ("POST", "/api/explain", {"headers": "no list"}, 400),
        ("POST", "/api/explain", {"body": "x" * (2**20 + 1)}, 400),
        ("POST", "/api/explain", [[]], 400),
        ("POST", "/api/explain", None, 415),
        ("POST", "/api/configuration/check", {"text": "x" * 2**21}, 413),
        ("GET", "/api/pool/history", None, 400),
        ("GET", "/api/nothing", None, 404),
        ("GET", "/page/../app.py", None, 404),
        ("GET", "/page/%2e%2e%2fapp.py", None, 404),
        ("PUT", "/api/pool", {}, 405),
    ],
)
async def test_refusals_say_why(pool: InventedPool, method: str, path: str, body: object, status: int) -> None:
    async with client(pool) as asking:
        answer = await asking.request(method, path, json=body)
        assert answer.status_code == status
        assert answer.json()["error"]


async def test_a_decision_that_nobody_knows_and_pickers_that_dont_answer(pool: InventedPool) -> None:
    async with client(pool) as asking:

        async def silent() -> bool:
            page = (await asking.get("/api/decisions/unknown")).json()
            return bool(page == {"decisions": [], "missing": ["picker-1 doesn't answer"]})

        await eventually(silent)


async def test_the_page_is_sent_once(pool: InventedPool) -> None:
    async with client(pool) as asking:
        first = await asking.get("/page/app.js")
        assert first.headers["content-type"] == "text/javascript; charset=utf-8"
        again = await asking.get("/page/app.js", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "<main" in (await asking.get("/")).text
        assert (await asking.get("/docs")).status_code == 200
        assert "/api/pool" in (await asking.get("/openapi.json")).json()["paths"]


async def test_open_streams_dont_keep_a_console_from_stopping(pool: InventedPool) -> None:
    async with console(pool.nats.url) as service:
        url = f"http://127.0.0.1:{service.console_port}"
        asking = httpx.AsyncClient(base_url=url, timeout=TIMEOUT, trust_env=False)
        stream = events(asking, "/api/pool/stream")
        await anext(stream)
        reading = asyncio.create_task(_rest(stream))
    await reading
    await asking.aclose()


async def _rest(stream: AsyncIterator[object]) -> None:
    async for _ in stream:
        pass


async def test_a_taken_port_stops_the_process(pool: InventedPool) -> None:
    async with console(pool.nats.url) as service:
        settings = ConsoleSettings(
            nats_url=(pool.nats.url,), admin_host="127.0.0.1", admin_port=0, console_port=service.console_port
        )
        with pytest.raises(Invalid, match="--console-port"):
            await ConsoleService(settings).serve()


async def test_the_login_of_readers_is_enough(tmp_path: Path) -> None:
    login = {"nats_user": "reader", "nats_password": PASSWORDS["reader"]}
    async with secured(tmp_path / "nats") as server, console(server.url, **login) as service:
        url = f"http://127.0.0.1:{service.console_port}"
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT, trust_env=False) as asking:
            await eventually(lambda: service.bus.connected)
            for path in ("/api/pool", "/api/flow", "/api/configuration", "/api/decisions/unknown"):
                assert (await asking.get(path)).status_code == 200
            assert (await asking.post("/api/explain", json={"picker": "nobody"})).status_code == 404
        assert violations(server) == []
