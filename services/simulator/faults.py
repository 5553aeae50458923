"""Faults that a test asks for: what goes wrong, with which calls, how often.

Metrics and inference have a fault each. A fault is taken by a call when the call begins; one that holds calls back
(`hang`) lets go of them when it is taken away.
"""

import asyncio
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1)] | None
Seconds = Annotated[float, Meta(ge=0)]
Bytes = Annotated[int, Meta(ge=0)]


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """What every fault has."""

    count: Count = None
    """How many calls it hits before it is over; without, it stays until it is taken away."""


class Hang(Fault, frozen=True, kw_only=True, tag="hang"):
    """Nothing comes until the fault is taken away; then the call goes on as usual."""


class Fail(Fault, frozen=True, kw_only=True, tag="fail"):
    """An answer with this status and, for inference, an error in the form of the API that is called."""

    status: Annotated[int, Meta(ge=400, le=599)] = 500
    retry_after: Annotated[int, Meta(ge=0)] | None = None
    """Seconds for a `retry-after` header."""


class Slow(Fault, frozen=True, kw_only=True, tag="slow"):
    """The answer begins `latency` seconds late. `factor` multiplies the time of the engine's steps, for all requests as
    long as the fault is there; so it goes with inference only, and not with a count."""

    latency: Seconds = 0.0
    factor: Annotated[float, Meta(gt=0)] = 1.0


class Trickle(Fault, frozen=True, kw_only=True, tag="trickle"):
    """The body comes in pieces of `piece` bytes, `interval` seconds apart."""

    interval: Seconds = 0.01
    piece: Annotated[int, Meta(ge=1)] = 1


class Truncate(Fault, frozen=True, kw_only=True, tag="truncate"):
    """The body is cut after `after` bytes, without `after` at its half (a stream: after its first event). To HTTP the
    answer looks complete."""

    after: Bytes | None = None


class Close(Fault, frozen=True, kw_only=True, tag="close"):
    """The connection is closed after `after` bytes of the body; with 0, before the head."""

    after: Bytes = 0


class Huge(Fault, frozen=True, kw_only=True, tag="huge"):
    """The page, and after it filler up to `size` bytes. Metrics only."""

    size: Bytes = 64 * 2**20


class ContentType(Fault, frozen=True, kw_only=True, tag="content-type"):
    """The body as usual, under another content type."""

    value: str = "text/html; charset=utf-8"


class Replace(Fault, frozen=True, kw_only=True, tag="replace"):
    """Another body, with status 200."""

    body: str


AnyFault: TypeAlias = Hang | Fail | Slow | Trickle | Truncate | Close | Huge | ContentType | Replace
Target: TypeAlias = Literal["metrics", "inference"]
TARGETS: tuple[Target, ...] = ("metrics", "inference")


class Faults:
    """The faults that are set."""

    def __init__(self) -> None:
        self._faults: dict[Target, AnyFault] = {}
        self._left: dict[Target, int | None] = {}
        self._lifted: dict[Target, asyncio.Event] = {}

    @staticmethod
    def check(target: Target, fault: AnyFault | None) -> None:
        """Raises ValueError for a fault that the target can't have."""
        if target == "inference" and isinstance(fault, Huge):
            raise ValueError("inference.kind: 'huge' is a fault of metrics only")
        if isinstance(fault, Slow) and fault.factor != 1:
            if target == "metrics":
                raise ValueError(f"metrics.factor: {fault.factor} slows the engine down, which metrics don't wait for")
            if fault.count is not None:
                raise ValueError(
                    f"inference.count: {fault.count} can't go with a factor, which slows all requests down"
                )

    def set(self, target: Target, fault: AnyFault) -> None:
        """Set a fault in the place of the one before. Raises ValueError for one that the target can't have."""
        self.check(target, fault)
        self.clear(target)
        self._faults[target] = fault
        self._left[target] = fault.count
        self._lifted[target] = asyncio.Event()

    def clear(self, target: Target) -> None:
        """Take a fault away; calls that it holds go on."""
        self._faults.pop(target, None)
        self._left.pop(target, None)
        if lifted := self._lifted.pop(target, None):
            lifted.set()

    def take(self, target: Target) -> tuple[AnyFault | None, asyncio.Event | None]:
        """The fault that a call of this target has to suffer, and what is set when it is taken away."""
        fault, lifted = self._faults.get(target), self._lifted.get(target)
        left = self._left.get(target)
        if left is not None:
            self._left[target] = left - 1
            if left == 1:
                # What it holds stays held: only the next calls are spared.
                del self._faults[target], self._left[target]
        return fault, lifted

    @property
    def slowdown(self) -> float:
        """What the time of the engine's steps is multiplied with."""
        fault = self._faults.get("inference")
        return fault.factor if isinstance(fault, Slow) else 1.0

    def describe(self) -> dict[str, AnyFault | None]:
        """The fault of each target."""
        return {target: self._faults.get(target) for target in TARGETS}

    def __repr__(self) -> str:
        return f"<Faults {self._faults}>"
