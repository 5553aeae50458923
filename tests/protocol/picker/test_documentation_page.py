"""`/docs` of a running picker, in a browser that reaches nothing but this machine."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.in_process import picker, serving
from tests.nats import NatsServer

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


async def test_the_documentation_page_shows_every_path(nats: NatsServer, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("this machine has no browser")
    service = picker(nats.url)
    async with serving(service):
        shown = await asyncio.create_subprocess_exec(
            browser,
            *("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"),
            *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--virtual-time-budget=10000"),
            *("--dump-dom", f"http://127.0.0.1:{service.admin_port}/docs"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        page = (await shown.communicate())[0].decode()
    for path in ("/healthz", "/metrics", "/debug/state", "/debug/decisions", "/debug/decisions/{request_id}"):
        assert path in page
