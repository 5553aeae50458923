"""`decision-tree-filter`: filters as questions: what a filter leaves decides which filter is next.

A filter that leaves endpoints has succeeded, and the next one gets these. One that leaves none has failed, and the next
one gets what the filter itself was given.
"""

from collections.abc import Iterator
from typing import Optional

from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.state.layout import Rows
from shared.plugin import Plugin, Reference, Role


class Node(Struct, frozen=True, rename="camel"):
    """A filter of the document, or a tree."""

    plugin_ref: str = ""
    decision_tree: Optional["DecisionTree"] = None

    def __post_init__(self) -> None:
        if bool(self.plugin_ref) is (self.decision_tree is not None):
            raise ValueError("one of pluginRef and decisionTree is required")

    def references(self, path: str) -> Iterator[Reference]:
        """The filters in it; `path` is its own."""
        if self.decision_tree is not None:
            yield from self.decision_tree.references(f"{path}.decisionTree.")
        else:
            yield Reference(f"{path}.pluginRef", self.plugin_ref, Role.FILTER)


class DecisionTree(Struct, frozen=True, rename="camel"):
    """A filter, and what follows it. Without what follows, the filter's result stands."""

    current: Node
    next_on_success: Node | None = None
    next_on_failure: Node | None = None
    next_on_success_or_failure: Node | None = None
    """Where the one for the case is left out."""

    def references(self, path: str = "") -> Iterator[Reference]:
        """The filters in it."""
        yield from self.current.references(f"{path}current")
        for name, node in (
            ("nextOnSuccess", self.next_on_success),
            ("nextOnFailure", self.next_on_failure),
            ("nextOnSuccessOrFailure", self.next_on_success_or_failure),
        ):
            if node is not None:
                yield from node.references(f"{path}{name}")


class DecisionTreeFilter(Filter):
    """Runs the tree from its root. A filter in it that fails lets all pass."""

    TYPE = "decision-tree-filter"
    Parameters = DecisionTree
    parameters: DecisionTree

    @classmethod
    def references(cls, parameters: DecisionTree) -> tuple[Reference, ...]:
        return tuple(parameters.references())

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return self._tree(self.parameters, cycle, rows)

    def _tree(self, tree: DecisionTree, cycle: Cycle, rows: Rows) -> Rows:
        kept = self._node(tree.current, cycle, rows)
        following = (tree.next_on_success if len(kept) else tree.next_on_failure) or tree.next_on_success_or_failure
        if following is None:
            return kept
        return self._node(following, cycle, kept if len(kept) else rows)

    def _node(self, node: Node, cycle: Cycle, rows: Rows) -> Rows:
        if node.decision_tree is not None:
            return self._tree(node.decision_tree, cycle, rows)
        plugin = self.referenced[node.plugin_ref]
        try:
            return _filter(plugin).filter(cycle, rows)
        except Exception as error:  # noqa: BLE001 - a plugin's failure is noted, and costs only the plugin's part
            cycle.plugin_failed(plugin, Role.FILTER, error)
            return rows


def _filter(plugin: Plugin) -> Filter:
    if not isinstance(plugin, Filter):
        raise TypeError(f"{plugin!r} implements no Filter")
    return plugin
