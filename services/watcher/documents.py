"""A file's text as the facts that it states: endpoints, resources, and the configuration.

A file is a YAML stream (JSON is YAML) of documents: a mapping with `endpoints`, a resource by its `kind`, an
EndpointPickerConfig, or a list of such objects as `kubectl get -o yaml` prints it. Other Kubernetes objects are
ignored, unless the configuration has a notification source for their kind.
"""

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from services.watcher.endpoints_file import read_endpoints
from services.watcher.positions import LineFinder, document_text
from services.watcher.resources import GROUPS, KINDS, PoolId, Resource, read_names, read_resource
from shared.bus.publishable import fault
from shared.config.decode import kind_of
from shared.config.problems import MAX_PROBLEMS, More, Problem, Problems, first_problems, join, nearest, show
from shared.config.schema import KIND as CONFIGURATION_KIND
from shared.config.yaml import parse_documents
from shared.datalayer.objects import KubernetesObject, ObjectKind
from shared.model import Configuration, Endpoint, Fact

_CONFIGURATION_KEYS = {
    *("plugins", "schedulingProfiles", "dataLayer", "data", "featureGates", "flowControl", "saturationDetector"),
    *("requestHandler", "parser"),
}
"""A document with one of these and without a kind is taken for a configuration."""

MAX_VALUES = 250_000
"""Values of a file, keys included: some 20 000 endpoints."""


class Documents(Struct, frozen=True, kw_only=True):
    """What one origin states, unchecked against other origins."""

    endpoints: tuple[Endpoint, ...] | None = None
    """None if no document has `endpoints`, unlike an empty list."""
    resources: tuple[Resource, ...] = ()
    configuration: Configuration | None = None
    configuration_line: int = 1
    """The line of the file on which it begins."""
    objects: tuple[KubernetesObject, ...] = ()
    """Kubernetes objects of the requested kinds."""
    ignored: tuple[str, ...] = ()
    """Valid documents that aren't for the pool, or not for an endpoint picker, each with the reason."""
    warnings: tuple[Problem, ...] = ()

    def facts(self) -> tuple[Fact, ...]:
        """Everything that is published."""
        configuration = () if self.configuration is None else (self.configuration,)
        return (*(self.endpoints or ()), *self.resources, *configuration)


def read_documents(
    text: str,
    origin: str,
    problems: Problems,
    *,
    pool: PoolId | None = None,
    object_kinds: Collection[ObjectKind] = (),
    max_values: int = MAX_VALUES,
) -> Documents:
    """Read a whole file. Errors are added to `problems` with path and line; the result is incomplete then. After
    `MAX_PROBLEMS` errors, the rest isn't read.

    With `pool`, resources of other pools are ignored. A file with more than `max_values` values, keys included, is an
    error. The configuration is found, not validated: that takes the plugins
    (`shared.config.loader`).
    """
    reader = _Reader(text, origin, pool, object_kinds)
    parsing = Problems()
    documents = parse_documents(text, parsing, max_values)
    several, empty = len(documents) > 1, not documents
    for index in range(len(documents)):
        document, documents[index] = documents[index], None
        reader.document(document, index, several=several)
        # This runs in a thread. Freeing a large list in one go would hold the other threads.
        entries = list(document["endpoints"]) if _lists_endpoints(document) else []
        del document
        while entries:
            entries.pop()
        if len(reader.errors) >= MAX_PROBLEMS:
            break
    problems.errors += by_line(reader.errors + parsing.errors)
    problems.warnings += reader.warnings
    if empty and not parsing.errors:
        # A file that is written in place is empty for a moment: that must not mean that there are no endpoints.
        problems.error("", "is empty; `endpoints: []` says that there are none")
    return reader.result()


def _lists_endpoints(document: object) -> bool:
    return isinstance(document, Mapping) and isinstance(document.get("endpoints"), list)


def by_line(problems: Iterable[Problem]) -> list[Problem]:
    """Sorted by line; those without a line last, and the number of others."""
    return sorted(
        problems, key=lambda problem: sys.maxsize if isinstance(problem, More) else problem.line or sys.maxsize
    )


def read_object(raw: Mapping[str, Any], kind: ObjectKind, path: str, problems: Problems) -> KubernetesObject | None:
    """A Kubernetes object; None if it has problems, which are added under `path`.

    Only what all objects have in common is checked: a name, a namespace if any, labels and annotations.
    """
    before = len(problems.errors)
    at = join(path, "metadata")
    metadata = raw.get("metadata")
    names = read_names(metadata, at, problems)
    if names is None or not isinstance(metadata, Mapping):
        return None
    for field in ("labels", "annotations"):
        _check_texts(metadata.get(field), join(at, field), problems)
    return (
        None if len(problems.errors) > before else KubernetesObject(kind, names["name"], dict(raw), names["namespace"])
    )


def _check_texts(raw: object, path: str, problems: Problems) -> None:
    if not isinstance(raw, Mapping):
        if raw is not None:
            problems.error(path, f"{show(raw)} isn't a mapping")
        return
    for key, value in raw.items():
        if not isinstance(key, str):
            problems.error(join(path, str(key)), f"the name {show(key)} isn't a string; put it in quotes")
        elif not isinstance(value, str):
            problems.error(join(path, key), f"{show(value)} isn't a string; put it in quotes")


class _Reader:
    """Collects what the documents of one file state."""

    def __init__(self, text: str, origin: str, pool: PoolId | None, object_kinds: Collection[ObjectKind]) -> None:
        self._text = text
        self._lines = LineFinder(text)
        self._origin = origin
        self._pool = pool
        self._object_kinds = object_kinds
        self._objects: dict[tuple[ObjectKind, str, str], KubernetesObject] = {}
        self._endpoints: dict[str, Endpoint] | None = None
        self._resources: dict[tuple[type, str, str], Resource] = {}
        self._configuration: Configuration | None = None
        self._configuration_line = 1
        self._ignored: list[str] = []
        self.errors: list[Problem] = []
        self.warnings: list[Problem] = []

    def result(self) -> Documents:
        return Documents(
            endpoints=None if self._endpoints is None else tuple(self._endpoints.values()),
            resources=tuple(self._resources.values()),
            configuration=self._configuration,
            configuration_line=self._configuration_line,
            objects=tuple(self._objects.values()),
            ignored=tuple(self._ignored),
            warnings=tuple(self.warnings),
        )

    def document(self, raw: object, index: int, *, several: bool) -> None:
        """Read one document. In a file of several, the paths of its problems begin with its number."""
        problems = Problems()
        if not isinstance(raw, Mapping):
            found = "null" if raw is None else kind_of(raw)  # not its text: the file may be one of passwords
            problems.error("", f"{found} is no document; a mapping with `endpoints`, or with `kind`, is expected")
        elif raw.get("kind") == CONFIGURATION_KIND or ("kind" not in raw and _CONFIGURATION_KEYS & raw.keys()):
            self._read_configuration(index, problems)
        else:
            self._read_object(raw, "", problems)
        prefix = join("documents", index) if several else ""
        errors, warnings = first_problems(problems.errors), first_problems(problems.warnings)
        self.errors += [_prefixed(prefix, problem) for problem in self._lines.located(index, errors)]
        self.warnings += [_prefixed(prefix, problem) for problem in self._lines.located(index, warnings)]

    def _read_object(self, raw: Mapping[str, Any], path: str, problems: Problems) -> None:
        kind = raw.get("kind")
        if kind is not None and not isinstance(kind, str):
            problems.error(join(path, "kind"), f"{show(kind)} isn't a kind; a string is expected")
        elif kind is None and "endpoints" in raw:
            self._read_endpoints(raw, path, problems)
        elif kind is None:
            hint = next((hint for key in raw if (hint := nearest(str(key), ("endpoints", "kind")))), "")
            problems.error(path, f"neither `endpoints` nor `kind` is in it{hint}")
        else:
            self._read_kind(raw, kind, path, problems)

    def _read_kind(self, raw: Mapping[str, Any], kind: str, path: str, problems: Problems) -> None:
        api_version = str(raw.get("apiVersion", ""))
        item_kind = kind.removesuffix("List")
        object_kind, listed = ObjectKind.of(api_version, kind), ObjectKind.of(api_version, item_kind)
        if object_kind in self._object_kinds:
            if kind in KINDS and object_kind.group in GROUPS:
                self._read_resource(raw, kind, path, problems)
            self._read_requested(raw, object_kind, path, problems)
        elif kind in KINDS:
            self._read_resource(raw, kind, path, problems)
        elif kind == "List" or item_kind in KINDS:
            self._read_items(raw, path, problems, {})
        elif listed in self._object_kinds:
            self._read_items(raw, path, problems, {"apiVersion": listed.api_version, "kind": listed.kind})
        elif kind == CONFIGURATION_KIND:
            problems.error(path, f"{CONFIGURATION_KIND} in a list; a document of its own is expected")
        elif str(raw.get("apiVersion", GROUPS[0])).partition("/")[0] in GROUPS:
            known = (*KINDS, CONFIGURATION_KIND)
            hint = nearest(kind, known) or f"; known: {', '.join(known)}"
            problems.error(join(path, "kind"), f"{show(kind)} isn't known{hint}")
        else:
            metadata = raw.get("metadata")
            name = metadata.get("name", "") if isinstance(metadata, Mapping) else ""
            self._ignored.append(f"{kind} {name}: not a kind that an endpoint picker reads")

    def _read_endpoints(self, raw: Mapping[str, Any], path: str, problems: Problems) -> None:
        for key in raw:
            if key not in ("endpoints", "apiVersion"):
                hint = nearest(str(key), ("endpoints",))
                problems.error(join(path, str(key)), f"unknown field{hint or '; known: endpoints'}")
        at = join(path, "endpoints")
        found = {endpoint.id: endpoint for endpoint in read_endpoints(raw["endpoints"], at, problems)}
        if self._endpoints is None:
            self._endpoints = {}
        for id in found:
            if id in self._endpoints:
                problems.error(at, f"{id!r} is in another document of this file too")
        self._endpoints.update(found)  # a copy for each document would take time by their square

    def _read_resource(self, raw: Mapping[str, Any], kind: str, path: str, problems: Problems) -> None:
        read = read_resource(raw, kind, path, problems, self._pool)
        if read.ignored:
            self._ignored.append(read.ignored)
        if (resource := read.resource) is None:
            return
        key = type(resource), getattr(resource, "namespace", ""), resource.name
        if key in self._resources:
            problems.error(join(join(path, "metadata"), "name"), f"{kind} {resource.name!r} is given twice")
        self._resources[key] = resource

    def _read_requested(self, raw: Mapping[str, Any], kind: ObjectKind, path: str, problems: Problems) -> None:
        found = Problems()
        read = read_object(raw, kind, path, found)
        problems.add_new_errors(found.errors)
        if read is None:
            return
        if read.key in self._objects:
            problems.error(join(join(path, "metadata"), "name"), f"{read} is given twice")
        self._objects[read.key] = read

    def _read_items(self, raw: Mapping[str, Any], path: str, problems: Problems, implied: Mapping[str, str]) -> None:
        """The items of a list. Those of a typed list may leave out the type that its kind implies."""
        at = join(path, "items")
        items = raw.get("items")
        if not isinstance(items, list):
            problems.error(at, "required, and missing" if items is None else f"{show(items)} isn't a list")
            return
        for index, item in enumerate(items):
            if len(problems.errors) >= MAX_PROBLEMS:
                break
            if isinstance(item, Mapping):
                self._read_object({**implied, **item}, join(at, index), problems)
            else:
                problems.error(join(at, index), f"{show(item)} isn't an object")

    def _read_configuration(self, index: int, problems: Problems) -> None:
        if self._configuration is not None:
            problems.error("kind", f"a second {CONFIGURATION_KIND}; a pool has one configuration")
            return
        self._configuration_line, text = document_text(self._text, index)
        self._configuration = Configuration(text=text, origin=self._origin)
        if reason := fault(self._configuration):
            problems.error("", reason)


def _prefixed(prefix: str, problem: Problem) -> Problem:
    if not prefix:
        return problem
    gap = "." if problem.path and not problem.path.startswith("[") else ""
    return replace(problem, path=f"{prefix}{gap}{problem.path}")
