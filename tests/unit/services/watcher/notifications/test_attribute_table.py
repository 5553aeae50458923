import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from services.watcher.notifications.attribute_table import AttributeTable
from shared.attributes import AttributeKey, Sample
from shared.datalayer.events import EventCounts
from shared.datalayer.objects import NotificationEvent, NotificationExtractor
from shared.model import Endpoint
from shared.plugin_failures import PluginFailures

SIZE = AttributeKey("Size", "sizes", float)
NAMES: AttributeKey[tuple[str, ...]] = AttributeKey("Names", "sizes", tuple)


OTHER = AttributeKey("Other", "others", float)


class Sizes(NotificationExtractor):
    """Says of each node what it is told to."""

    TYPE = "sizes"
    PRODUCES: ClassVar[tuple[AttributeKey[Any], ...]] = (SIZE, NAMES, OTHER)

    def __init__(self, says: dict[str, Any], name: str = "sizes") -> None:
        super().__init__(name)
        self.says = says

    def on_object(self, event: NotificationEvent) -> bool:
        return True

    def attributes(self, endpoint: Endpoint) -> Mapping[AttributeKey[Any], Any]:
        reported = self.says.get(endpoint.node, {})
        if isinstance(reported, Exception):
            raise reported
        return reported  # type: ignore[no-any-return]


class Silent(Sizes):
    PRODUCES = ()


class Others(Sizes):
    PRODUCES = (OTHER,)


def at(name: str, node: str) -> Endpoint:
    return Endpoint(id=name, name=name, address="10.0.0.1", port=8000, node=node)


def table_of(*extractors: NotificationExtractor) -> tuple[AttributeTable, PluginFailures]:
    failures = PluginFailures(time.monotonic)
    return AttributeTable(extractors, EventCounts(failures)), failures


def by_id(*endpoints: Endpoint) -> dict[str, Endpoint]:
    return {endpoint.id: endpoint for endpoint in endpoints}


A, B = at("a", "n1"), at("b", "n2")


def test_each_endpoint_has_what_is_said_of_its_node() -> None:
    table, _ = table_of(Sizes({"n1": {SIZE: 2.0, NAMES: ("x",)}, "n2": {SIZE: 3}}))
    assert table.update(by_id(A, B)) == ["a", "b"]
    assert table.of("a") == {"Size/sizes": 2.0, "Names/sizes": ("x",)}
    assert table.of("b") == {"Size/sizes": 3}
    assert table.of("unknown") == {}


def test_only_what_is_new_is_told_as_changed() -> None:
    sizes = Sizes({"n1": {SIZE: 2.0}})
    table, _ = table_of(sizes)
    table.update(by_id(A, B))
    assert table.update(by_id(A, B)) == []
    sizes.says = {"n1": {SIZE: 4.0}}
    assert table.update(by_id(A, B)) == ["a"]
    assert table.update(by_id(at("a", "n2"), B)) == ["a"], "it moved to another node"
    assert table.update(by_id(B, at("c", "n1"))) == ["c"]


def test_what_an_extractor_changes_in_place_is_told_as_changed_and_cant_break_a_frame() -> None:
    names: list[object] = ["x"]
    nested: AttributeKey[Any] = NAMES
    table, failures = table_of(Sizes({"n1": {NAMES: (names,)}}))
    table.update(by_id(A))
    names.append("y")
    assert table.described(1.0)["a"].attributes.get(nested) == (["x"],), "it hasn't been asked again"
    assert table.update(by_id(A)) == ["a"]
    names.append(object())
    assert table.described(2.0)["a"].attributes.get(nested) == (["x", "y"],)
    table.update(by_id(A))
    assert table.described(3.0)["a"].attributes.sample(NAMES) == Sample(None, 3.0)
    assert failures.counts() == {"sizes": 1}


def test_what_an_endpoint_doesnt_have_is_denied_as_of_the_last_confirmation() -> None:
    table, _ = table_of(Sizes({"n1": {SIZE: 2.0}}))
    table.update(by_id(A, B))
    described = table.described(17.0)
    assert described["a"].attributes.sample(SIZE) == Sample(2.0, 17.0)
    assert described["a"].attributes.sample(NAMES) == Sample(None, 17.0)
    assert described["b"].attributes.sample(SIZE) == Sample(None, 17.0)


def test_an_extractor_that_fails_on_an_endpoint_costs_only_its_own_attributes_there() -> None:
    table, failures = table_of(
        Sizes({"n1": KeyError("gpu"), "n2": {SIZE: 1.0}}), Others({"n1": {OTHER: 5.0}}, "others")
    )
    with capture_logs() as logs:
        table.update(by_id(A, B))
    assert table.of("a") == {OTHER.wire: 5.0}
    assert table.of("b") == {"Size/sizes": 1.0}
    assert failures.counts() == {"sizes": 1}
    assert [(log["plugin"], log["endpoint"], log["reason"]) for log in logs] == [("sizes", "a", "KeyError: 'gpu'")]


@pytest.mark.parametrize(
    "said",
    [
        *(None, 5, ["Size"]),
        *({NAMES: value, OTHER: 5.0} for value in ("x", ["x"], (object(),))),
        *({SIZE: value, OTHER: 5.0} for value in (math.nan, math.inf, "8", True)),
        {OTHER: 5.0, AttributeKey("Odd", "sizes", float): 2.0},
    ],
)
def test_what_is_of_no_use_of_another_kind_no_finite_number_or_not_declared_costs_itself_alone(said: Any) -> None:
    table, failures = table_of(Sizes({"n1": said, "n2": {SIZE: 1.0}}))
    table.update(by_id(A, B))
    assert (table.of("a"), table.of("b")) == ({OTHER.wire: 5.0} if isinstance(said, dict) else {}, {"Size/sizes": 1.0})
    assert failures.counts() == {"sizes": 1}


def test_without_an_extractor_that_makes_attributes_there_is_nothing_to_send() -> None:
    table, _ = table_of(Silent({}))
    assert (table.makes, table.update(by_id(A)), table.described(0.0)) == (False, [], {})
