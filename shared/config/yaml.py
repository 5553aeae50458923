"""YAML (and so JSON) into plain data, strictly: duplicate keys are errors, syntax errors name their line.

PyYAML's C loader is used where it was built; aliases that blow up a small file into a huge one are refused.
"""

from collections.abc import Hashable
from typing import Any

import yaml

from shared.config.problems import Problems, show

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_ALIASES = 1000
"""More aliases than this in one document is no configuration but a bomb."""


class _DuplicateKey(yaml.MarkedYAMLError):
    pass


class _Loader(_Base):  # type: ignore[misc]  # the base is chosen at import
    """A safe loader that refuses duplicate keys and alias bombs."""

    aliases = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > MAX_ALIASES:
                raise yaml.MarkedYAMLError(problem=f"more than {MAX_ALIASES} aliases", problem_mark=None)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Hashable, Any] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise _DuplicateKey(problem=f"duplicate key {show(key)}", problem_mark=key_node.start_mark)
            if isinstance(key, Hashable):
                seen[key] = None
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def parse_documents(text: str, problems: Problems) -> list[Any]:
    """The documents of a YAML stream, without empty ones; a syntax error is noted with its line."""
    loader = _Loader(text)
    documents: list[Any] = []
    try:
        while loader.check_data():
            document = loader.get_data()
            if document is not None:
                documents.append(document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        message = error.problem or "is not YAML"
        kind = "" if isinstance(error, _DuplicateKey) else "not valid YAML: "
        problems.error("", f"{kind}{message}", mark.line + 1 if mark else None)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problems.error("", f"not valid YAML: {error}")
    finally:
        loader.dispose()
    return documents
