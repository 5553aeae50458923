"""The running configuration and what the tiers make of it; what they would make of another document."""

import asyncio
from typing import Any

from services.console.members import Members
from shared.config import Invalid, LoadedConfig, load
from shared.config.defaults import revision
from shared.config.schema import Bounds
from shared.model import Configuration
from shared.plugin import Registry

BUILT_IN = Configuration(text="")


class Documents:
    """Loads documents with the installed plugins, as the tiers do: in a thread, because it can take seconds, and one at
    a time."""

    def __init__(self, bounds: Bounds, most: int, plugins: Registry | None = None) -> None:
        """`most`: characters of a document."""
        self._plugins = Registry.installed() if plugins is None else plugins
        self._bounds, self._most = bounds, most
        self._loading = asyncio.Lock()
        self._running = BUILT_IN
        self.loaded = self._load(BUILT_IN.text)
        """The running document, or what is wrong with it."""

    def _load(self, text: str) -> LoadedConfig | Invalid:
        """The document, or what is wrong with it."""
        try:
            return load(text, self._plugins, allow_experimental=True, bounds=self._bounds)
        except Invalid as error:
            return error

    async def run(self, configuration: Configuration | None) -> LoadedConfig | Invalid:
        """Take the published document for the running one; none is the built-in one. It is loaded once."""
        configuration = configuration or BUILT_IN
        async with self._loading:
            if configuration is not self._running and configuration.text != self._running.text:
                self.loaded = await asyncio.to_thread(self._load, configuration.text)
            self._running = configuration
            return self.loaded

    async def check(self, text: str) -> dict[str, Any]:
        """As `services.console.schemas.CheckPage`."""
        if len(text) > self._most:
            errors = [f"the document has {len(text)} characters; {self._most} are allowed"]
            return {"revision": "", "plugins": 0, "errors": errors, "warnings": []}
        async with self._loading:
            return await asyncio.to_thread(lambda: _checked(text, self._load(text)))

    async def page(self, configuration: Configuration | None, members: Members) -> dict[str, Any]:
        """As `services.console.schemas.ConfigurationPage`, without `about`."""
        loaded = await self.run(configuration)
        configuration = configuration or BUILT_IN
        statuses = members.statuses()
        return {
            **_checked(configuration.text, loaded),
            "text": configuration.text,
            "origin": configuration.origin,
            "members": [
                {
                    "tier": status.tier,
                    "id": status.id,
                    "revision": ", ".join(one.revision for one in status.configurations),
                    "origin": ", ".join(one.origin for one in status.configurations),
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
        return f"<Documents, running {revision(self._running.text)}>"


def _checked(text: str, loaded: LoadedConfig | Invalid) -> dict[str, Any]:
    if isinstance(loaded, Invalid):
        return {"revision": revision(text), "plugins": 0, "errors": loaded.lines(), "warnings": []}
    warnings = [str(warning) for warning in loaded.warnings]
    return {"revision": loaded.revision, "plugins": len(loaded.plugins), "errors": [], "warnings": warnings}
