"""docs/chart-values.md: the values of the Helm chart, from its `values.yaml` and the comments in it.

The page shows the comment above each key. Every key needs one, except a mapping whose keys have comments.
"""

import json
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from pointsman.markdown import code, table

VALUES = Path(__file__).parent.parent / "deploy/kubernetes/chart/values.yaml"

_HEAD = """# Values of the Helm chart

These are the values of the chart in `deploy/kubernetes/chart`. [Kubernetes](kubernetes.md#install-with-helm) describes
its use. An unknown value is an error, and so is a value of the wrong type, or `null`: Helm would delete the value with
its default. To return to a default, leave the value out. `null` does delete the default labels of `pool.selector`, and
the default requests and limits of `resources`. `make docs` generates this page from `values.yaml`.

"""


class Value(Struct, frozen=True):
    """A value: its path (`picker.autoscaling.cpu`), its default and its comment."""

    path: str
    default: Any
    text: str


def values(document: str) -> Iterator[Value]:
    """The values of a `values.yaml` in order. Raises ValueError for a key without the comment that it needs."""
    root: Any = yaml.compose(document, yaml.SafeLoader)
    yield from _below(root, yaml.safe_load(document), "", document.splitlines())


def _below(node: yaml.MappingNode, mapping: dict[str, Any], prefix: str, lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        path, default = f"{prefix}{key.value}", mapping[key.value]
        if text := _comment_above(key.start_mark.line, lines):
            yield Value(path, default, text)
        elif isinstance(default, dict) and default:
            yield from _below(value, default, f"{path}.", lines)
        else:
            raise ValueError(f"{path}: the comment above it is missing")


def _comment_above(row: int, lines: list[str]) -> str:
    """The comment directly above a line."""
    comments = takewhile(lambda line: line.startswith("#"), (line.lstrip() for line in reversed(lines[:row])))
    return " ".join(reversed([comment[1:].strip() for comment in comments]))


def chart_page() -> str:
    """The text of the page."""
    rows = [(code(value.path), _default(value.default), value.text) for value in values(VALUES.read_text("utf-8"))]
    return _HEAD + table(("value", "default", "meaning"), rows)


def _default(default: Any) -> str:
    """A default value as a cell; a text of several lines is a link."""
    if isinstance(default, str) and "\n" in default:
        return "[values.yaml](../deploy/kubernetes/chart/values.yaml)"
    return code(default if isinstance(default, str) else json.dumps(default, ensure_ascii=False))
