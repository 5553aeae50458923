"""The watcher's plugin types: discovery of endpoints, and notifications of Kubernetes objects."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from services.watcher.notifications.k8s_source import K8sNotificationSource
from services.watcher.notifications.node_labels import NodeLabelsExtractor
from shared.plugin import Plugin, Role, Tier


class FileDiscoveryParameters(Struct, frozen=True, rename="camel"):
    """Parameters of `file-discovery`. Raises ValueError on creation for a path that no file can have."""

    path: Annotated[str, Meta(min_length=1, description="the endpoints file, or a directory of files")]
    watch_file: Annotated[bool, Meta(description="read it again when it changes")] = True

    def __post_init__(self) -> None:
        if "\0" in self.path:
            raise ValueError(f"path: {self.path!a} has a NUL character")


class FileDiscovery(Plugin):
    """Endpoints from a file, unless `--endpoints-file` is set. Unlike in the Go EPP, the file is watched unless
    `watchFile` is false."""

    TYPE: ClassVar[str] = "file-discovery"
    ROLES: ClassVar[frozenset[Role]] = frozenset({Role.DISCOVERY})
    TIER: ClassVar[Tier] = Tier.WATCHER
    Parameters: ClassVar[type[Struct]] = FileDiscoveryParameters

    def __init__(self, name: str, parameters: Any = None) -> None:
        super().__init__(name, parameters)
        self.path: str = self.parameters.path
        self.watch_file: bool = self.parameters.watch_file


PLUGINS: tuple[type[Plugin], ...] = (FileDiscovery, K8sNotificationSource, NodeLabelsExtractor)
