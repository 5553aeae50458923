"""A Kubernetes cluster as the origin of all that a watcher knows: a source for each pool, watches that they share."""

from collections.abc import Callable, Sequence
from typing import Any

from services.watcher.configuration import installed
from services.watcher.file_origin import config_root, file_source
from services.watcher.files import FileSource
from services.watcher.keeper import PoolKeeper
from services.watcher.kubernetes.client import Client, connect
from services.watcher.kubernetes.cluster import Cluster
from services.watcher.kubernetes.errors import ConfigurationError
from services.watcher.kubernetes.reporter import Reporter
from services.watcher.kubernetes.source import ConfigMapKey, KubernetesSource, Plan
from services.watcher.metrics import WatcherMetrics
from services.watcher.origin import Spawn
from services.watcher.resources import PoolId
from services.watcher.settings import WatcherSettings
from services.watcher.sources import Event, Rejected, Source
from services.watcher.state import Merged, collect
from shared.config.loaded import LoadedConfig
from shared.config.loader import load
from shared.config.problems import Invalid, Problem, Problems
from shared.model import Configuration, Pool


class KubernetesOrigin:
    """Connects at `open`; from then on all that can go wrong is a state, told by `problem`."""

    patient = True

    def __init__(
        self,
        settings: WatcherSettings,
        spawn: Spawn,
        identity: str,
        metrics: WatcherMetrics,
        leads: Callable[[], bool],
    ) -> None:
        """Raises `Invalid` for settings that don't go together."""
        self._settings = settings
        self._spawn = spawn
        self._plans = plans(settings)
        self._client: Client | None = None
        self._cluster: Cluster | None = None
        self._sources: dict[PoolId, KubernetesSource] = {}
        self._files: dict[PoolId, FileSource] = {}
        """Those of pools whose configuration is a file."""
        self._read: dict[PoolId, Sequence[Event]] = {}
        """What was in the files at `open`."""
        self.pools = tuple(self._plans)
        self._config_root = config_root(settings)
        self.preferred = self._config_root.origin if self._config_root else ""
        self.reporter = Reporter(
            settings,
            identity,
            metrics,
            views=lambda: [one.view() for one in self._sources.values()],
            revision=lambda: sum(one.revision for one in self._sources.values()),
            leads=leads,
        )

    async def open(self) -> None:
        """Raises `Invalid` for a configuration file that is bad, and when there is neither a kubeconfig nor a service
        account that can be used."""
        for pool, files in self._files.items():
            events = self._read[pool] = await files.load()
            collect({one.origin: list(one.problems) for one in events if isinstance(one, Rejected)}).raise_if_any()
        try:
            self._client = await connect(self._settings)
        except ConfigurationError as error:
            raise Invalid([Problem("--kubeconfig", str(error))]) from error
        self.reporter.start(self._client)
        self._cluster = Cluster(self._client, self._settings, self._spawn)
        for source in self._sources.values():
            source.start(self._cluster)
        self._cluster.start()

    def sources(self, pool: PoolId) -> tuple[Source, ...]:
        source = self._sources[pool] = KubernetesSource(self._plans[pool], self._validate)
        if self._config_root is None:
            return (source,)
        files = self._files[pool] = file_source(self._settings, pool)
        files.follow([self._config_root])
        return (files, source)

    async def load(self, keeper: PoolKeeper) -> None:
        """Waits for as long as it takes."""
        source = self._sources[keeper.pool]
        keeper.apply([*self._read.pop(keeper.pool, ()), *await source.load()])
        while keeper.holding.merged is None:
            keeper.apply(await source.changes())
        if keeper.want():
            for one in keeper.sources:
                keeper.apply(await one.load())
        keeper.accept(Merged())
        keeper.say_asides()

    def accepted(self, keeper: PoolKeeper) -> None:
        """Where things come from doesn't depend on what they say."""

    def awaited(self, pool: PoolId) -> str | None:
        return self._sources[pool].awaited()

    def problem(self) -> str | None:
        return "not connected" if self._cluster is None else self._cluster.problem()

    async def report(self) -> None:
        await self.reporter.run()

    def unreported(self) -> str | None:
        return self.reporter.problem()

    def state(self) -> dict[str, Any]:
        if self._cluster is None:
            return {}
        others = {origin: reason for source in self._sources.values() for origin, reason in source.not_ours().items()}
        return {"kubernetes": {**self._cluster.state(), "not_for_the_pools": others}, "status": self.reporter.state()}

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def _validate(self, configuration: Configuration) -> LoadedConfig:
        experimental, bounds = self._settings.allow_experimental_plugins, self._settings.config_bounds
        return load(
            configuration.text, installed(), configuration.origin, allow_experimental=experimental, bounds=bounds
        )


def plans(settings: WatcherSettings) -> dict[PoolId, Plan]:
    """What to follow for each pool. Raises `Invalid` for settings that don't go together."""
    problems = Problems()
    served = _pools(settings, problems)
    selector = _selector(settings, problems)
    ports = settings.endpoint_target_ports
    if selector is not None and not ports:
        problems.error("--endpoint-target-ports", "required with --endpoint-selector, and missing")
    if ports and selector is None:
        problems.error("--endpoint-selector", "required with --endpoint-target-ports, and missing")
    for at, port in enumerate(ports):
        if port in ports[:at]:
            problems.error("--endpoint-target-ports", f"port {port} is given twice")
    for flag, given in (
        ("--endpoint-selector", selector is not None),
        ("--eds-file", bool(settings.eds_file)),
        ("--endpoint-slices", bool(settings.endpoint_slices)),
    ):
        if given and len(served) > 1:
            problems.error(flag, f"is for one pool, and --pools names {len(served)}")
    if settings.endpoints_file:
        problems.error("--endpoints-file", "can't be given together with --kubernetes")
    config_map = _config_map(settings, served, problems)
    if config_map is not None and settings.config_file:
        problems.error("--config-map", "can't be given together with --config-file")
    problems.raise_if_any()
    return {
        pool: Plan(
            pool=pool,
            stand_alone=None
            if selector is None
            else Pool(name=pool.name, namespace=pool.namespace, selector=selector, target_ports=tuple(ports)),
            config_map=config_map,
            slices_of=settings.endpoint_slices,
            ip_family=settings.ip_family,
        )
        for pool in served
    }


def _pools(settings: WatcherSettings, problems: Problems) -> list[PoolId]:
    if not settings.pools:
        return [PoolId(settings.pool_namespace, settings.pool_name)]
    found: list[PoolId] = []
    for text in settings.pools:
        namespace, slash, name = text.rpartition("/")
        pool = PoolId(namespace if slash else settings.pool_namespace, name)
        if not pool.namespace or not pool.name or "/" in pool.namespace:
            problems.error("--pools", f"{text!r} is no pool; namespace/name is expected, or a name")
        elif pool in found:
            problems.error("--pools", f"{text!r} is given twice")
        else:
            found.append(pool)
    return found


def _selector(settings: WatcherSettings, problems: Problems) -> dict[str, str] | None:
    """Labels by name; None where none are given."""
    labels: dict[str, str] = {}
    for part in settings.endpoint_selector:
        name, equals, value = (one.strip() for one in part.partition("="))
        if not name or not equals:
            problems.error("--endpoint-selector", f"{part!r} is no label; name=value is expected")
        labels[name] = value.removeprefix("=").strip()
    return labels or None


def _config_map(settings: WatcherSettings, served: list[PoolId], problems: Problems) -> ConfigMapKey | None:
    if not settings.config_map or not served:
        return None
    parts = settings.config_map.split("/")
    namespace = parts.pop(0) if len(parts) > 1 else served[0].namespace
    name, key = parts[0], parts[1] if len(parts) > 1 else ""
    if not namespace or not name or len(parts) > 2 or (len(parts) == 2 and not key):
        text = "namespace/name, or namespace/name/key, is expected"
        problems.error("--config-map", f"{settings.config_map!r} names no ConfigMap; {text}")
    return ConfigMapKey(namespace, name, key)
