"""The pool as events: what a page that applies them knows is what there is."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from services.console.history import SAMPLES, History
from services.console.pool_topic import PoolTopic, facts_of, numbers_of
from shared.pool_view.rows import EndpointRow
from shared.tasks import TURN, cancel

numbers = st.one_of(st.none(), st.integers(0, 3))
ROWS = st.dictionaries(
    st.sampled_from("abc"),
    st.builds(
        lambda queue, reachable, age, zone: {
            "queue": queue,
            "reachable": reachable,
            "age": age,
            "labels": {"zone": zone},
        },
        numbers,
        st.sampled_from([None, True, False]),
        st.one_of(st.none(), st.integers(0, 3).map(float)),
        st.sampled_from("xy"),
    ),
)


def rows_of(described: dict[str, dict[str, Any]]) -> list[EndpointRow]:
    return [EndpointRow(id=id, name=id, authority="", **fields) for id, fields in described.items()]


class Page:
    """What a page makes of the events."""

    def __init__(self) -> None:
        self.endpoints: dict[int, dict[str, Any]] = {}

    def apply(self, piece: bytes | None, now: int) -> None:
        for endpoint in self.endpoints.values():
            if endpoint["age"] is not None:
                endpoint["age"] += now - endpoint["seen"]
            endpoint["seen"] = now
        if piece is None:
            return
        name, data = piece.decode().strip().split("\n")
        content = msgspec.json.decode(data.removeprefix("data: "))
        if name == "event: whole":
            self.endpoints = {}
        for slot in content.get("removed", ()):
            del self.endpoints[slot]
        for facts in content.get("endpoints", ()):
            self.endpoints.setdefault(facts.pop("slot"), {}).update(facts)
        values = content.get("values", {"slots": []})
        for at, slot in enumerate(values.pop("slots")):
            self.endpoints[slot].update({column: found[at] for column, found in values.items()})
            self.endpoints[slot]["seen"] = now

    def shown(self) -> list[dict[str, Any]]:
        shown = [
            {name: value for name, value in endpoint.items() if name != "seen"} for endpoint in self.endpoints.values()
        ]
        return sorted(shown, key=lambda endpoint: str(endpoint["id"]))


@given(st.lists(ROWS, min_size=1, max_size=5), st.integers(0, 5))
async def test_a_page_knows_what_there_is_whenever_it_came(states: list[dict[str, dict[str, Any]]], joins: int) -> None:
    present: list[EndpointRow] = []
    version = 0
    topic = PoolTopic(lambda: present, lambda: version, lambda: {"about": {"version": version}}, lambda: float(version))
    early, late = Page(), Page()
    for at, state in enumerate(states):
        present = rows_of(state)
        version += 1
        change = await topic.refresh()
        early.apply(change, version)
        if at > joins:
            late.apply(change, version)
        elif at == joins:
            late.apply(await topic.whole(), version)
    expected = []
    for row in sorted(present, key=lambda row: row.id):
        endpoint = msgspec.to_builtins(facts_of(row) | numbers_of(row))
        endpoint["reachable"] = None if row.reachable is None else int(row.reachable)
        expected.append(endpoint)
    assert early.shown() == [{**endpoint, "adapters": [], "models": []} for endpoint in expected]
    if joins < len(states):
        assert late.shown() == early.shown()


async def test_others_have_their_turn_between_endpoints_and_a_look_that_is_cancelled_loses_nothing() -> None:
    turns = 0

    def slow() -> Iterator[EndpointRow]:
        for row in rows_of({name: {"queue": 1} for name in "abc"}):
            time.sleep(2 * TURN)
            yield row

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    topic, page, other = PoolTopic(slow, lambda: 1, dict), Page(), asyncio.create_task(others())
    looking = asyncio.create_task(topic.refresh())
    await asyncio.wait({looking}, timeout=TURN)
    await cancel(looking)
    turns = 0
    page.apply(await topic.refresh(), 1)
    assert turns >= 3
    turns = 0
    await History(2).sample(slow())
    assert turns >= 2
    assert [endpoint["name"] for endpoint in page.shown()] == ["a", "b", "c"]
    await cancel(other)


async def test_nothing_new_is_no_event() -> None:
    rows = rows_of({"a": {"queue": 1, "age": 0.5}})
    topic = PoolTopic(lambda: rows, lambda: 1, dict, lambda: 0.0)
    assert await topic.refresh() is not None
    assert await topic.refresh() is None


async def test_the_history_has_the_newest_sample_last_and_nothing_where_nothing_was_known() -> None:
    history = History(2)
    for queue in (1, None, 3):
        await history.sample(rows_of({name: {"queue": queue} for name in "abc"}))
    kept = history.of(["a", "c", "unknown"])
    assert list(kept) == ["a"]
    assert len(kept["a"]["queue"]) == SAMPLES
    assert [value if value == value else None for value in kept["a"]["queue"][-4:]] == [None, 1.0, None, 3.0]
    await history.sample([])
    assert history.of(["a"]) == {}
