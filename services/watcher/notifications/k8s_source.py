"""`k8s-notification-source`: passes Kubernetes objects of one kind to extractors."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from shared.datalayer.objects import NotificationSource, ObjectKind

_Text = Annotated[str, Meta(min_length=1)]


class K8sNotificationSourceParameters(Struct, frozen=True, rename="camel"):
    """Group, version and kind of the objects. The core API's group is empty."""

    version: _Text
    kind: _Text
    group: str = ""


class K8sNotificationSource(NotificationSource):
    """Names the kind. The watcher's sources report its objects."""

    TYPE: ClassVar[str] = "k8s-notification-source"
    Parameters = K8sNotificationSourceParameters
    parameters: K8sNotificationSourceParameters

    @property
    def kind(self) -> ObjectKind:
        return _kind(self.parameters)

    @classmethod
    def topic(cls, parameters: K8sNotificationSourceParameters) -> str:
        return str(_kind(parameters))


def _kind(parameters: K8sNotificationSourceParameters) -> ObjectKind:
    return ObjectKind(parameters.group, parameters.version, parameters.kind)
