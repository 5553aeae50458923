"""Which files a watcher without Kubernetes reads: those of its flags, else the one that the configuration names."""

import asyncio

from services.watcher.configuration import discovery, installed
from services.watcher.drain_file import DrainError, drain_in_files
from services.watcher.files import FileReader, FileSource, Limits, Root, Unusable
from services.watcher.provider import Provider
from services.watcher.reconciler import PoolReconciler
from services.watcher.resources import PoolId
from services.watcher.settings import WatcherSettings
from services.watcher.sources import Reset, Source
from services.watcher.state import collect
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid, Problem, Problems
from shared.model import Endpoint


def config_root(settings: WatcherSettings) -> Root | None:
    """The file of `--config-file`."""
    return Root(settings.config_file, "--config-file", configures=True) if settings.config_file else None


def file_source(settings: WatcherSettings, pool: PoolId) -> FileSource:
    """Reads the files that `follow` names for this pool."""
    return FileSource(
        FileReader(
            pool,
            installed,
            allow_experimental=settings.allow_experimental_plugins,
            bounds=settings.config_bounds,
            limits=Limits(settings.max_file_size, settings.max_file_values, settings.max_files),
        ),
        settings.rescan_interval,
    )


class FileProvider(Provider):
    """Flags take precedence over the configuration's `file-discovery`."""

    def __init__(self, settings: WatcherSettings) -> None:
        """Raises `Invalid` for settings that need `--kubernetes`."""
        problems = Problems()
        for name in ("pools", "config_map", "endpoint_selector", "endpoint_target_ports", "endpoint_slices"):
            if getattr(settings, name):
                problems.error(f"--{name.replace('_', '-')}", "has no effect without --kubernetes")
        problems.raise_if_any()
        self._settings = settings
        pool = PoolId(settings.pool_namespace, settings.pool_name)
        self.pools = (pool,)
        self._config_root = config_root(settings)
        self._discovered: Root | None = None
        self.preferred = self._config_root.origin if self._config_root else ""
        self.files = file_source(settings, pool)

    def sources(self, pool: PoolId) -> tuple[Source, ...]:
        return (self.files,)

    async def load(self, reconciler: PoolReconciler) -> None:
        """Raises `Invalid` unless all files are valid."""
        self.files.follow(self._roots())
        events = await self.files.load()
        for event in events:
            if isinstance(event, Reset) and self._discover(event.loaded):
                self.files.follow(self._roots())
                events += await self.files.load()
                break
        await reconciler.apply(events)
        if not self._settings.endpoints_file and not self._discovered and not reconciler.loaded:
            collect(reconciler.desired.rejected).raise_if_any()
            missing = "required, and missing (or a configuration whose dataLayer.discovery names a file-discovery)"
            raise Invalid([Problem("--endpoints-file", missing)])
        reconciler.raise_problems()
        if reconciler.use_configuration():
            await reconciler.apply(await self.files.load())
            reconciler.raise_problems()
        reconciler.accept()
        await reconciler.log_remarks()

    def accepted(self, reconciler: PoolReconciler) -> None:
        """Follow the file that the configuration names."""
        merged = reconciler.desired.merged
        if merged is not None and self._discover(merged.loaded) and not self._settings.endpoints_file:
            self.files.follow(self._roots())

    async def drain(self, endpoint: Endpoint, drain: bool) -> None:
        path = next((root.path for root in self._roots() if not root.configures), "")
        if not path:
            raise DrainError("this watcher has no endpoints file")
        try:
            await asyncio.to_thread(drain_in_files, path, endpoint.id, drain)
        except (Invalid, Unusable, OSError) as error:
            raise DrainError(str(error)) from error

    def _roots(self) -> list[Root]:
        roots = [self._config_root] if self._config_root else []
        if self._settings.endpoints_file:
            return [*roots, Root(self._settings.endpoints_file, "--endpoints-file")]
        return [*roots, self._discovered] if self._discovered else roots

    def _discover(self, loaded: LoadedConfig | None) -> bool:
        """Keep the path that the configuration names. Returns whether it is new. A configuration without a path doesn't
        change it: the endpoints don't become unknown."""
        plugin = discovery(loaded)
        if plugin is None:
            return False
        before, self._discovered = self._discovered, Root(plugin.path, f"plugin {plugin.name!r}", plugin.watch_file)
        return before != self._discovered
