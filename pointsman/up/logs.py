"""The logs of all processes as they grow, each line with the name of its process."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from pointsman.local.process import Process
from shared.printable import printable

INTERVAL = 0.1
"""Seconds between two looks at the files."""
MAX_READ = 1 << 20
"""Bytes of one log that are read at a time."""


class Logs:
    """Passes each complete line to `show`."""

    def __init__(self, processes: Iterable[Process], show: Callable[[str], None]) -> None:
        self._logs = [(process.name, process.log) for process in processes]
        self._width = max((len(name) for name, _ in self._logs), default=0)
        self._show = show
        self._read: dict[Path, int] = {}

    async def run(self) -> None:
        """Follow them until cancelled."""
        while True:
            self.read()
            await asyncio.sleep(INTERVAL)

    def read(self) -> None:
        """Tell the lines that are new."""
        for name, path in self._logs:
            try:
                with path.open("rb") as file:
                    file.seek(self._read.get(path, 0))
                    data = file.read(MAX_READ)
            except FileNotFoundError:
                continue
            end = data.rfind(b"\n") + 1
            if not end and len(data) == MAX_READ:
                end = MAX_READ
            self._read[path] = self._read.get(path, 0) + end
            for line in data[:end].decode(errors="replace").splitlines():
                self._show(f"{name:<{self._width}} | {printable(line)}")

    def __repr__(self) -> str:
        return f"<Logs of {len(self._logs)} processes>"
