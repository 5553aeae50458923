"""Admin HTTP, the same for every tier: health, readiness with reasons, Prometheus metrics, the process's state.

Binds its port before the service starts, so that a taken port stops the process at once and by name.
"""

import asyncio
import errno
import socket
from collections.abc import Callable, Mapping
from typing import Any

import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from shared.config.problems import Invalid, Problem
from shared.service.readiness import Readiness
from shared.version import VERSION


def build_app(
    title: str,
    readiness: Readiness,
    registry: CollectorRegistry,
    state: Callable[[], Mapping[str, Any]],
) -> FastAPI:
    """The routes that every tier has; a tier adds its own to the app that is returned."""
    app = FastAPI(title=title, version=VERSION, docs_url=None, redoc_url=None)

    @app.get("/healthz")
    async def healthz() -> Response:
        """The process runs and its event loop turns."""
        return JSONResponse({"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> Response:
        """200 when the process should get work, else 503 with the reasons by name."""
        reasons = readiness.reasons()
        return JSONResponse(
            {"ready": not reasons, "reasons": reasons},
            status_code=503 if reasons else 200,
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text exposition."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/debug/state")
    async def debug_state() -> Response:
        """What the process knows and does, as JSON."""
        return JSONResponse(state())

    return app


class AdminServer:
    """Serves an app on `host:port`; port 0 takes a free one, to be read from `port` afterwards."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        self.host = host
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2)
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="admin")

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()

    def __repr__(self) -> str:
        return f"<AdminServer {self.host}:{self.port}>"


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: signals are the service's business."""

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        why = "is taken by another process" if error.errno == errno.EADDRINUSE else f"can't be bound: {error.strerror}"
        raise Invalid([Problem("--admin-port", f"{host}:{port} {why}; 0 takes a free port")]) from error
    return listener
