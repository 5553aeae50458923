"""A watcher or a collector as a process of its own: to be killed, paused and stopped."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import httpx

from tests.nats import free_port
from tests.waiting import TIMEOUT, eventually

OTHER_CLOCKS = """
import sys, time
ahead = float(sys.argv.pop(1))
for name in ("monotonic", "time"):
    setattr(time, name, lambda real=getattr(time, name): real() + ahead)
from pointsman.cli import main
sys.exit(main())
"""
"""A program whose clocks, wall and monotonic, differ from this machine's by its first argument in seconds."""


class TierProcess:
    """`clock` is by how much its clocks differ from this machine's, in seconds."""

    tier: ClassVar[str]

    def __init__(self, url: str, id: str, log: Path, *flags: str, clock: float = 0.0) -> None:
        self.id = id
        self.port = free_port()
        self._log = log.open("wb")
        program = ("-c", OTHER_CLOCKS, str(clock)) if clock else ("-m", "pointsman")
        common = (f"--nats-url={url}", f"--id={id}", "--admin-host=127.0.0.1", f"--admin-port={self.port}")
        self._process = subprocess.Popen([sys.executable, *program, self.tier, *common, *flags], stderr=self._log)

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            return await client.get(f"http://127.0.0.1:{self.port}{path}")

    async def state(self) -> dict[str, Any]:
        state: dict[str, Any] = (await self.get("/debug/state")).json()
        return state

    async def ready(self) -> None:
        reasons: dict[str, str] | None = None

        async def so() -> bool:
            nonlocal reasons
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.tier} {self.id} has ended")
            try:
                reasons = (await self.get("/readyz")).json()["reasons"]
            except httpx.TransportError:
                return False  # it doesn't listen yet
            return reasons == {}

        await eventually(so, lambda: f"{self.tier} {self.id} is ready: {reasons}", step=0.05)

    def kill(self) -> None:
        """SIGKILL; also of one that is stopped, or has ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(TIMEOUT)
        self._log.close()

    close = kill

    def pause(self) -> None:
        """SIGSTOP: it stands still, and its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.terminate()
        return await self.ended()

    async def ended(self) -> int:
        """The exit code, once it has ended by itself."""
        return await asyncio.to_thread(self._process.wait, TIMEOUT)
