"""`context-length-aware`: prefers the endpoints that are meant for prompts of this length; as a filter, keeps them.

A label of each endpoint has its range, `min-max` in tokens. Labels are read once for each layout.
"""

import re
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from services.picker.scheduling.cycle import TOKENIZED_PROMPT, Cycle
from services.picker.scheduling.interfaces import Filter, Scorer
from services.picker.state.layout import Floats, Layout, Mask, Rows
from shared.plugin import Input, Role

UNLABELLED = 0.5
"""The score without a label."""
_RANGE = re.compile(r"\s*([0-9]{1,15})\s*-\s*([0-9]{1,15})\s*")


class ContextLengthParameters(Struct, frozen=True, rename="camel"):
    """The label, and whether endpoints for other lengths are excluded."""

    label: Annotated[str, Meta(min_length=1)] = "llm-d.ai/context-length-range"
    enable_filtering: bool = False


class _Ranges:
    """The endpoints' ranges as columns, NaN where there is none."""

    def __init__(self, layout: Layout, label: str) -> None:
        texts = [endpoint.labels.get(label) for endpoint in layout.endpoints]
        ranges = [_range(text) for text in texts]
        self.layout = layout
        self.labelled: Mask = np.array([text is not None for text in texts], np.bool_)
        self.low: Floats = np.array([low for low, _ in ranges], np.float64)
        self.high: Floats = np.array([high for _, high in ranges], np.float64)


class ContextLengthAware(Scorer, Filter):
    """In the range, the narrower it is and the nearer the prompt is to its beginning, the better."""

    TYPE = "context-length-aware"
    ROLES = frozenset({Role.SCORER, Role.FILTER})
    BOUNDED = True
    CONSUMES = (Input(TOKENIZED_PROMPT, optional=True),)
    Parameters = ContextLengthParameters
    parameters: ContextLengthParameters

    def __init__(self, name: str, parameters: ContextLengthParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._ranges = _Ranges(Layout(), "")

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        if not self.parameters.enable_filtering:
            return rows
        ranges, length = self._ranges_of(cycle.layout), cycle.prompt_tokens
        within = (ranges.low <= length) & (length <= ranges.high)
        kept: Rows = rows[(within | ~ranges.labelled)[rows]]
        return kept

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        ranges, length = self._ranges_of(cycle.layout), float(cycle.prompt_tokens)
        low, high, labelled = ranges.low.take(rows), ranges.high.take(rows), ranges.labelled.take(rows)
        width = high - low
        with np.errstate(invalid="ignore", divide="ignore"):
            left = np.where(width > 0.0, (high - length) / width, 1.0)
            narrow = np.where(width > 0.0, 1.0 / (1.0 + width / 10_000.0), 1.0)
            inside = 0.3 + 0.7 * (0.7 * narrow + 0.3 * left)
            outside = 0.3 / (1.0 + np.maximum(low - length, length - high) / 1000.0)
        scores = np.where((low <= length) & (length <= high), inside, outside)
        return np.where(labelled, np.nan_to_num(scores, copy=False, nan=0.0), UNLABELLED)

    def _ranges_of(self, layout: Layout) -> _Ranges:
        if layout is not self._ranges.layout:
            self._ranges = _Ranges(layout, self.parameters.label)
        return self._ranges


def _range(text: str | None) -> tuple[float, float]:
    """Both ends of a label's range; NaN for what is none."""
    found = _RANGE.fullmatch(text or "")
    if found is None or int(found[1]) > int(found[2]):
        return np.nan, np.nan
    return float(found[1]), float(found[2])
