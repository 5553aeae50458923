"""Which files a watcher without Kubernetes reads: those that flags name, else the one that the configuration does."""

from typing import Any

from services.watcher.configuration import discovery, installed
from services.watcher.files import FileReader, FileSource, Limits, Root
from services.watcher.keeper import PoolKeeper
from services.watcher.resources import PoolId
from services.watcher.settings import WatcherSettings
from services.watcher.sources import Reset, Source
from services.watcher.state import Merged, collect
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid, Problem


def config_root(settings: WatcherSettings) -> Root | None:
    """The file that `--config-file` names."""
    return Root(settings.config_file, "--config-file", configures=True) if settings.config_file else None


def file_source(settings: WatcherSettings, pool: PoolId) -> FileSource:
    """What reads files for this pool; `follow` says which."""
    return FileSource(
        FileReader(
            pool,
            installed,
            allow_experimental=settings.allow_experimental_plugins,
            bounds=settings.config_bounds,
        ),
        settings.rescan_interval,
        Limits(file_size=settings.max_file_size, files=settings.max_files),
    )


class FileOrigin:
    """Flags go before the configuration's `file-discovery`."""

    patient = False

    def __init__(self, settings: WatcherSettings) -> None:
        self._settings = settings
        pool = PoolId(settings.pool_namespace, settings.pool_name)
        self.pools: tuple[PoolId, ...] = (pool,)
        self._config_root = config_root(settings)
        self._discovered: Root | None = None
        self.preferred = self._config_root.origin if self._config_root else ""
        self.files = file_source(settings, pool)

    def sources(self, pool: PoolId) -> tuple[Source, ...]:
        return (self.files,)

    async def open(self) -> None:
        """There is nothing to be opened."""

    async def close(self) -> None:
        """There is nothing to be let go of."""

    def awaited(self, pool: PoolId) -> str | None:
        """What is wrong with files at the start ends it."""
        return None

    def problem(self) -> str | None:
        """What is wrong with files, their keeper knows."""
        return None

    async def report(self) -> None:
        """Nobody looks for answers in files."""

    def unreported(self) -> str | None:
        return None

    def state(self) -> dict[str, Any]:
        return {}

    async def load(self, keeper: PoolKeeper) -> None:
        """The first reading. Raises `Invalid` unless all that there is is good."""
        self.files.follow(self._roots())
        events = await self.files.load()
        for event in events:
            if isinstance(event, Reset) and self._discover(event.loaded):
                self.files.follow(self._roots())
                events += await self.files.load()
                break
        keeper.apply(events)
        if not self._settings.endpoints_file and not self._discovered and keeper.holding.merged is None:
            collect(keeper.holding.rejected).raise_if_any()
            missing = "required, and missing (or a configuration whose dataLayer.discovery names a file-discovery)"
            raise Invalid([Problem("--endpoints-file", missing)])
        keeper.raise_problems()
        if keeper.want():
            keeper.apply(await self.files.load())
            keeper.raise_problems()
        keeper.accept(Merged())
        keeper.say_asides()

    def accepted(self, keeper: PoolKeeper) -> None:
        """Another set holds: read what its configuration names from now on."""
        merged = keeper.holding.merged
        if merged is not None and self._discover(merged.loaded) and not self._settings.endpoints_file:
            self.files.follow(self._roots())

    def _roots(self) -> list[Root]:
        roots = [self._config_root] if self._config_root else []
        if self._settings.endpoints_file:
            return [*roots, Root(self._settings.endpoints_file, "--endpoints-file")]
        return [*roots, self._discovered] if self._discovered else roots

    def _discover(self, loaded: LoadedConfig | None) -> bool:
        """Note where the configuration says that endpoints are; whether that is new. A path is never forgotten: what
        endpoints there are doesn't become unknown because a configuration no longer says where to look."""
        plugin = discovery(loaded)
        if plugin is None:
            return False
        before, self._discovered = self._discovered, Root(plugin.path, f"plugin {plugin.name!r}", plugin.watch_file)
        return before != self._discovered
