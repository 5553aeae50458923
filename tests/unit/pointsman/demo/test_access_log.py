"""What Envoy's access log says of a request, while it is still being written."""

import asyncio
import json
from pathlib import Path

from pointsman.demo.access_log import AccessLog

SERVER = "127.0.0.1:8000"
BEGUN = "upstream_reset_after_response_started{remote_reset}"


def line(request_id: str, details: str, upstream: str | None = SERVER) -> str:
    return json.dumps({"time": "…", "request_id": request_id, "details": details, "upstream": upstream}) + "\n"


async def test_a_server_that_had_begun_is_named(tmp_path: Path) -> None:
    path = tmp_path / "envoy.log"
    path.write_text("[warning] starting\n{no json}\n" + line("a", BEGUN) + line("b", "via_upstream"))
    log = AccessLog(path, within=0.0)
    assert await log.responding_server("a") == SERVER
    assert await log.responding_server("b") == ""
    assert await AccessLog(tmp_path / "none.log", within=0.0).responding_server("a") == ""


async def test_a_request_that_ended_otherwise_is_nobody_s(tmp_path: Path) -> None:
    path = tmp_path / "envoy.log"
    path.write_text(
        line("a", "upstream_reset_before_response_started{connection_termination}")
        + line("b", "downstream_remote_disconnect")
        + line("c", BEGUN, upstream=None)
        + '{"request_id": "d", "details": null}\n'
    )
    log = AccessLog(path, within=0.0)
    assert [await log.responding_server(each) for each in "abcd"] == ["", "", "", ""]


async def test_a_line_is_waited_for_and_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "envoy.log"
    log = AccessLog(path, within=20.0)
    asked = asyncio.create_task(log.responding_server("a"))
    await asyncio.sleep(0.1)
    whole = line("z", "x") + line("a", BEGUN)
    path.write_text(whole[:-20])
    await asyncio.sleep(0.1)
    assert not asked.done()
    with path.open("a") as file:
        file.write(whole[-20:])
    assert await asked == SERVER
