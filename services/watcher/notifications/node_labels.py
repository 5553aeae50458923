"""`node-labels-extractor`: numbers from a node's labels, for the endpoints that run there.

A node's labels say what the hardware is (GPU Feature Discovery: how many GPUs, which, with how much memory). A label is
a text and an attribute a number, so either the text is one, or the parameters say which number it stands for.
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
    """Which label makes which attribute."""

    label: _Text
    attribute_key: _Text
    values: dict[str, float] = {}
    """The label's texts and the numbers that they stand for; empty where the text is the number."""

    def __post_init__(self) -> None:
        for text, number in self.values.items():
            if not isfinite(number):
                raise ValueError(f"values: {text!r} stands for {number}; a finite number is expected")

    def number(self, text: str) -> float | None:
        """What the label's text comes to; None when it is no number, or none of `values`."""
        if self.values:
            return self.values.get(text)
        if _NUMBER.fullmatch(text) is None:
            return None
        number = float(text)
        return number if isfinite(number) else None


class NodeLabelsExtractorParameters(Struct, frozen=True, rename="camel"):
    """The attributes to make."""

    attributes: Annotated[tuple[LabelAttribute, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        keys = [one.attribute_key for one in self.attributes]
        for at, key in enumerate(keys):
            if key in keys[:at]:
                raise ValueError(f"attributes[{at}].attributeKey: {key!r} is made by attributes[{keys.index(key)}] too")


class NodeLabelsExtractor(NotificationExtractor):
    """Keeps of every node what its labels come to, and nothing else of it."""

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
        """By node: labels that are there and come to no number, with their texts."""

    @classmethod
    def produces(cls, name: str, parameters: NodeLabelsExtractorParameters) -> tuple[AttributeKey[Any], ...]:
        return tuple(AttributeKey(one.attribute_key, name, float) for one in parameters.attributes)

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
        labels = _labels(event.object.content)
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
        """Say once which labels come to no number."""
        if unread and unread != self._unread.get(node):
            log.warning("node.label.unread", extractor=self.name, node=node, labels=unread)
        if unread:
            self._unread[node] = unread
        else:
            self._unread.pop(node, None)

    def __repr__(self) -> str:
        return f"<{self.TYPE} {self.name!r} {len(self._nodes)} nodes, {len(self._unread)} with labels unread>"


def _labels(content: Mapping[str, Any]) -> Mapping[str, str]:
    """The labels of an object that its source has checked."""
    labels: Mapping[str, str] = content["metadata"].get("labels") or {}
    return labels
