"""`node-labels-extractor`: attributes of endpoints from the labels of their nodes.

A node's labels describe the hardware; GPU Feature Discovery sets the number of GPUs, their product and memory. A label
is text and an attribute a number: either the text is a number, or the parameters map it to one.
"""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any

import structlog
from msgspec import Meta, Struct

from shared.attributes import AttributeKey
from shared.datalayer.events import Change
from shared.datalayer.objects import NODE, NotificationEvent, NotificationExtractor
from shared.model import Endpoint

log = structlog.get_logger(__name__)

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_Text = Annotated[str, Meta(min_length=1)]


class LabelAttribute(Struct, frozen=True, rename="camel"):
    """A label and the attribute that follows from it."""

    label: _Text
    attribute_key: _Text
    values: dict[str, float] = {}
    """The numbers of the label's texts; empty if the text is the number."""

    def __post_init__(self) -> None:
        for text, number in self.values.items():
            if not isfinite(number):
                raise ValueError(f"values: {text!r} stands for {number}; a finite number is expected")

    def number(self, text: str) -> float | None:
        """The number of a text; None if it isn't a number, or isn't among `values`."""
        if self.values:
            return self.values.get(text)
        if _NUMBER.fullmatch(text) is None:
            return None
        number = float(text)
        return number if isfinite(number) else None


class NodeLabelsExtractorParameters(Struct, frozen=True, rename="camel"):
    attributes: Annotated[tuple[LabelAttribute, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        places: dict[str, int] = {}
        for at, attribute in enumerate(self.attributes):
            key = attribute.attribute_key
            if (first := places.setdefault(key, at)) != at:
                raise ValueError(f"attributes[{at}].attributeKey: {key!r} is made by attributes[{first}] too")


class NodeLabelsExtractor(NotificationExtractor):
    """Keeps the numbers of each node's labels."""

    TYPE = "node-labels-extractor"
    Parameters = NodeLabelsExtractorParameters
    READS = frozenset({"metadata"})
    DEFAULT_SOURCE = "k8s-notification-source"
    DEFAULT_SOURCE_PARAMETERS = {"version": NODE.version, "kind": NODE.kind}  # noqa: RUF012 - read-only by its type
    parameters: NodeLabelsExtractorParameters

    def __init__(self, name: str, parameters: NodeLabelsExtractorParameters) -> None:
        super().__init__(name, parameters)
        self._rules = tuple(zip(self.produces(name, parameters), parameters.attributes, strict=True))
        self._nodes: dict[str, dict[AttributeKey[Any], float]] = {}
        self._unread: dict[str, dict[str, str]] = {}
        """By node: labels without a number, with their texts."""

    @classmethod
    def produces(cls, name: str, parameters: NodeLabelsExtractorParameters) -> tuple[AttributeKey[Any], ...]:
        return tuple(AttributeKey(attribute.attribute_key, name, float) for attribute in parameters.attributes)

    @classmethod
    def topic(cls, parameters: NodeLabelsExtractorParameters) -> str:
        return str(NODE)

    def on_object(self, event: NotificationEvent) -> bool:
        node = event.object.name
        before = self._nodes.get(node)
        if event.change is Change.DELETED:
            self._nodes.pop(node, None)
            self._unread.pop(node, None)
            return bool(before)
        found: dict[AttributeKey[Any], float] = {}
        unread: dict[str, str] = {}
        labels: Mapping[str, str] = event.object.content["metadata"].get("labels") or {}
        for key, rule in self._rules:
            text = labels.get(rule.label)
            number = None if text is None else rule.number(text)
            if number is not None:
                found[key] = number
            elif text is not None:
                unread[rule.label] = text
        self._note(node, unread)
        self._nodes[node] = found
        return (before or {}) != found

    def attributes(self, endpoint: Endpoint) -> Mapping[AttributeKey[Any], float]:
        return self._nodes.get(endpoint.node, {})

    def describe(self) -> dict[str, Any]:
        return {
            "nodes": {node: {key.name: number for key, number in found.items()} for node, found in self._nodes.items()},
            "unread": {node: dict(labels) for node, labels in self._unread.items()},
        }

    def _note(self, node: str, unread: dict[str, str]) -> None:
        """Log labels without a number once."""
        if unread and unread != self._unread.get(node):
            log.warning("node.labels.ignored", extractor=self.name, node=node, labels=unread)
        if unread:
            self._unread[node] = unread
        else:
            self._unread.pop(node, None)

    def __repr__(self) -> str:
        return f"<{self.TYPE} {self.name!r} {len(self._nodes)} nodes, {len(self._unread)} with labels unread>"
