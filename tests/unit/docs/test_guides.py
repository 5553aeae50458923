"""Configurations that guides show load as they stand."""

import re

import pytest

from pointsman.docs import DOCS
from shared.config import load
from shared.plugin import Registry

GUIDES = sorted(DOCS.glob("*.md"))
EXAMPLES = [
    pytest.param(example, id=f"{guide.stem}-{number}")
    for guide in GUIDES
    for number, example in enumerate(re.findall(r"```yaml\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL), 1)
    if "kind: EndpointPickerConfig" in example
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_configuration_in_a_guide_loads_without_a_warning(example: str) -> None:
    assert not load(example, Registry.installed()).warnings


def test_guides_have_examples() -> None:
    assert {"configuration-1", "custom-metrics-1"} <= {example.id for example in EXAMPLES}
