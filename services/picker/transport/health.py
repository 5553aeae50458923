"""The gRPC health service, on a plain port of its own, under the names that gateways and charts ask for.

`liveness` is SERVING as long as the process runs. The other names say whether the picker should get requests. They
change within one poll of the readiness, and at once when the picker drains.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.picker.transport.grpc_server import SERVICE, listen

log = structlog.get_logger(__name__)

LIVENESS = "liveness"
READINESS = ("", "readiness", SERVICE, "inference-extension")

_health: Any = health
_pb: Any = health_pb2
_grpc: Any = health_pb2_grpc
_SERVING = _pb.HealthCheckResponse.SERVING
_NOT_SERVING = _pb.HealthCheckResponse.NOT_SERVING


class _Servicer(_health.aio.HealthServicer):  # type: ignore[misc]  # the library has no types
    """The library's servicer, and `List`, which it leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self._listed: dict[str, Any] = {}

    async def set(self, service: str, status: Any) -> None:
        self._listed[service] = _pb.HealthCheckResponse(status=status)
        await super().set(service, status)

    async def List(self, request: Any, context: Any) -> Any:
        return _pb.HealthListResponse(statuses=self._listed)


class HealthServer:
    """Answers `Check`, `Watch` and `List`. A name that isn't known is NOT_FOUND for `Check`, SERVICE_UNKNOWN for
    `Watch`."""

    def __init__(
        self, ready: Callable[[], bool], *, host: str = "0.0.0.0", port: int = 9003, interval: float = 0.1
    ) -> None:
        self._ready = ready
        self._host = host
        self._wanted_port = port
        self._interval = interval
        self._servicer = _Servicer()
        self._server: grpc.aio.Server | None = None
        self._draining = False
        self.serving = False
        self.port = 0

    async def start(self) -> None:
        """Begin to answer; the port is in `port` afterwards. Raises `Invalid` when the port can't be had."""
        await self._servicer.set(LIVENESS, _SERVING)
        await self._announce(self._ready())
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        _grpc.add_HealthServicer_to_server(self._servicer, self._server)
        self.port = listen(self._server, self._host, self._wanted_port, "--grpc-health-port")
        await self._server.start()
        log.info("health.listening", host=self._host, port=self.port)

    async def run(self) -> None:
        """Follow the readiness, for ever."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._interval)

    async def refresh(self) -> None:
        """Ask the readiness now."""
        serving = self._ready() and not self._draining
        if serving != self.serving:
            await self._announce(serving)

    async def drain(self) -> None:
        """Not serving from now on, whatever the readiness says."""
        self._draining = True
        await self._announce(False)

    async def stop(self) -> None:
        """Close the port; watchers see their streams end."""
        if self._server is not None:
            await self._server.stop(None)

    async def _announce(self, serving: bool) -> None:
        self.serving = serving
        for name in READINESS:
            await self._servicer.set(name, _SERVING if serving else _NOT_SERVING)

    def __repr__(self) -> str:
        state = "draining" if self._draining else "serving" if self.serving else "not serving"
        return f"<HealthServer on {self._host}:{self.port}, {state}>"
