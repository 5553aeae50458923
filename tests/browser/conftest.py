"""A headless Chromium, Debian's package, driven by Playwright. Without both, these tests are skipped."""

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

from services.console import checking
from services.console.app import ConsoleService
from services.console.settings import ConsoleSettings
from tests.in_process import serving
from tests.waiting import TIMEOUT

REQUIRE = "POINTSMAN_REQUIRE_BROWSER"
"""Set to 1: tests that can't have a browser fail, instead of being skipped."""
NARROW, USUAL, WALL = (375, 720), (1366, 900), (2560, 1440)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


def missing() -> str:
    """What these tests lack; empty if nothing."""
    if shutil.which("chromium") is None:
        return "chromium isn't installed: apt-get install chromium"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright isn't installed: pip install playwright"
    return ""


@asynccontextmanager
async def console(url: str, **settings: Any) -> AsyncIterator[ConsoleService]:
    """A console in this process, on free ports."""
    common = {"nats_url": (url,), "admin_host": "127.0.0.1", "admin_port": 0, "console_port": 0}
    async with serving(ConsoleService(ConsoleSettings(**{**common, **settings}))) as service:
        yield service


Condition: TypeAlias = Callable[[], Awaitable[bool]]


class Visit:
    """A page of a browser, with what went wrong there."""

    def __init__(self, page: Any, origin: str) -> None:
        self.page, self.origin = page, origin
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        """Requests that left the origin."""
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._requested(request.url))

    def _requested(self, url: str) -> None:
        if not url.startswith((self.origin, "data:", "about:")):
            self.elsewhere.append(url)

    async def go(self, path: str = "#/pool") -> None:
        await self.page.goto(f"{self.origin}/{path}")

    async def texts(self, selector: str) -> list[str]:
        """What these elements show."""
        found: list[str] = await self.page.locator(selector).all_inner_texts()
        return found

    async def defects(self) -> list[tuple[str, list[str]]]:
        """What axe finds serious: rules, and elements that break them."""
        from axe_playwright_python.async_playwright import Axe

        result = await Axe().run(self.page)
        return [
            (violation["id"], [node["html"] for node in violation["nodes"]][:3])
            for violation in result.response["violations"]
            if violation["impact"] in ("serious", "critical")
        ]

    def shows(self, selector: str, expected: Sequence[str]) -> Condition:
        """For `eventually`: whether these elements show just that."""

        async def shown() -> bool:
            found = await self.texts(selector)
            assert found == list(expected)
            return True

        return shown

    def includes(self, selector: str, expected: str) -> Condition:
        """For `eventually`: whether one of these elements shows that."""

        async def shown() -> bool:
            found = await self.texts(selector)
            assert expected in found
            return True

        return shown


Visiting = Callable[..., Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Any]:
    """One for all tests of a module."""
    if reason := missing():
        if os.environ.get(REQUIRE) == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    async with started_browser() as started:
        yield started


@asynccontextmanager
async def started_browser() -> AsyncIterator[Any]:
    """A headless Chromium."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


@pytest.fixture(autouse=True)
def patient_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents are checked at a low priority, for which a busy machine has little time."""
    monkeypatch.setattr(checking, "TIMEOUT", 10 * TIMEOUT)


@pytest_asyncio.fixture(loop_scope="module")
async def opened() -> AsyncIterator[AsyncExitStack]:
    """What a test opens here is closed after its pages."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def visit(browser: Any, opened: AsyncExitStack) -> AsyncIterator[Visiting]:
    """Opens a page of a console: `await visit(service, path, size=NARROW, dark=True)`. At the end no page may have had
    an error, or asked another origin for anything."""
    visits: list[Visit] = []

    async def visited(
        service: ConsoleService, path: str = "#/pool", *, size: tuple[int, int] = USUAL, dark: bool = False
    ) -> Visit:
        scheme = "dark" if dark else "light"
        page = await browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        visits.append(Visit(page, f"http://127.0.0.1:{service.console_port}"))
        await visits[-1].go(path)
        return visits[-1]

    yield visited
    for visit in visits:
        found = visit.page.url, visit.errors, visit.elsewhere
        await visit.page.close()
        assert found[1:] == ([], []), found
