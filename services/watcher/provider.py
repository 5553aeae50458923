"""Where a watcher gets its facts: files, or a Kubernetes cluster."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from services.watcher.drain_file import DrainError
from services.watcher.reconciler import PoolReconciler
from services.watcher.resources import PoolId
from services.watcher.sources import Source
from shared.model import Endpoint


class Spawn(Protocol):
    """Runs a background task for as long as the process; `Service.spawn`."""

    def __call__(self, work: Coroutine[Any, Any, None], name: str, *, essential: bool = True) -> asyncio.Task[None]: ...


class Provider:
    """Makes the sources of each pool and loads them. Methods do nothing unless a provider overrides them."""

    pools: tuple[PoolId, ...]
    """The pools that are served, at least one."""
    preferred: str = ""
    """The origin whose configuration takes precedence."""
    remote: bool = False
    """Whether `load` waits for a server, for as long as that can't be reached."""

    def sources(self, pool: PoolId) -> tuple[Source, ...]:
        """Called once for each pool."""
        raise NotImplementedError

    async def open(self) -> None:
        """Called before anything is loaded. Raises `Invalid` for settings that can't be used."""

    async def load(self, reconciler: PoolReconciler) -> None:
        """Make the reconciler accept the first complete reading of its sources. Raises `Invalid` for problems in it
        that are to end the process."""
        raise NotImplementedError

    def accepted(self, reconciler: PoolReconciler) -> None:
        """The reconciler's state has changed."""

    def load_problem(self, pool: PoolId) -> str | None:
        """What has to be corrected before the pool can be loaded."""
        return None

    def problem(self) -> str | None:
        """Why the sources may be out of date."""
        return None

    async def report(self) -> None:
        """Report on resources where they come from, while this watcher leads. Never raises; may return."""

    def report_problem(self) -> str | None:
        """Why `report` can't report everything."""
        return None

    async def drain(self, endpoint: Endpoint, drain: bool) -> None:
        """Let an endpoint drain, or take requests again, by a change of the source. Raises DrainError."""
        raise DrainError("none of this watcher's sources can drain endpoints")

    def state(self) -> dict[str, Any]:
        """For `/debug/state`."""
        return {}

    async def close(self) -> None:
        """Close connections."""
