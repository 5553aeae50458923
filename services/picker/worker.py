"""`python -m services.picker.worker DESCRIPTOR`: the process of a worker, a picker whose ports its supervisor has.

Its settings are on standard input. When the supervisor ends, it drains as on SIGTERM; if it does already, it ends at
once.
"""

import asyncio
import contextlib
import gc
import os
import socket
import sys
import time

import msgspec
import structlog

from services.picker.app import PickerService
from services.picker.garbage import search_young_only
from services.picker.settings.picker import PickerSettings
from services.picker.workers.channel import CONNECTION, Status, WorkerEnd
from shared.config.problems import Invalid
from shared.service import logs
from shared.service.process import EXIT_CRASHED, operate
from shared.service.readiness import Phase
from shared.service.settings import EXIT_INVALID

log = structlog.get_logger(__name__)

INTERVAL = 0.1
"""Seconds between two reports, unless there is news."""
SILENT = 1.0
"""Seconds between two log lines about lost connections."""


class WorkerService(PickerService):
    """A picker that gets its connections, and the requests to its admin HTTP, from its supervisor."""

    listens = False

    def __init__(self, settings: PickerSettings, channel: socket.socket) -> None:
        super().__init__(settings)
        self._adopted = 0
        self._silent_until = 0.0
        self._asked_to_stop = False
        self._news = asyncio.Event()
        self.grpc.on_closed(self._news.set)
        self._channel = WorkerEnd(
            channel,
            on_connection=self._on_connection,
            on_admin=self._on_admin,
            on_release=self._on_release,
            on_stop=self._on_stop,
            on_end=self._on_end,
            on_lost=self._on_lost,
        )

    async def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._channel, self._channel.receive)
        self.spawn(self._report(), "report")
        await super().start()

    async def close(self) -> None:
        await super().close()
        asyncio.get_running_loop().remove_reader(self._channel)

    async def _report(self) -> None:
        while True:
            phase = self.readiness.phase
            self._channel.report(
                Status(
                    started=phase is not Phase.STARTING,
                    ready=self.readiness.ready,
                    adopted=self._adopted,
                    connections=self.grpc.connections,
                )
            )
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), INTERVAL)

    def _on_connection(self, connection: socket.socket) -> None:
        self.spawn(self._adopt(connection), "connection", essential=False)

    async def _adopt(self, connection: socket.socket) -> None:
        try:
            await self.grpc.adopt(connection)
        except OSError as error:  # a proxy that has gone, or whose TLS fails
            log.debug("ext_proc.connection_failed", reason=str(error))
        self._adopted += 1  # the supervisor counts those that aren't adopted yet

    def _on_admin(self, connection: socket.socket) -> None:
        if self.admin is None:
            connection.close()
        else:
            self.spawn(self.admin.adopt(connection), "admin connection", essential=False)

    def _on_lost(self, command: bytes) -> None:
        """The supervisor counts connections that aren't adopted yet: for ever, if they never were."""
        self._adopted += command == CONNECTION
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + SILENT
            log.warning("worker.no_descriptors")

    def _on_release(self) -> None:
        self.spawn(self.grpc.release(), "release", essential=False)

    def _on_stop(self) -> None:
        self._asked_to_stop = True
        self.stop()

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel)
        if self._asked_to_stop:
            os._exit(EXIT_CRASHED)
        log.warning("worker.supervisor_gone")
        self.stop()


def main() -> int:
    """Run a worker; its exit code. The supervisor reports invalid settings."""
    gc.freeze()  # modules live until the end
    search_young_only()
    settings = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=PickerSettings)
    logs.configure(settings.log_level, settings.log_format, tier="picker", id=settings.id)
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        try:
            return operate(lambda: WorkerService(settings, channel))
        except Invalid as error:
            with contextlib.suppress(OSError):  # another worker's problems have ended the supervisor
                channel.send(msgspec.json.encode(Status(invalid=error.problems, origin=error.origin)) + b"\n")
            return EXIT_INVALID


if __name__ == "__main__":
    sys.exit(main())
