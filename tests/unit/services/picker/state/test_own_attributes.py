"""What endpoint extractors make of endpoints, in the view's columns."""

from typing import Any

from shared.attributes import ACTIVE_MODELS, ALWAYS, WAITING_QUEUE_SIZE
from tests.unit.services.picker.world import endpoint, pool
from tests.work import counted


def test_what_is_made_of_endpoints_follows_them_through_layouts() -> None:
    view = pool("a1", "a2", "a3")
    for name in ("a1", "a2", "gone"):
        view.made(name).put(ACTIVE_MODELS, (name,), ALWAYS)
        view.made(name).put(WAITING_QUEUE_SIZE, 1.0, ALWAYS)
    assert view.layout is view.layout

    def models() -> list[Any]:
        assert len(view.columns.objects(ACTIVE_MODELS).values) == len(view.layout)
        queue = view.columns.numbers(WAITING_QUEUE_SIZE.wire).values
        assert [value == 1.0 for value in queue.tolist()] == [
            value is not None for value in view.columns.objects(ACTIVE_MODELS).values
        ]
        return view.columns.objects(ACTIVE_MODELS).values

    assert models() == [("a1",), ("a2",), None]
    view.upsert("pool.endpoint.a0", endpoint("a0"))
    view.upsert("pool.endpoint.a2", endpoint("a2", "10.9.9.9"))  # another server
    _ = view.layout
    assert models() == [None, ("a1",), ("a2",), None]
    view.made("a1").deny(ACTIVE_MODELS, ALWAYS)
    view.made("a1").deny(WAITING_QUEUE_SIZE, ALWAYS)
    view.delete("pool.endpoint.a2")
    _ = view.layout
    assert models() == [None, None, None]
    view.upsert("pool.endpoint.a2", endpoint("a2"))
    _ = view.layout
    assert models() == [None, None, None, None], "it was gone, and nobody has said anything of it since"


def test_what_is_made_of_one_endpoint_costs_the_same_beside_any_number_of_others() -> None:
    def work(size: int) -> int:
        ids = [f"e{number}" for number in range(size)]
        view = pool(*ids)
        for round in range(2):
            for id in ids if not round else ids[:1]:
                view.made(id).put(ACTIVE_MODELS, (f"{id} in {round}",), ALWAYS)
                view.made(id).put(WAITING_QUEUE_SIZE, 1.0 + round, ALWAYS)
            with counted() as work:
                _ = view.layout
        return work.instructions

    assert work(400) < 1.2 * work(40)
