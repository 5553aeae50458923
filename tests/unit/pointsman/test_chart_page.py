"""docs/chart-values.md says of every value of the chart what the comment above it says."""

import pytest

from pointsman.chart_page import VALUES, Value, chart_page, values

DOCUMENT = """\
# What the file is.

# How many
replicas: 2
scaling:
  # At most,
  # on a good day
  most: 10
  # As in a pod
  resources:
    limits:
      memory: 1Gi
# Several lines
text: |
  # no comment of ours
  key: of the text

  more: of it
# Nothing by default
last: ""
"""


def test_a_value_has_its_path_its_default_and_the_comment_above_it() -> None:
    assert list(values(DOCUMENT)) == [
        Value("replicas", 2, "How many"),
        Value("scaling.most", 10, "At most, on a good day"),
        Value("scaling.resources", {"limits": {"memory": "1Gi"}}, "As in a pod"),
        Value("text", "# no comment of ours\nkey: of the text\n\nmore: of it\n", "Several lines"),
        Value("last", "", "Nothing by default"),
    ]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("scaling:\n  # At least\n  least: 1\n  most: 2\n", "scaling.most"),
        ("# What the file is.\n\nreplicas: 2\n", "replicas"),
    ],
    ids=["no comment", "set off by an empty line"],
)
def test_a_value_without_a_comment_right_above_it_is_named(text: str, path: str) -> None:
    with pytest.raises(ValueError, match=f"^{path}: the comment above it is missing"):
        list(values(text))


def test_every_value_of_the_chart_is_a_row_of_the_page() -> None:
    rows = [line for line in chart_page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(list(values(VALUES.read_text()))) > 50
    assert all(line.count(" | ") == 2 for line in rows)
