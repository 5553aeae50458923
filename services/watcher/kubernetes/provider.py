"""A Kubernetes cluster as the provider of facts: a source for each pool, with informers that they share."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from msgspec import structs

from services.watcher.configuration import installed
from services.watcher.drain_file import DrainError
from services.watcher.few import LISTED, listed
from services.watcher.file_provider import config_root, file_source
from services.watcher.files import FileSource
from services.watcher.kubernetes.client import Client, connect
from services.watcher.kubernetes.config_map import ConfigMapKey
from services.watcher.kubernetes.drain import drain_endpoint
from services.watcher.kubernetes.errors import ConfigurationError, KubernetesError
from services.watcher.kubernetes.informers import InformerFactory
from services.watcher.kubernetes.reporter import Reporter
from services.watcher.kubernetes.reports import PoolView
from services.watcher.kubernetes.source import KubernetesSource, PoolOptions
from services.watcher.metrics import WatcherMetrics
from services.watcher.provider import Provider, Spawn
from services.watcher.reconciler import PoolReconciler
from services.watcher.resources import PoolId
from services.watcher.settings import WatcherSettings
from services.watcher.sources import Event, Rejected, Source
from services.watcher.state import collect
from services.watcher.unpublishable import Unpublishable
from shared.config.loaded import LoadedConfig
from shared.config.loader import load
from shared.config.problems import Invalid, Problem, Problems
from shared.model import Configuration, Endpoint, Pool


class KubernetesProvider(Provider):
    """Connects in `open`. Later failures don't raise; `problem` has them."""

    remote = True

    def __init__(
        self,
        settings: WatcherSettings,
        spawn: Spawn,
        identity: str,
        metrics: WatcherMetrics,
        leads: Callable[[], bool],
    ) -> None:
        """Raises `Invalid` for settings that contradict each other."""
        self._settings = settings
        self._spawn = spawn
        self._options = pool_options(settings)
        self._client: Client | None = None
        self._factory: InformerFactory | None = None
        self._sources: dict[PoolId, KubernetesSource] = {}
        self._files: dict[PoolId, FileSource] = {}
        """Those of pools whose configuration is a file."""
        self._read: dict[PoolId, Sequence[Event]] = {}
        """The content of the files at `open`."""
        self._unpublishable: dict[PoolId, Unpublishable] = {}
        """Those of pools that have been loaded."""
        self.pools = tuple(self._options)
        self._config_root = config_root(settings)
        self.preferred = self._config_root.origin if self._config_root else ""
        self.reporter = Reporter(
            settings,
            identity,
            metrics,
            views=self._views,
            revision=lambda: (
                sum(source.revision for source in self._sources.values())
                + sum(unpublishable.revision for unpublishable in self._unpublishable.values())
            ),
            leads=leads,
        )

    async def open(self) -> None:
        """Raises `Invalid` for an invalid configuration file, and without a usable kubeconfig or service account."""
        for pool, files in self._files.items():
            events = self._read[pool] = await files.load()
            rejected = [event for event in events if isinstance(event, Rejected)]
            collect({event.origin: list(event.problems) for event in rejected}).raise_if_any()
        try:
            self._client = await connect(self._settings)
        except ConfigurationError as error:
            raise Invalid([Problem("--kubeconfig", str(error))]) from error
        self.reporter.start(self._client)
        self._factory = InformerFactory(self._client, self._settings, self._spawn)
        for source in self._sources.values():
            source.start(self._factory)
        self._factory.start()

    def sources(self, pool: PoolId) -> tuple[Source, ...]:
        source = self._sources[pool] = KubernetesSource(self._options[pool], self._validate)
        if self._config_root is None:
            return (source,)
        files = self._files[pool] = file_source(self._settings, pool)
        files.follow([self._config_root])
        return (files, source)

    async def load(self, reconciler: PoolReconciler) -> None:
        source = self._sources[reconciler.pool]
        await reconciler.apply([*self._read.pop(reconciler.pool, ()), *await source.load()])
        while not reconciler.loaded:
            await reconciler.apply(await source.changes())
        if reconciler.use_configuration():
            for other in reconciler.sources:
                await reconciler.apply(await other.load())
        reconciler.accept()
        await reconciler.log_remarks()

    def accepted(self, reconciler: PoolReconciler) -> None:
        self._unpublishable[reconciler.pool] = reconciler.unpublishable

    def load_problem(self, pool: PoolId) -> str | None:
        return self._sources[pool].load_problem()

    def problem(self) -> str | None:
        return "not connected" if self._factory is None else self._factory.problem()

    async def report(self) -> None:
        await self.reporter.run()

    def report_problem(self) -> str | None:
        return self.reporter.problem()

    async def drain(self, endpoint: Endpoint, drain: bool) -> None:
        if self._settings.endpoint_slices:
            raise DrainError("EndpointSlices can't mark an endpoint as draining; make the pod unready")
        if self._client is None:
            raise DrainError("not connected")
        try:
            await drain_endpoint(self._client, endpoint, drain)
        except KubernetesError as error:
            raise DrainError(str(error)) from error

    def state(self) -> dict[str, Any]:
        if self._factory is None:
            return {}
        ignored = (found for source in self._sources.values() for found in source.ignored())
        first = list(islice(ignored, LISTED))
        return {
            "kubernetes": {
                **self._factory.state(),
                "not_for_the_pools": listed(first, len(first) + sum(1 for _ in ignored)),
            },
            "status": self.reporter.state(),
        }

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def _views(self) -> list[PoolView]:
        """What is known of each pool, for the reporter."""
        views = {pool: source.view() for pool, source in self._sources.items()}
        for pool, unpublishable in self._unpublishable.items():
            views[pool] = structs.replace(views[pool], unpublishable=dict(unpublishable.reasons))
        return list(views.values())

    def _validate(self, configuration: Configuration) -> LoadedConfig:
        experimental, bounds = self._settings.allow_experimental_plugins, self._settings.config_bounds
        return load(
            configuration.text, installed(), configuration.origin, allow_experimental=experimental, bounds=bounds
        )


def pool_options(settings: WatcherSettings) -> dict[PoolId, PoolOptions]:
    """Where each pool is. Raises `Invalid` for settings that contradict each other."""
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
    if settings.keep_unreachable and settings.endpoint_slices:
        problems.error("--keep-unreachable", "is for pods, and --endpoint-slices reads none")
    if settings.endpoints_file:
        problems.error("--endpoints-file", "can't be given together with --kubernetes")
    shared = _config_map("--config-map", settings.config_map, next(iter(served), None), problems)
    config_maps = {pool: _config_map("--pools", text, pool, problems) or shared for pool, text in served.items()}
    if settings.config_file:
        for flag, given in (("--config-map", bool(settings.config_map)), ("--pools", any(served.values()))):
            if given:
                problems.error(flag, "a ConfigMap can't be given together with --config-file")
    problems.raise_if_any()
    return {
        pool: PoolOptions(
            pool=pool,
            stand_alone=None
            if selector is None
            else Pool(name=pool.name, namespace=pool.namespace, selector=selector, target_ports=tuple(ports)),
            config_map=config_maps[pool],
            slices_of=settings.endpoint_slices,
            ip_family=settings.ip_family,
            keep_unreachable=settings.keep_unreachable,
        )
        for pool in served
    }


def _pools(settings: WatcherSettings, problems: Problems) -> dict[PoolId, str]:
    """What is served, each with the ConfigMap that is given for it alone."""
    if not settings.pools:
        return {PoolId(settings.pool_namespace, settings.pool_name): ""}
    found: dict[PoolId, str] = {}
    for text in settings.pools:
        name, equals, config_map = text.partition("=")
        namespace, slash, name = name.rpartition("/")
        pool = PoolId(namespace if slash else settings.pool_namespace, name)
        if not pool.namespace or not pool.name or "/" in pool.namespace or (equals and not config_map):
            problems.error("--pools", f"{text!r} is no pool; namespace/name is expected, or a name")
        elif pool in found:
            problems.error("--pools", f"{text!r} is given twice")
        else:
            found[pool] = config_map
    return found


def _selector(settings: WatcherSettings, problems: Problems) -> dict[str, str] | None:
    """Labels by name; None if none are given."""
    labels: dict[str, str] = {}
    for part in settings.endpoint_selector:
        name, equals, value = map(str.strip, part.partition("="))
        if not name or not equals:
            problems.error("--endpoint-selector", f"{part!r} is no label; name=value is expected")
        labels[name] = value.removeprefix("=").strip()
    return labels or None


def _config_map(flag: str, text: str, pool: PoolId | None, problems: Problems) -> ConfigMapKey | None:
    """The one that a flag's text names; without a namespace, it is in the pool's."""
    if not text or pool is None:
        return None
    parts = text.split("/")
    namespace = parts.pop(0) if len(parts) > 1 else pool.namespace
    name, key = parts[0], parts[1] if len(parts) > 1 else ""
    if not namespace or not name or len(parts) > 2 or (len(parts) == 2 and not key):
        problems.error(flag, f"{text!r} names no ConfigMap; namespace/name, or namespace/name/key, is expected")
    return ConfigMapKey(namespace, name, key)
