"""Where all that a watcher knows comes from: files, or a Kubernetes cluster."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from services.watcher.keeper import PoolKeeper
from services.watcher.resources import PoolId
from services.watcher.sources import Source


class Spawn(Protocol):
    """Runs a background task for as long as the process; `Service.spawn`."""

    def __call__(self, work: Coroutine[Any, Any, None], name: str, *, essential: bool = True) -> asyncio.Task[None]: ...


class Origin(Protocol):
    """Makes the sources of each pool, and knows how to begin with them."""

    pools: tuple[PoolId, ...]
    """Those that are served, at least one."""
    preferred: str
    """The source's origin whose configuration goes before all others'."""
    patient: bool
    """Whether `load` may take for as long as a server can't be reached."""

    def sources(self, pool: PoolId) -> tuple[Source, ...]:
        """Called once for each pool."""

    async def open(self) -> None:
        """Before anything is loaded. Raises `Invalid` for settings that can't be used."""

    async def load(self, keeper: PoolKeeper) -> None:
        """Have the keeper accept the first complete reading of its sources. Raises `Invalid` for what is wrong with
        it, if that shall end the process."""

    def accepted(self, keeper: PoolKeeper) -> None:
        """The keeper holds another set."""

    def awaited(self, pool: PoolId) -> str | None:
        """What has to be put right before it is known what there is of the pool; None when that isn't it."""

    def problem(self) -> str | None:
        """What stands between the sources and what is really there; None when nothing does."""

    async def report(self) -> None:
        """While this watcher leads: say where things come from what is made of them. Never raises; may end."""

    def unreported(self) -> str | None:
        """What can't be said there; None when all could."""

    def state(self) -> dict[str, Any]:
        """For `/debug/state`."""

    async def close(self) -> None:
        """Let go of connections."""
