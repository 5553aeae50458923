"""The gRPC health service, under the names that gateways and charts ask for.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md. `liveness` is SERVING as long as the process runs. The
other names say whether the picker should get requests. They change within one poll of the readiness, and at once when
the picker drains.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from services.picker.transport.calls import Metadata, Methods, StatusCode, Stream, Unary, refuses_request
from services.picker.transport.ext_proc import SERVICE
from services.picker.transport.few_calls import FewCalls

LIVENESS = "liveness"
READINESS = ("", "readiness", SERVICE, "inference-extension")
HEALTH_SERVICE = "grpc.health.v1.Health"

_MAX_NAME = 100
"""Characters of a name that are kept: no known one is as long."""
_pb: Any = health_pb2
_SERVING = _pb.HealthCheckResponse.SERVING
_NOT_SERVING = _pb.HealthCheckResponse.NOT_SERVING
_UNKNOWN = _pb.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Answers `Check`, `Watch` and `List`. A name that isn't known is NOT_FOUND for `Check`, SERVICE_UNKNOWN for
    `Watch`."""

    def __init__(self, ready: Callable[[], bool], *, interval: float = 0.1) -> None:
        self._ready = ready
        self._interval = interval
        self._draining = False
        self.serving = ready()
        self._watches: dict[_Watch, None] = {}
        self._calls = FewCalls()

    @property
    def methods(self) -> Methods:
        return self._calls.of(
            {
                f"/{HEALTH_SERVICE}/Check": lambda stream, _: Unary(stream, self._check),
                f"/{HEALTH_SERVICE}/List": lambda stream, _: Unary(stream, self._list),
                f"/{HEALTH_SERVICE}/Watch": lambda stream, metadata: _Watch(stream, self, metadata),
            }
        )

    async def run(self) -> None:
        """Follow the readiness, for ever."""
        while True:
            self.refresh()
            await asyncio.sleep(self._interval)

    def refresh(self) -> None:
        """Ask the readiness now."""
        self._announce(self._ready() and not self._draining)

    def drain(self) -> None:
        """Not serving from now on, whatever the readiness says."""
        self._draining = True
        self._announce(False)

    def status(self, name: str) -> int:
        """A `ServingStatus`; SERVICE_UNKNOWN for a name that isn't known."""
        if name == LIVENESS:
            return int(_SERVING)
        if name not in READINESS:
            return int(_UNKNOWN)
        return int(_SERVING if self.serving else _NOT_SERVING)

    def watch(self, watch: "_Watch") -> None:
        """Tell it of changes."""
        self._watches[watch] = None

    def unwatch(self, watch: "_Watch") -> None:
        """Tell it no more."""
        self._watches.pop(watch, None)

    def _announce(self, serving: bool) -> None:
        if serving != self.serving:
            self.serving = serving
            for watch in list(self._watches):
                watch.send_status()

    def _check(self, message: bytes) -> bytes | tuple[StatusCode, str]:
        try:
            name = _pb.HealthCheckRequest.FromString(message).service
        except DecodeError as error:
            return StatusCode.INVALID_ARGUMENT, f"no HealthCheckRequest: {error}"
        status = self.status(name)
        if status == _UNKNOWN:
            return StatusCode.NOT_FOUND, f"unknown service {name[:100]!r}"
        return _answer(status)

    def _list(self, message: bytes) -> bytes:
        statuses = {name: _pb.HealthCheckResponse(status=self.status(name)) for name in (LIVENESS, *READINESS)}
        answer: bytes = _pb.HealthListResponse(statuses=statuses).SerializeToString()
        return answer

    def __repr__(self) -> str:
        state = "draining" if self._draining else "serving" if self.serving else "not serving"
        return f"<Health {state}>"


class _Watch:
    """A client that is told the status of a name, and of its changes."""

    held = 0

    def __init__(self, stream: Stream, health: Health, metadata: Metadata) -> None:
        self._stream, self._health = stream, health
        self._name: str | None = None
        self._last_sent = -1

    def receive(self, message: bytes) -> None:
        if self._name is not None or refuses_request(self._stream, message):
            return
        try:
            self._name = _pb.HealthCheckRequest.FromString(message).service[:_MAX_NAME]
        except DecodeError as error:
            self._stream.finish(StatusCode.INVALID_ARGUMENT, f"no HealthCheckRequest: {error}")
            return
        self._health.watch(self)
        self.send_status()

    def send_status(self) -> None:
        """The status may have changed."""
        status = self._health.status(self._name or "")
        if status != self._last_sent and not self._stream.congested:
            self._last_sent = status
            self._stream.send(_answer(status))

    def half_close(self) -> None:
        """The client sends nothing more, and continues to receive."""

    def drained(self) -> None:
        self.send_status()

    def end(self) -> None:
        self._health.unwatch(self)


def _answer(status: int) -> bytes:
    answer: bytes = _pb.HealthCheckResponse(status=status).SerializeToString()
    return answer
