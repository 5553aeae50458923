"""Faults that tests set, for metrics and for inference.

A fault applies to a call when the call begins. Clearing a `hang` lets the calls that it holds continue.
"""

import asyncio
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1)] | None
Seconds = Annotated[float, Meta(ge=0)]
Bytes = Annotated[int, Meta(ge=0)]


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """The common field of all faults."""

    count: Count = None
    """The number of calls that it applies to; None: until it is cleared."""


class Hang(Fault, frozen=True, kw_only=True, tag="hang"):
    """The call waits until the fault is cleared, and continues then."""


class Fail(Fault, frozen=True, kw_only=True, tag="fail"):
    """A response with this status and, for inference, an error in the format of the API."""

    status: Annotated[int, Meta(ge=400, le=599)] = 500
    retry_after: Annotated[int, Meta(ge=0)] | None = None
    """Seconds for a `retry-after` header."""


class Slow(Fault, frozen=True, kw_only=True, tag="slow"):
    """The response begins `latency` seconds late. `factor` multiplies the duration of the engine's steps, for all
    requests until the fault is cleared; it is valid for inference only, and without a count."""

    latency: Seconds = 0.0
    factor: Annotated[float, Meta(gt=0)] = 1.0


class Trickle(Fault, frozen=True, kw_only=True, tag="trickle"):
    """The body arrives in pieces of `piece` bytes, `interval` seconds apart."""

    interval: Seconds = 0.01
    piece: Annotated[int, Meta(ge=1)] = 1


class Truncate(Fault, frozen=True, kw_only=True, tag="truncate"):
    """The body ends after `after` bytes, by default in its middle (a stream: after its first event). For HTTP the
    response is complete."""

    after: Bytes | None = None


class Close(Fault, frozen=True, kw_only=True, tag="close"):
    """The connection closes after `after` bytes of the body; with 0, before the headers."""

    after: Bytes = 0


class Huge(Fault, frozen=True, kw_only=True, tag="huge"):
    """The page is followed by filler up to `size` bytes. Metrics only."""

    size: Bytes = 64 * 2**20


class ContentType(Fault, frozen=True, kw_only=True, tag="content-type"):
    """The body has another content type."""

    value: str = "text/html; charset=utf-8"


class Replace(Fault, frozen=True, kw_only=True, tag="replace"):
    """The response has another body, with status 200."""

    body: str


AnyFault: TypeAlias = Hang | Fail | Slow | Trickle | Truncate | Close | Huge | ContentType | Replace
Target: TypeAlias = Literal["metrics", "inference"]
TARGETS: tuple[Target, ...] = ("metrics", "inference")


class _Active(Struct):
    """The fault of a target."""

    fault: AnyFault
    left: int | None
    """The number of further calls; None: no limit."""
    cleared: asyncio.Event


class Faults:
    """The current faults."""

    def __init__(self) -> None:
        self._active: dict[Target, _Active] = {}

    @staticmethod
    def check(target: Target, fault: AnyFault | None) -> None:
        """Raises ValueError for a fault that doesn't fit the target."""
        if target == "inference" and isinstance(fault, Huge):
            raise ValueError("inference.kind: 'huge' is valid for metrics only")
        if isinstance(fault, Slow) and fault.factor != 1:
            if target == "metrics":
                raise ValueError(f"metrics.factor: {fault.factor} slows the engine; it is valid for inference only")
            if fault.count is not None:
                raise ValueError(
                    f"inference.count: {fault.count} can't go with a factor, which slows all requests down"
                )

    def set(self, target: Target, fault: AnyFault) -> None:
        """Replace the fault of a target. Raises ValueError for a fault that doesn't fit the target."""
        self.check(target, fault)
        self.clear(target)
        self._active[target] = _Active(fault, fault.count, asyncio.Event())

    def clear(self, target: Target) -> None:
        """Clear a fault; calls that it holds continue."""
        if active := self._active.pop(target, None):
            active.cleared.set()

    def take(self, target: Target) -> tuple[AnyFault | None, asyncio.Event | None]:
        """The fault for a call that begins now, and the event that is set when the fault is cleared."""
        active = self._active.get(target)
        if active is None or active.left == 0:
            return None, None
        if active.left is not None:
            active.left -= 1  # calls that it holds keep waiting after the last one
        return active.fault, active.cleared

    @property
    def slowdown(self) -> float:
        """The factor for the duration of the engine's steps."""
        fault = self.describe()["inference"]
        return fault.factor if isinstance(fault, Slow) else 1.0

    def describe(self) -> dict[str, AnyFault | None]:
        """The fault of each target."""
        found = {target: self._active.get(target) for target in TARGETS}
        return {
            target: None if active is None or active.left == 0 else active.fault for target, active in found.items()
        }

    def __repr__(self) -> str:
        return f"<Faults {self.describe()}>"
