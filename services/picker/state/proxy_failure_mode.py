"""Whether a pool that serves only models that it names stands behind a proxy that fails open.

Such a proxy lets requests pass unread while no picker answers, those for other models too. A picker can't prevent that:
a stream that it refuses passes just the same. So it is reported where operators look.
"""

from collections.abc import Callable, Iterable

from services.picker.state.view import View
from shared.model import FailureMode

HEADER = "x-pointsman-failure-mode"
"""Initial metadata of a stream, by which deploy/envoy announces it: `open` or `closed`."""
REMEMBERED = 60.0
"""Seconds after its last stream for which a proxy counts."""


class ProxyFailureMode:
    """What proxies and the InferencePool say of requests that no picker answers. `clock` gives monotonic seconds."""

    def __init__(self, view: View, clock: Callable[[], float], *, named_models_only: bool) -> None:
        self._view = view
        self._clock = clock
        self._named_models_only = named_models_only
        self._open_until = float("-inf")

    def observe(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """The initial metadata of a stream."""
        for name, value in metadata:
            if name == HEADER and value == "open":
                self._open_until = self._clock() + REMEMBERED

    def problem(self) -> str | None:
        """What `/readyz` mentions: the contradiction, and how to end it; None when there is none."""
        if not (self._named_models_only or self._view.rewrites.closed):
            return None
        pool = self._view.pool
        if self._clock() < self._open_until:
            who, what = "Envoy", "deploy/envoy/standalone-closed.yaml doesn't"
        elif pool is not None and pool.failure_mode is FailureMode.FAIL_OPEN:
            who, what = "the gateway, by failureMode: FailOpen of the InferencePool,", "FailClose doesn't"
        else:
            return None
        return f"the pool serves only models that it names, but {who} lets requests pass when no picker answers; {what}"

    def __repr__(self) -> str:
        return f"<ProxyFailureMode {self.problem() or 'sound'}>"
