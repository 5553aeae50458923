"""The simulator as a process, and as a server inside a test.

A model server has one port, for API, metrics and control, and no admin port. SIGTERM and SIGINT stop it: it accepts no
new connections and waits up to `--drain-timeout` for running requests. A second signal ends it at once.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Self

import structlog
import uvloop
from aiohttp import web

from services.simulator.anthropic_api import AnthropicApi
from services.simulator.control import ControlApi
from services.simulator.openai_api import OpenAiApi
from services.simulator.server import ModelServer
from services.simulator.settings import SimulatorSettings
from shared.config.problems import Invalid, Problem
from shared.model import join_host_port
from shared.service import logs
from shared.service.settings import parse, report, warn_of_variables

log = structlog.get_logger(__name__)


class Simulator:
    """A simulated model server. Use as an async context manager, or `start` and `stop` it.

    >>> async with Simulator(SimulatorSettings(port=0)) as running:  # doctest: +SKIP
    ...     print(running.url)
    """

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.server = ModelServer(settings)
        self.port = settings.port
        app = web.Application(client_max_size=settings.max_body)
        for api in (OpenAiApi(self.server), AnthropicApi(self.server), ControlApi(self.server)):
            app.add_routes(api.routes())
        app.on_response_prepare.append(self._add_name)
        app.on_shutdown.append(self._clear_faults)
        # aiohttp cancels the handler of a client that has left, which frees the request's slot and blocks.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=settings.drain_timeout
        )

    @property
    def name(self) -> str:
        """What `x-simulator-endpoint` says."""
        return self.server.name

    @property
    def authority(self) -> str:
        return join_host_port(self.settings.host, self.port)

    @property
    def url(self) -> str:
        """`http://127.0.0.1:8000`. With port 0 it is known after `start`."""
        return f"http://{self.authority}"

    async def start(self) -> None:
        """Listen. Raises `Invalid` if the address isn't available."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.settings.host, self.settings.port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            problem = Problem("port", f"cannot listen on {self.authority}: {error.strerror}")
            raise Invalid([problem]) from error
        self.port = self._runner.addresses[0][1]
        self.server.name = self.settings.name or self.authority
        log.info("simulator.started", url=self.url, engine=self.settings.engine, name=self.name)

    async def stop(self) -> None:
        """Accept no new connections, wait for running requests, and cancel them after the drain timeout."""
        log.info("simulator.draining", timeout=self.settings.drain_timeout)
        await self._runner.cleanup()
        await self.server.close()
        log.info("simulator.stopped")

    async def _add_name(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["x-simulator-endpoint"] = self.server.name

    async def _clear_faults(self, app: web.Application) -> None:
        self.server.clear_faults()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<Simulator {self.url} {self.server!r}>"


def main(argv: Sequence[str]) -> int:
    """`pointsman simulator`; the process's exit code."""
    try:
        settings = parse(SimulatorSettings, argv, os.environ, "pointsman simulator")
        logs.configure(settings.log_level, settings.log_format, tier="simulator")
        warn_of_variables(SimulatorSettings, os.environ)
        uvloop.run(_until_signal(settings))
    except Invalid as error:
        return report(error)
    return 0


async def _until_signal(settings: SimulatorSettings) -> None:
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        log.info("simulator.signal", signal=signal.Signals(number).name)
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    async with Simulator(settings):
        await stop.wait()
