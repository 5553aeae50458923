"""When a picker searches for cyclic garbage."""

import gc

import pytest

from services.picker.garbage import EVERY, FEW, LATEST, YOUNG, GarbageCollection, search_young_only


@pytest.mark.parametrize(
    ("passed", "open", "young", "searched"),
    [
        (EVERY, FEW, YOUNG + 1, True),
        (EVERY - 1, FEW, YOUNG + 1, False),
        (EVERY, FEW + 1, YOUNG + 1, False),
        (EVERY, FEW, YOUNG, False),
        (LATEST, 20_000, YOUNG + 1, True),
    ],
)
def test_all_objects_are_searched_when_it_is_quiet(passed: float, open: int, young: int, searched: bool) -> None:
    searches: list[int] = []
    garbage = GarbageCollection(lambda: open, 5.0, young=lambda: young, search=lambda: searches.append(1))
    garbage.collect_if_due(5.0 + passed)
    assert bool(searches) is searched
    garbage.collect_if_due(5.0 + passed + 1)
    assert len(searches) <= 1, "not again at once"


def test_many_open_requests_have_no_full_collection() -> None:
    before = gc.get_threshold()
    kept: list[list[int]] = []
    try:
        search_young_only()
        collections = [each["collections"] for each in gc.get_stats()]
        for _ in range(20 * before[0] * before[1]):
            kept.append([])
        young, *old = [each["collections"] for each in gc.get_stats()]
        assert young > collections[0], "those are short"
        assert old == collections[1:]
    finally:
        gc.set_threshold(*before)
