"""Draining from the console, through the watcher to its endpoints file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from shared.config.problems import Invalid
from tests.browser.conftest import console
from tests.protocol.console.acting import FILE, TOKEN, acting
from tests.waiting import TIMEOUT, eventually

DRAINED = FILE.replace("- {", '- {"drain": true, ', 1)
PATH = "/api/pool/drain"


@asynccontextmanager
async def asking(folder: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the token of a console that may act."""
    async with acting(folder, **settings) as service:
        url = f"http://127.0.0.1:{service.console_port}"
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT, trust_env=False) as client:
            yield client


async def test_an_endpoint_is_drained_and_undrained_in_the_watchers_file(tmp_path: Path) -> None:
    async with asking(tmp_path) as client:

        async def draining(*expected: bool) -> None:
            async def so() -> bool:
                page = (await client.get("/api/pool")).json()
                assert [endpoint["draining"] for endpoint in page["endpoints"]] == [*expected]
                return True

            await eventually(so)

        assert (await client.get("/api/pool")).json()["about"]["actions"] is True
        await draining(False, False)
        with capture_logs() as logs:
            answer = await client.post(PATH, json={"endpoint": "default/a"})
        assert (answer.status_code, answer.json()) == (200, {"endpoint": "default/a", "draining": True})
        assert (tmp_path / "endpoints.yaml").read_text() == DRAINED
        lines = [line for line in logs if line["event"] == "action.drain"]
        assert [line["endpoint"] for line in lines] == ["default/a"] * 2  # the watcher's, and the console's
        assert all(line["by"].startswith("127.0.0.1 at console ") for line in lines)
        await draining(True, False)
        answer = await client.post(PATH, json={"endpoint": "default/a", "drain": False})
        assert answer.status_code == 200
        assert (tmp_path / "endpoints.yaml").read_text() == FILE
        await draining(False, False)


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "without the token": ({"headers": {"authorization": ""}}, 401, "token"),
    "from another site": ({"headers": {"sec-fetch-site": "cross-site"}}, 403, "another site"),
    "from a sibling of the site": ({"headers": {"sec-fetch-site": "same-site"}}, 403, "another site"),
    "as a form": ({"headers": {"content-type": "text/plain"}}, 415, "application/json"),
    "an unknown endpoint": ({"json": {"endpoint": "default/c"}}, 409, "no endpoint 'default/c'"),
    "no endpoint": ({"json": {}}, 400, "endpoint"),
}


async def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    async with asking(tmp_path) as client:
        for case, (changed, status, reason) in REFUSED.items():
            answer = await client.post(PATH, **{"json": {"endpoint": "default/a"}, **changed})
            assert answer.status_code == status, case
            assert reason in answer.json()["error"], case
    assert (tmp_path / "endpoints.yaml").read_text() == FILE


@pytest.mark.parametrize(
    ("settings", "status"), [({"allow_actions": False}, 404), ({"watcher": False}, 503)], ids=["console", "watcher"]
)
async def test_console_and_watcher_both_have_to_allow_it(tmp_path: Path, settings: Any, status: int) -> None:
    async with asking(tmp_path, **settings) as client:
        assert (await client.post(PATH, json={"endpoint": "default/a"})).status_code == status
    assert (tmp_path / "endpoints.yaml").read_text() == FILE


async def test_a_file_that_cant_be_edited_is_named(tmp_path: Path) -> None:
    async with asking(tmp_path) as client:
        (tmp_path / "endpoints.yaml").write_text("endpoints: [")
        answer = await client.post(PATH, json={"endpoint": "default/a"})
        assert answer.status_code == 409
        assert "endpoints.yaml" in answer.json()["error"]


async def test_actions_require_a_token() -> None:
    with pytest.raises(Invalid, match="--console-token is required"):
        async with console("nats://127.0.0.1:1", allow_actions=True):
            pass
