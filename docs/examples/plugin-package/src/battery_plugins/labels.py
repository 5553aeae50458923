"""Labels of endpoints as columns, read once for each set of endpoints and not for each request."""

from collections.abc import Callable

import numpy as np

from pointsman.api import Endpoint, Floats, Layout


class LabelColumn:
    """A number for each endpoint, in the order of the layout."""

    def __init__(self, read: Callable[[Endpoint], float]) -> None:
        self._read = read
        self._layout: Layout | None = None
        self._values: Floats = np.zeros(0)

    def of(self, layout: Layout) -> Floats:
        if layout is not self._layout:
            self._values = np.array([self._read(endpoint) for endpoint in layout.endpoints], np.float64)
            self._layout = layout
        return self._values
