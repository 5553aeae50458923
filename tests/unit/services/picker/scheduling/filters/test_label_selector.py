from typing import Any

import pytest
from msgspec import structs

from services.picker.scheduling.filters.label_selector import LabelSelector, LabelSelectorFilter
from tests.unit.services.picker.scheduling.plugins import plugin, read
from tests.unit.services.picker.world import cycle, endpoint, pool

VIEW = pool(
    endpoint("a1", role="decode", zone="eu"),
    endpoint("a2", role="prefill"),
    endpoint("a3", role=""),
    endpoint("a4"),
)


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ({}, "1234"),
        ({"matchLabels": {"role": "decode"}}, "1"),
        ({"matchLabels": {"role": "decode", "zone": "us"}}, ""),
        ({"matchLabels": {"role": ""}}, "3"),
        (expression("role", "In", "decode", "prefill"), "12"),
        (expression("role", "In", ""), "3"),
        (expression("role", "NotIn", "decode"), "234"),
        (expression("role", "Exists"), "123"),
        (expression("role", "DoesNotExist"), "4"),
        ({"matchLabels": {"role": "decode"}, **expression("zone", "Exists")}, "1"),
        ({"matchLabels": {"role": "prefill"}, **expression("zone", "Exists")}, ""),
    ],
)
def test_a_selector_matches_as_kubernetes_does(raw: dict[str, Any], kept: str) -> None:
    rows = plugin(LabelSelectorFilter, raw).filter(cycle(VIEW), VIEW.layout.all_rows)
    assert "".join(VIEW.layout.endpoints[row].id[1] for row in rows.tolist()) == kept


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (expression("role", "In"), "needs values"),
        (expression("role", "NotIn"), "needs values"),
        (expression("role", "Exists", "x"), "takes no values"),
        (expression("role", "Equals", "x"), "isn't one of"),
        ({"matchExpressions": [{"operator": "Exists"}]}, "required"),
    ],
)
def test_an_expression_that_means_nothing_is_refused(raw: dict[str, Any], message: str) -> None:
    made, errors = read(LabelSelector, raw)
    assert (made, message in errors[0]) == (None, True), errors


def test_only_rows_that_were_given_are_kept() -> None:
    made = plugin(LabelSelectorFilter, expression("role", "Exists"))
    assert made.filter(cycle(VIEW), VIEW.layout.all_rows[[3, 2, 0]]).tolist() == [2, 0]


def test_a_new_layout_is_looked_at_anew() -> None:
    made = plugin(LabelSelectorFilter, {"matchLabels": {"role": "decode"}})
    view = pool(endpoint("a1", role="decode"), endpoint("a2"))
    assert made.filter(cycle(view), view.layout.all_rows).tolist() == [0]
    view.upsert("pool.endpoint.a2", endpoint("a2", role="decode"))
    assert made.filter(cycle(view), view.layout.all_rows).tolist() == [0, 1]
    other = pool(endpoint("a1"), endpoint("a2", role="decode"))
    assert made.filter(cycle(other), other.layout.all_rows).tolist() == [1]


class Labels(dict[str, str]):
    """Labels that count how often one is looked up."""

    times = 0

    def get(self, *args: Any) -> Any:
        Labels.times += 1
        return super().get(*args)

    def __getitem__(self, key: str) -> str:
        Labels.times += 1
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        Labels.times += 1
        return super().__contains__(key)


def test_the_work_is_no_multiple_of_the_requirements() -> None:
    """A document of others may have thousands of them."""
    view = pool(*(structs.replace(endpoint(f"a{row}"), labels=Labels({"role": "a", "zone": "b"})) for row in range(50)))
    expressions: list[dict[str, Any]] = [{"key": f"k{number}", "operator": "DoesNotExist"} for number in range(500)]
    expressions += [{"key": "role", "operator": "NotIn", "values": [f"v{number}"]} for number in range(500)]
    made = plugin(LabelSelectorFilter, {"matchExpressions": expressions})
    Labels.times = 0
    assert len(made.filter(cycle(view), view.layout.all_rows)) == 50
    assert Labels.times <= 50 * 4
