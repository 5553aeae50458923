"""Starts processes of a stack again when they end by themselves: at once the first time, later after growing pauses."""

import asyncio
import time
from collections.abc import Callable, Iterable

from pointsman.local.envoy import ConfigurationError
from pointsman.local.process import Process, ProcessError, outcome

INITIAL_PAUSE, MAX_PAUSE = 0.25, 15.0
"""Seconds before a process starts again; each time doubles them."""
STEADY = 30.0
"""Seconds after which a process that runs counts as one that had never ended."""


class Supervisor:
    """`report` gets a line about each end and each start. `pauses` are the shortest and the longest."""

    def __init__(
        self,
        processes: Iterable[Process],
        report: Callable[[str], None],
        *,
        pauses: tuple[float, float] = (INITIAL_PAUSE, MAX_PAUSE),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processes = tuple(processes)
        self._report = report
        self._pauses = pauses
        self._clock = clock

    async def run(self) -> None:
        """Watch over all of them until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for process in self._processes:
                tasks.create_task(self._keep(process), name=f"keep {process.name}")

    async def _keep(self, process: Process) -> None:
        pause, began = self._pauses[0], self._clock()
        while True:
            code = await process.wait()
            if self._clock() - began >= STEADY:
                pause = self._pauses[0]
            self._report(f"{process.name} ended with {outcome(code)}; it starts again. Its log: {process.log}")
            await asyncio.sleep(pause)
            pause, began = min(2 * pause, self._pauses[1]), self._clock()
            try:
                await process.start()
            except ProcessError as error:
                self._report(str(error).partition("\n")[0])
            except (ConfigurationError, OSError) as error:  # some write files first, and the disk may be full
                self._report(f"{process.name} can't be started: {error}".partition("\n")[0])
            else:
                self._report(f"{process.name} is up again.")

    def __repr__(self) -> str:
        return f"<Supervisor {', '.join(process.name for process in self._processes)}>"
