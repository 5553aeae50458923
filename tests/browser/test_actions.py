"""Draining an endpoint from its dialog."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.browser.conftest import NARROW, Visit, Visiting
from tests.protocol.console.acting import FILE, TOKEN, acting
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def opened_endpoint(shown: Visit) -> None:
    """With the token, the dialog of endpoint `a`."""
    await shown.page.get_by_role("textbox", name="Token").fill(TOKEN)
    await shown.page.get_by_role("button", name="Continue").click()
    await shown.page.get_by_role("button", name="a", exact=True).click()
    await eventually(shown.shows("dialog h2#endpoint-name", ["a"]))
    shown.errors.clear()  # Chromium reports the answer 401


async def test_an_endpoint_is_drained_and_takes_requests_again(
    opened: AsyncExitStack, visit: Visiting, tmp_path: Path
) -> None:
    file = tmp_path / "endpoints.yaml"
    shown = await visit(await opened.enter_async_context(acting(tmp_path)), size=NARROW)
    await opened_endpoint(shown)
    await shown.page.get_by_role("button", name="Drain", exact=True).click()
    await eventually(shown.shows("dialog [role=status]", ["It finishes its requests, and gets no new ones."]))
    await eventually(shown.shows("dialog dl div:first-child dd", ["draining"]))
    assert file.read_text() != FILE
    assert await shown.defects() == []
    await shown.page.get_by_role("button", name="Undrain").click()
    await eventually(shown.shows("dialog [role=status]", ["It gets requests again."]))
    await eventually(shown.shows("dialog dl div:first-child dd", ["unknown"]))  # no metrics
    assert file.read_text() == FILE
    file.write_text("endpoints: [")
    drain = shown.page.get_by_role("button", name="Drain", exact=True)
    await drain.click()

    async def refused() -> bool:
        (status,) = await shown.texts("dialog [role=status]")
        assert status.startswith("The watcher hasn't confirmed it: ")
        return bool(await drain.is_enabled())

    await eventually(refused)
    shown.errors.clear()  # Chromium reports the answer 409


async def test_a_console_that_only_reads_has_no_button(opened: AsyncExitStack, visit: Visiting, tmp_path: Path) -> None:
    shown = await visit(await opened.enter_async_context(acting(tmp_path, allow_actions=False)))
    await opened_endpoint(shown)
    assert await shown.page.get_by_role("button", name="Drain").count() == 0
