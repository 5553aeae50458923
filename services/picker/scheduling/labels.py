"""Conditions on endpoints' labels, evaluated once for each layout."""

from collections.abc import Callable, Mapping

import numpy as np

from services.picker.state.layout import Layout, Mask, Rows
from shared.model import ROLE

_BOTH = ("prefill-decode", "both", "encode-prefill-decode")
DECODE = ("decode", *_BOTH)
"""Endpoints without a role decode, too."""
PREFILL = ("prefill", "encode-prefill", *_BOTH)
ENCODE = ("encode", "encode-prefill", "encode-prefill-decode")


class LabelCondition:
    """For which endpoints a condition on their labels holds."""

    def __init__(self, evaluate: Callable[[Layout], Mask]) -> None:
        """`evaluate` is called once for each layout."""
        self._evaluate = evaluate
        self._layout = Layout()
        self._mask: Mask = np.zeros(0, np.bool_)
        self._all = False
        self._given = self._kept = self._layout.all_rows

    def keep(self, layout: Layout, rows: Rows) -> Rows:
        """Those of the rows for which it holds."""
        if layout is not self._layout:
            self._mask = self._evaluate(layout)
            self._layout = layout
            self._all = bool(np.logical_and.reduce(self._mask))
            self._given = self._kept = self._layout.all_rows[:0]
        if self._all:
            return rows
        if rows is not self._given:
            kept: Rows = rows[self._mask[rows]]
            if rows.flags.writeable:
                return kept
            kept.flags.writeable = False  # as are all candidates: what is made of them can be kept, too
            self._given, self._kept = rows, kept
        return self._kept

    def __repr__(self) -> str:
        return f"<LabelCondition for {int(self._mask.sum())} of {len(self._layout)} endpoints>"


def each(holds: Callable[[Mapping[str, str]], bool]) -> LabelCondition:
    """A condition on each endpoint's labels alone."""
    return LabelCondition(
        lambda layout: np.fromiter((holds(endpoint.labels) for endpoint in layout.endpoints), np.bool_, len(layout))
    )


def role_is(*roles: str, or_none: bool = False) -> LabelCondition:
    """The role is one of these; `or_none`: also where there is no label."""
    allowed = {*roles, None} if or_none else set(roles)
    return each(lambda labels: labels.get(ROLE) in allowed)
