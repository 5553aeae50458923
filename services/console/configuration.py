"""The running configuration and what the tiers make of it; what they would make of another document."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from services.console.checking import CheckFailed, CheckResult, check_document
from services.console.members import Members
from shared.config.defaults import revision
from shared.config.schema import Bounds
from shared.model import Configuration

BUILT_IN = Configuration(text="")
MAX_CHECKS = 4
"""Documents that are checked or wait for it: a check goes on when its client has gone."""


class TooManyChecks(Exception):
    """As many documents wait as may."""


class Documents:
    """Has documents read: the running one, and of others one at a time."""

    def __init__(
        self,
        bounds: Bounds,
        limit: int,
        read: Callable[[str, Bounds], Awaitable[CheckResult]] = check_document,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`limit`: characters of a document."""
        self._clock = clock
        self._bounds, self._limit, self._read = bounds, limit, read
        self._reading, self._checking = asyncio.Lock(), asyncio.Lock()
        self._checks = 0
        self._running: Configuration | None = None
        self._before: dict[str, str] | None = None
        self.running = CheckResult()
        """What the tiers make of the running document."""

    async def run(self, configuration: Configuration | None) -> CheckResult:
        """Take the published document for the running one; none is the built-in one. It is read once."""
        configuration = configuration or BUILT_IN
        async with self._reading:
            former = self._running
            if former is None or configuration.text != former.text:
                try:
                    reading = await self._read(configuration.text, self._bounds)
                except CheckFailed as error:
                    return _unread(configuration.text, error)
                if former is not None and former is not BUILT_IN:  # which is there until a document has been heard
                    until = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
                    self._before = {"revision": self.running.revision, "until": until, "text": former.text}
                self.running = reading
            self._running = configuration
            return self.running

    async def check(self, text: str) -> dict[str, Any]:
        """As `services.console.schemas.CheckPage`. Raises TooManyChecks."""
        if len(text) > self._limit:
            errors = [f"the document has {len(text)} characters; {self._limit} are allowed"]
            return _page(CheckResult(errors=errors))
        if self._checks >= MAX_CHECKS:
            raise TooManyChecks(f"{self._checks} documents are being checked; try again later")
        self._checks += 1
        try:
            async with self._checking:
                return _page(await self._read(text, self._bounds))
        except CheckFailed as error:
            return _page(_unread(text, error))
        finally:
            self._checks -= 1

    async def page(self, configuration: Configuration | None, members: Members) -> dict[str, Any]:
        """As `services.console.schemas.ConfigurationPage`, without `about`."""
        reading = await self.run(configuration)
        configuration = configuration or BUILT_IN
        statuses = await members.answered()
        return {
            **_page(reading),
            "text": configuration.text,
            "origin": configuration.origin,
            "before": self._before,
            "members": [
                {
                    "tier": status.tier,
                    "id": status.id,
                    "revision": ", ".join(configuration.revision for configuration in status.configurations),
                    "origin": ", ".join(configuration.origin for configuration in status.configurations),
                    "warnings": list(status.configuration_warnings),
                }
                for status in statuses
            ],
            "rejected": [
                {"tier": status.tier, "id": status.id, "reason": status.configuration_problem}
                for status in statuses
                if status.configuration_problem
            ],
        }

    def __repr__(self) -> str:
        return f"<Documents, running {self.running.revision}>"


def _page(reading: CheckResult) -> dict[str, Any]:
    return {
        "revision": reading.revision,
        "plugins": reading.plugins,
        "errors": reading.errors,
        "warnings": reading.warnings,
    }


def _unread(text: str, error: CheckFailed) -> CheckResult:
    return CheckResult(revision(text), errors=[f"the document couldn't be checked: {error}"])
