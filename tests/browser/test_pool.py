"""The page about the pool."""

from pathlib import Path

from tests.browser.conftest import Visiting, console
from tests.browser.invented_pool import invented, invented_pool
from tests.waiting import eventually

EVIL = "<img src=x onerror=\"document.title='owned'\">"


async def test_endpoints_appear_with_their_numbers_and_go_when_they_leave(tmp_path: Path, visit: Visiting) -> None:
    endpoints = [invented(f"model-{number}", number) for number in (1, 2, 10)]
    async with invented_pool(tmp_path, endpoints) as pool, console(pool.nats.url) as service:
        shown = await visit(service)

        async def names() -> list[str]:
            found: list[str] = await shown.texts("table.pool tbody th")
            return found

        await eventually(lambda: _equal(names, ["model-1", "model-2", "model-10"]))
        await eventually(lambda: _equal(lambda: shown.texts("table.pool td.state"), ["up"] * 3))
        pool.reachable["default/model-2"] = 0.0
        await eventually(lambda: _equal(lambda: shown.texts("table.pool td.state"), ["up", "down", "up"]))
        await pool.replace(endpoints[:1])
        await eventually(lambda: _equal(names, ["model-1"]))
        assert await shown.texts("table.pool td.in_flight") == ["0"]


async def test_names_and_labels_are_text(tmp_path: Path, visit: Visiting) -> None:
    endpoint = invented(EVIL, **{"team": EVIL})
    async with invented_pool(tmp_path, [endpoint]) as pool, console(pool.nats.url) as service:
        shown = await visit(service)
        await eventually(lambda: _equal(lambda: shown.texts("table.pool tbody th"), [EVIL]))
        await shown.page.get_by_role("button", name=EVIL).click()
        await eventually(lambda: _contains(lambda: shown.texts("dialog td"), EVIL))
        assert await shown.page.locator("img").count() == 0
        assert await shown.page.title() == "Pool – Pointsman"


async def _equal(read, expected) -> bool:
    found = await read()
    assert found == expected
    return True


async def _contains(read, expected) -> bool:
    assert expected in await read()
    return True
