"""The page about the pool."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from services.console.app import ConsoleService
from shared.bus.columns import flow_hash, pack_counts, pack_hashes
from shared.bus.messages import QueueTable
from shared.model import Endpoint
from tests.browser.conftest import NARROW, USUAL, WALL, Visiting, console
from tests.browser.invented_pool import InventedPool, invented, invented_pool
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

Given: TypeAlias = Callable[..., Awaitable[tuple[InventedPool, ConsoleService]]]
NAMES = "table.pool tbody th"
STATES = "table.pool td.state"
PAGES = {
    "#/pool": "Pool",
    "#/decisions": "Decisions",
    "#/flow": "Flow control",
    "#/configuration": "Configuration",
}
EVIL = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def given(opened: AsyncExitStack, tmp_path: Path) -> Given:
    """A pool of these endpoints, and a console of it."""

    async def made(*endpoints: Endpoint, **settings: Any) -> tuple[InventedPool, ConsoleService]:
        pool = await opened.enter_async_context(invented_pool(tmp_path, endpoints))
        return pool, await opened.enter_async_context(console(pool.nats.url, **settings))

    return made


async def test_endpoints_appear_with_their_numbers_and_go_when_they_leave(given: Given, visit: Visiting) -> None:
    endpoints = [invented(f"model-{number}", number) for number in (1, 2, 10)]
    pool, service = await given(*endpoints)
    shown = await visit(service)
    await eventually(shown.shows(NAMES, ["model-1", "model-2", "model-10"]))
    await eventually(shown.shows(STATES, ["up"] * 3))
    pool.reachable["default/model-2"] = 0.0
    await eventually(shown.shows(STATES, ["up", "down", "up"]))
    await pool.replace(endpoints[1:2])
    await eventually(shown.shows(NAMES, ["model-2"]))
    await eventually(shown.shows("table.pool td.in_flight", ["0"]))


async def test_names_and_labels_are_text(given: Given, visit: Visiting) -> None:
    _, service = await given(invented(EVIL, team=EVIL))
    shown = await visit(service)
    await eventually(shown.shows(NAMES, [EVIL]))
    await shown.page.get_by_role("button", name=EVIL).click()
    await eventually(shown.includes("dialog td", EVIL))
    assert await shown.page.locator("img").count() == 0
    assert await shown.page.title() == "Pool – Pointsman"


async def test_a_thousand_endpoints_are_a_few_elements_and_every_one_can_be_reached_by_keys(
    given: Given, visit: Visiting
) -> None:
    _, service = await given(*(invented(f"gpu-{number}", number) for number in range(1, 1001)))
    shown = await visit(service)
    await eventually(shown.includes(NAMES, "gpu-1"))
    assert await shown.page.locator(NAMES).count() < 60
    await shown.page.get_by_role("button", name="gpu-1", exact=True).focus()
    for key, focused in (("ArrowDown", "gpu-2"), ("End", "gpu-1000"), ("ArrowUp", "gpu-999"), ("Home", "gpu-1")):
        await shown.page.keyboard.press(key)
        assert await shown.page.evaluate("document.activeElement.textContent") == focused
    await shown.page.keyboard.press("Enter")
    await eventually(shown.shows("dialog h2", ["gpu-1"]))
    await shown.page.keyboard.press("Escape")
    await shown.page.get_by_label("Filter").fill("gpu-77 default")
    found = ["gpu-77", *(f"gpu-77{digit}" for digit in range(10))]
    await eventually(shown.shows(NAMES, found))
    await shown.page.get_by_role("button", name="Tiles").click()
    await eventually(shown.shows(".tile strong", found))


async def test_rows_are_sorted_by_any_column(given: Given, visit: Visiting) -> None:
    _, service = await given(*(invented(f"gpu-{number}", number) for number in range(1, 8)))
    shown = await visit(service)
    await eventually(shown.includes(NAMES, "gpu-1"))
    await shown.page.get_by_role("button", name="In flight").click()
    for order in (["6", "5", "4", "3", "2", "1", "0"], ["0", "1", "2", "3", "4", "5", "6"]):
        await eventually(shown.shows("table.pool td.in_flight", order))
        await shown.page.get_by_role("button", name="In flight").click()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [NARROW, USUAL, WALL])
async def test_no_page_has_a_serious_defect_or_scrolls_sideways(
    given: Given, visit: Visiting, size: tuple[int, int], dark: bool
) -> None:
    _, service = await given(*(invented(f"gpu-{number}", number) for number in range(1, 100)))
    for path, heading in PAGES.items():
        shown = await visit(service, path, size=size, dark=dark)
        await eventually(shown.shows("h1", [heading]))
        await eventually(shown.shows("#connection", ["live"]))
        assert await shown.defects() == [], path
        assert await shown.page.evaluate("document.documentElement.scrollWidth") <= size[0]


async def test_bands_and_flows_are_shown_the_fullest_first(given: Given, visit: Visiting) -> None:
    pool, service = await given(invented("model-1"))
    counts = {"requests": [2, 5], "tokens": [20, 50], "ages": [1500, 200], "running": [1, 0], "dispatched": [9, 9]}
    pool.queue = QueueTable(
        priorities=np.array([0, 10], "<i4").tobytes(),
        flows=pack_hashes([flow_hash("tenant-a"), flow_hash("tenant-b")]),
        served=pack_counts([0, 0]),
        **{name: pack_counts(column) for name, column in counts.items()},
    )
    shown = await visit(service, "#/flow", size=NARROW)
    hashes = [f"{flow_hash(name):016x}" for name in ("tenant-b", "tenant-a")]
    await eventually(shown.shows("#main tbody th", ["10", "0", *hashes]))
    assert await shown.defects() == []
    assert await shown.page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]


async def test_a_token_is_asked_for_until_it_fits(given: Given, visit: Visiting) -> None:
    _, service = await given(invented("model-1"), console_token="open sesame")
    shown = await visit(service, "#/constructor")
    for typed in ("no header → carries this", "open sesame"):
        await shown.page.get_by_role("textbox", name="Token").fill(typed)
        await shown.page.get_by_role("button", name="Continue").click()
    await eventually(shown.shows(NAMES, ["model-1"]))
    shown.errors.clear()  # Chromium reports the answer 401


async def test_a_page_goes_on_with_a_restarted_console(given: Given, visit: Visiting, opened: AsyncExitStack) -> None:
    pool, _ = await given(invented("model-1"))
    async with console(pool.nats.url) as first:
        shown = await visit(first)
        await eventually(shown.shows(NAMES, ["model-1"]))
    await eventually(shown.shows("#connection", ["the console doesn't answer"]))
    await opened.enter_async_context(console(pool.nats.url, console_port=first.console_port))
    await pool.replace([invented("model-1"), invented("model-2", 2)])
    await eventually(shown.shows(NAMES, ["model-1", "model-2"]))
    shown.errors.clear()  # Chromium reports the refused connections
