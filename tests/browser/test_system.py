"""The console of a whole system: what it shows is what the processes do."""

import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pointsman.local.stack import LocalStack
from services.console.app import ConsoleService
from tests.browser.conftest import Visit, Visiting, console
from tests.protocol.system.conftest import decision, plan
from tests.soak.promises import SHOWN_AS_DOWN, measured
from tests.waiting import TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASKED = {"model": "base", "messages": [{"role": "user", "content": "A secret prompt."}], "max_tokens": 4}
LISTED = "table.decisions tbody a"
CHAT = "/v1/chat/completions"
REQUEST_ID = re.compile("^[0-9a-f-]{36}$")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    directory = tmp_path_factory.mktemp("system")
    async with LocalStack(plan("ours", directory), directory) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def service(stack: LocalStack) -> AsyncIterator[ConsoleService]:
    async with console(stack.nats.url) as started:
        yield started


async def ask(stack: LocalStack, **headers: str) -> str:
    """A request through Envoy; its id."""
    async with httpx.AsyncClient(base_url=stack.url, timeout=30, trust_env=False) as client:
        response = await client.post(CHAT, json=ASKED, headers=headers)
        assert response.status_code == 200
        return str(response.headers["x-request-id"])


async def test_a_decision_found_by_id_shows_the_scores_of_its_picker(
    stack: LocalStack, service: ConsoleService, visit: Visiting
) -> None:
    request_id = await ask(stack)
    shown = await visit(service, f"#/decisions/{request_id}")
    made = await decision(stack.pickers, request_id)
    profile = made["profiles"][made["primary_profile"]]
    await eventually(shown.shows(".bars .chosen .tag", ["chosen"]))
    rows = await shown.page.locator("table.exact tbody tr").all_text_contents()
    for id, scores in profile["endpoints"].items():
        row = next(row for row in rows if row.startswith(id))
        for score in scores["scores"].values():
            assert f"{score['score']:g} × {score['weight']:g} = {score['weighted']:g}" in row
    assert made["endpoint"] in (await shown.texts(".bars .chosen"))[0]
    assert "A secret prompt." not in await shown.page.content()
    assert await shown.defects() == []


async def test_decisions_appear_and_can_be_filtered(
    stack: LocalStack, service: ConsoleService, visit: Visiting
) -> None:
    shown = await visit(service, "#/decisions")
    request_ids = [await ask(stack) for _ in range(3)]

    for request_id in request_ids:
        await eventually(shown.includes(LISTED, request_id))
    await shown.page.get_by_label("Model", exact=True).fill("no such model")
    await eventually(shown.shows(LISTED, []))
    await shown.page.get_by_label("Model", exact=True).fill("base")
    await eventually(shown.includes(LISTED, request_ids[0]))
    states = "table.decisions tbody td:nth-child(5)"
    await eventually(shown.includes(states, "completed"))
    rows = shown.page.get_by_role("region", name="By endpoint").locator("tbody tr")

    async def summed() -> bool:
        cells = [text.split("\t") for text in await rows.all_inner_texts()]
        assert {cell[0] for cell in cells} <= {f"default/{server.name}" for server in stack.simulators}
        assert sum(int(cell[1]) for cell in cells) >= len(request_ids)
        assert all(cell[2] != "–" for cell in cells)
        return True

    await eventually(summed)
    assert await shown.defects() == []


async def test_a_picker_is_asked_again_without_a_request(
    stack: LocalStack, service: ConsoleService, visit: Visiting
) -> None:
    shown = await visit(service, f"#/decisions/{await ask(stack)}")
    await shown.page.get_by_text("Ask again").click()
    await shown.page.get_by_role("button", name="Ask picker-").click()
    await eventually(shown.includes("h2", "What would be decided now"))


async def test_members_of_all_tiers_are_shown_with_their_leader(
    stack: LocalStack, service: ConsoleService, visit: Visiting
) -> None:
    shown = await visit(service)

    async def members() -> list[str]:
        found = await shown.texts("table.members tbody tr")
        return [" ".join(text.split()) for text in found]

    def all_there(found: list[str]) -> bool:
        names = [process.name for process in (*stack.watchers, *stack.collectors, *stack.pickers)]
        return all(any(text.startswith(name) and "ready" in text for text in found) for name in names)

    async def complete() -> bool:
        found = await members()
        return all_there(found) and "leader" in found[0] and "agrees" in found[0]

    await eventually(complete)
    assert await shown.defects() == []


async def test_the_running_configuration_is_shown_and_others_are_checked(
    stack: LocalStack, service: ConsoleService, visit: Visiting
) -> None:
    shown = await visit(service, "#/configuration")
    await eventually(shown.includes("pre", stack.plan.configuration))
    draft = shown.page.get_by_label("Document", exact=True)
    await draft.fill((stack.plan.configuration or "").replace("queue-scorer", "queue-scorre"))
    await shown.page.get_by_role("button", name="Check").click()
    await eventually(shown.shows(".note.error p", ["The tiers would refuse it:"]))
    assert "did you mean 'queue-scorer'?" in (await shown.texts(".note.error"))[0]
    await draft.fill(stack.plan.configuration or "")
    await shown.page.get_by_role("button", name="Check").click()
    await eventually(lambda: shown.page.locator(".note.good").count())


async def replayed(shown: Visit, button: str, answer: Any) -> None:
    """Press the button, and wait for the answer. Pickers replay at a low priority, and on a busy machine too late: then
    it is pressed again."""
    running = shown.page.get_by_text("The pickers replay their last decisions")

    async def answered() -> bool:
        if not await answer.count() and not await running.count():
            await shown.page.get_by_role("button", name=button).click()
        return bool(await answer.count())

    await eventually(answered, timeout=3 * TIMEOUT)


async def test_an_edited_document_is_tried_on_the_last_decisions(
    stack: LocalStack, service: ConsoleService, visit: Visiting
) -> None:
    await ask(stack)
    shown = await visit(service, "#/configuration")
    draft = shown.page.get_by_label("Document", exact=True)
    await eventually(shown.includes("pre", stack.plan.configuration))
    await draft.fill((stack.plan.configuration or "") + "\n# as it is")
    await replayed(shown, "Dry run", shown.page.get_by_text("would have gone elsewhere."))
    assert (await shown.texts(".note.good"))[-1].startswith("0 of the last ")
    nobody = "{type: label-selector-filter, parameters: {matchLabels: {no: server}}}"
    await draft.fill(f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{nobody}]")
    await replayed(shown, "Dry run", shown.page.get_by_role("cell", name="refused: no endpoint is left"))
    assert await shown.defects() == []
    await shown.page.get_by_role("link", name=REQUEST_ID).first.click()
    await eventually(shown.shows(".bars .chosen .tag", ["chosen"]))


async def test_the_last_change_of_the_configuration_is_shown_and_tried(
    stack: LocalStack, service: ConsoleService, visit: Visiting
) -> None:
    await ask(stack)
    before = stack.plan.configuration or ""
    shown = await visit(service, "#/configuration")
    await eventually(shown.includes("pre", before))
    after = before.replace("weight: 3", "weight: 1")
    [(old, new)] = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=True) if pair[0] != pair[1]]
    stack.write_configuration(after)
    try:
        await eventually(shown.shows("pre .added", [f"+ {new}\n"]))
        assert await shown.texts("pre .removed") == [f"- {old}\n"]
        await replayed(shown, "Try the former document", shown.page.get_by_text("would have gone elsewhere."))
        assert await shown.page.get_by_label("Document", exact=True).input_value() == before
        assert await shown.defects() == []
    finally:
        stack.write_configuration(before)
        await eventually(shown.includes("pre", before))


@pytest.mark.soak
async def test_a_killed_model_server_is_shown_as_down(
    stack: LocalStack, service: ConsoleService, visit: Visiting
) -> None:
    shown = await visit(service)
    states = "table.pool td.state"
    await eventually(shown.shows(states, ["up", "up", "up"]))
    killed = time.monotonic()
    await stack.simulators[1].kill()
    try:
        await eventually(shown.shows(states, ["up", "down", "up"]))
        measured(SHOWN_AS_DOWN, time.monotonic() - killed)
    finally:
        await stack.simulators[1].start()
    await eventually(shown.shows(states, ["up", "up", "up"]))
