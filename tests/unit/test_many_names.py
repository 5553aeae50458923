"""Parameters with many names: what it costs to see whether one is given twice."""

from collections.abc import Callable

import pytest

from services.collector.engines.configs import CustomMetricConfig, EngineConfig
from services.collector.extractors.core import CoreParameters
from services.watcher.notifications.node_labels import LabelAttribute, NodeLabelsExtractorParameters

NAMES = 300


class Name(str):
    """Counts how often it is compared."""

    compared: list[str] = []  # noqa: RUF012 - of all names

    def __eq__(self, other: object) -> bool:
        self.compared.append(self)
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize(
    "make",
    [
        lambda names: NodeLabelsExtractorParameters(attributes=tuple(LabelAttribute("l", name) for name in names)),
        lambda names: CoreParameters(engine_configs=tuple(EngineConfig(name=name) for name in names)),
        lambda names: EngineConfig(
            name="e", custom_metrics=tuple(CustomMetricConfig(attribute_key=name, metric_spec="m") for name in names)
        ),
    ],
    ids=["node labels", "engines", "custom metrics"],
)
def test_names_are_not_compared_each_with_all(make: Callable[[list[Name]], object]) -> None:
    names = [Name(f"n{number}") for number in range(NAMES)]
    Name.compared.clear()
    make(names)
    assert len(Name.compared) < 20 * NAMES
    with pytest.raises(ValueError, match=r"n7' is (made|configured)"):
        make([*names, Name("n7")])
