"""Resources that the API serves, and selections of their objects. Pure: names and paths."""

from typing import Any, TypeAlias

from msgspec import Struct

from shared.datalayer.objects import ObjectKind, Parts

JsonObject: TypeAlias = dict[str, Any]
"""A Kubernetes object as JSON has it, without `metadata.managedFields`."""
ObjectId: TypeAlias = tuple[str, str]
"""Namespace, empty for cluster-scoped kinds, and name."""
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
"""What a URL may have unescaped (RFC 3986)."""


class Resource(Struct, frozen=True):
    """A kind as the API serves it, according to discovery."""

    kind: ObjectKind
    plural: str
    """As in paths: `pods`."""
    namespaced: bool
    verbs: frozenset[str] = frozenset()
    """What the server offers (`list`, `watch`, `patch` …). RBAC decides what is allowed."""
    subresources: frozenset[str] = frozenset()
    """`status` and others."""

    @property
    def name(self) -> str:
        """As in RBAC errors and `kubectl api-resources`: `pods`, `inferencepools.inference.networking.k8s.io`."""
        return f"{self.plural}.{self.kind.group}" if self.kind.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, of a namespace's objects, or of all objects."""
        parts = ["apis", self.kind.group] if self.kind.group else ["api"]
        parts.append(self.kind.version)
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/" + "/".join(map(_quoted, parts))

    def __str__(self) -> str:
        return self.name


class Selection(Struct, frozen=True):
    """Objects of a resource to list and watch. The API server selects."""

    resource: Resource
    namespace: str = ""
    """Empty for all namespaces, and for cluster-scoped resources."""
    labels: str = ""
    """A label selector, such as `app=vllm,tier in (a, b)`."""
    fields: str = ""
    """A field selector, such as `status.phase!=Failed`."""
    metadata_only: bool = False
    """Whether `apiVersion`, `kind` and `metadata` suffice (PartialObjectMetadata)."""

    @property
    def path(self) -> str:
        return self.resource.path(self.namespace)

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """The query parameters that select."""
        selectors = (("labelSelector", self.labels), ("fieldSelector", self.fields))
        return tuple((name, value) for name, value in selectors if value)

    def __str__(self) -> str:
        """`pods in namespace default with app=vllm`."""
        place = f" in namespace {self.namespace}" if self.namespace and self.resource.namespaced else ""
        selectors = " and ".join(value for _, value in self.parameters)
        return f"{self.resource}{place}{f' with {selectors}' if selectors else ''}"


def tidy(item: JsonObject, resource: Resource) -> JsonObject:
    """Normalize an object in place: drop `managedFields` (often a third of a pod), and set `apiVersion` and `kind`,
    which lists omit and metadata-only responses replace."""
    item["metadata"].pop("managedFields", None)
    item["apiVersion"] = resource.kind.api_version
    item["kind"] = resource.kind.kind
    return item


def select_parts(item: JsonObject, parts: Parts) -> JsonObject:
    """These parts of a tidy object (None: all), with what identifies it. Without its resource version, which changes
    with the other parts."""
    if parts is None:
        return item
    metadata = {name: value for name, value in item["metadata"].items() if name != "resourceVersion"}
    kept = {name: item[name] for name in ("apiVersion", "kind", *sorted(parts - {"metadata"})) if name in item}
    return {**kept, "metadata": metadata}


def _quoted(part: str) -> str:
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in part.encode())


def identity(item: JsonObject) -> ObjectId:
    """The namespace and the name of an object."""
    metadata = item["metadata"]
    return metadata.get("namespace") or "", metadata["name"]
