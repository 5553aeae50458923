"""A file's text as the facts that it states: endpoints, resources, and the configuration.

A file is a YAML stream (JSON is YAML) of documents: a mapping with `endpoints`, a resource by its `kind`, an
EndpointPickerConfig, or a list of such objects as `kubectl get -o yaml` prints it. Objects of other API groups, which
live in the same directory where people keep their manifests, are left out, unless a notification source of the
configuration wants to hear of their kind.
"""

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct

from services.watcher.endpoints_file import read_endpoints
from services.watcher.objects import read_object
from services.watcher.positions import Places, document_text
from services.watcher.resources import GROUPS, KINDS, PoolId, Resource, read_resource
from shared.bus.publishable import fault
from shared.config.problems import Problem, Problems, join, nearest, show
from shared.config.schema import KIND as CONFIGURATION_KIND
from shared.config.yaml import parse_documents
from shared.datalayer.objects import KubernetesObject, ObjectKind
from shared.model import Configuration, Endpoint, Fact

_CONFIGURATION_KEYS = {
    *("plugins", "schedulingProfiles", "dataLayer", "data", "featureGates", "flowControl", "saturationDetector"),
    *("requestHandler", "parser"),
}
"""A document with one of these and without a kind is a configuration that lacks it."""


class Documents(Struct, frozen=True, kw_only=True):
    """What one origin states. Nothing in it is known to fit with what other origins state."""

    endpoints: tuple[Endpoint, ...] | None = None
    """None where no document has `endpoints`, which isn't the same as an empty list."""
    resources: tuple[Resource, ...] = ()
    configuration: Configuration | None = None
    configuration_line: int = 1
    """Where in the file it begins."""
    objects: tuple[KubernetesObject, ...] = ()
    """Kubernetes objects of the kinds that somebody wants to hear of."""
    ignored: tuple[str, ...] = ()
    """Sound documents that aren't for the pool that is served, or not for an endpoint picker at all."""
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
    wanted: Collection[ObjectKind] = (),
) -> Documents:
    """Read a whole file. What is wrong is noted with path and line, and then the result isn't complete.

    `pool` leaves out resources of other pools; objects of the `wanted` kinds aren't left out. The configuration is
    found here, not validated: that takes the plugins (`shared.config.loader`).
    """
    reader = _Reader(text, origin, pool, wanted)
    parsing = Problems()
    documents = parse_documents(text, parsing)
    for index, document in enumerate(documents):
        reader.document(document, index, several=len(documents) > 1)
    problems.errors += by_line(reader.errors + parsing.errors)
    problems.warnings += reader.warnings
    if not documents and not parsing.errors:
        # A file that is written in place is empty for a moment: that must not mean «no endpoints».
        problems.error("", "is empty; `endpoints: []` says that there are none")
    return reader.result()


def by_line(problems: Iterable[Problem]) -> list[Problem]:
    """In the order in which a reader of the file comes across them; those without a line last."""
    return sorted(problems, key=lambda one: one.line or sys.maxsize)


class _Reader:
    """Collects what the documents of one file state."""

    def __init__(self, text: str, origin: str, pool: PoolId | None, wanted: Collection[ObjectKind]) -> None:
        self._text = text
        self._places = Places(text)
        self._origin = origin
        self._pool = pool
        self._wanted = wanted
        self._objects: dict[tuple[ObjectKind, str, str], KubernetesObject] = {}
        self._endpoints: list[Endpoint] | None = None
        self._ids: dict[str, str] = {}
        self._resources: list[Resource] = []
        self._named: set[tuple[type, str, str]] = set()
        self._configuration: Configuration | None = None
        self._configuration_line = 1
        self._ignored: list[str] = []
        self.errors: list[Problem] = []
        self.warnings: list[Problem] = []

    def result(self) -> Documents:
        return Documents(
            endpoints=None if self._endpoints is None else tuple(self._endpoints),
            resources=tuple(self._resources),
            configuration=self._configuration,
            configuration_line=self._configuration_line,
            objects=tuple(self._objects.values()),
            ignored=tuple(self._ignored),
            warnings=tuple(self.warnings),
        )

    def document(self, raw: object, index: int, *, several: bool) -> None:
        """Read one document. In a file of several, its number leads the paths of its problems."""
        problems = Problems()
        if not isinstance(raw, Mapping):
            problems.error("", f"{show(raw)} is no document; a mapping with `endpoints`, or with `kind`, is expected")
        elif raw.get("kind") == CONFIGURATION_KIND or ("kind" not in raw and _CONFIGURATION_KEYS & raw.keys()):
            self._read_configuration(index, problems)
        else:
            self._object(raw, "", problems)
        lead = join("documents", index) if several else ""
        self.errors += [_led(lead, one) for one in self._places.located(index, problems.errors)]
        self.warnings += [_led(lead, one) for one in self._places.located(index, problems.warnings)]

    def _object(self, raw: Mapping[str, Any], path: str, problems: Problems) -> None:
        kind = raw.get("kind")
        if kind is not None and not isinstance(kind, str):
            problems.error(join(path, "kind"), f"{show(kind)} isn't a kind; a string is expected")
        elif kind is None and "endpoints" in raw:
            self._read_list(raw, path, problems)
        elif kind is None:
            hint = next((hint for key in raw if (hint := nearest(str(key), ("endpoints", "kind")))), "")
            problems.error(path, f"neither `endpoints` nor `kind` is in it{hint}")
        else:
            self._known_object(raw, kind, path, problems)

    def _known_object(self, raw: Mapping[str, Any], kind: str, path: str, problems: Problems) -> None:
        own = kind in KINDS
        api_version = str(raw.get("apiVersion", ""))
        which, listed = ObjectKind.of(api_version, kind), ObjectKind.of(api_version, kind.removesuffix("List"))
        if which in self._wanted:
            if own and which.group in GROUPS:
                self._read_resource(raw, kind, path, problems)
            self._read_wanted(raw, which, path, problems)
        elif own:
            self._read_resource(raw, kind, path, problems)
        elif kind == "List" or kind.removesuffix("List") in KINDS:
            self._read_items(raw, path, problems)
        elif listed in self._wanted:
            self._read_items(raw, path, problems, {"apiVersion": listed.api_version, "kind": listed.kind})
        elif kind == CONFIGURATION_KIND:
            problems.error(path, f"{CONFIGURATION_KIND} in a list; a document of its own is expected")
        elif str(raw.get("apiVersion", GROUPS[0])).partition("/")[0] in GROUPS:
            known = (*KINDS, CONFIGURATION_KIND)
            hint = nearest(kind, known) or f"; known: {', '.join(known)}"
            problems.error(join(path, "kind"), f"{show(kind)} isn't known{hint}")
        else:
            self._ignored.append(f"{kind} {_name(raw)}: not a kind that an endpoint picker reads")

    def _read_list(self, raw: Mapping[str, Any], path: str, problems: Problems) -> None:
        for key in raw:
            if key not in ("endpoints", "apiVersion"):
                hint = nearest(str(key), ("endpoints",))
                problems.error(join(path, str(key)), f"unknown field{hint or '; known: endpoints'}")
        endpoints = read_endpoints(raw["endpoints"], join(path, "endpoints"), problems)
        if self._endpoints is None:
            self._endpoints = []
        for endpoint in endpoints:
            if endpoint.id in self._ids:
                problems.error(join(path, "endpoints"), f"{endpoint.id!r} is in another document of this file too")
        self._ids.update(dict.fromkeys((one.id for one in endpoints), path))
        self._endpoints += endpoints

    def _read_resource(self, raw: Mapping[str, Any], kind: str, path: str, problems: Problems) -> None:
        read = read_resource(raw, kind, path, problems, self._pool)
        if read.ignored:
            self._ignored.append(read.ignored)
        if read.resource is None:
            return
        key = _key(read.resource)
        if key in self._named:
            problems.error(join(join(path, "metadata"), "name"), f"{kind} {read.resource.name!r} is given twice")
        self._named.add(key)
        self._resources.append(read.resource)

    def _read_wanted(self, raw: Mapping[str, Any], kind: ObjectKind, path: str, problems: Problems) -> None:
        found = Problems()
        one = read_object(raw, kind, path, found)
        problems.errors += [problem for problem in found.errors if problem not in problems.errors]
        if one is None:
            return
        if one.key in self._objects:
            problems.error(join(join(path, "metadata"), "name"), f"{one} is given twice")
        self._objects[one.key] = one

    def _read_items(
        self, raw: Mapping[str, Any], path: str, problems: Problems, implied: Mapping[str, str] | None = None
    ) -> None:
        """The items of a list; a typed list's items needn't repeat the type that its kind implies."""
        at = join(path, "items")
        items = raw.get("items")
        if not isinstance(items, list):
            problems.error(at, "required, and missing" if items is None else f"{show(items)} isn't a list")
            return
        for index, item in enumerate(items):
            if isinstance(item, Mapping):
                self._object({**(implied or {}), **item}, join(at, index), problems)
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


def _led(lead: str, problem: Problem) -> Problem:
    if not lead:
        return problem
    gap = "." if problem.path and not problem.path.startswith("[") else ""
    return Problem(f"{lead}{gap}{problem.path}", problem.message, problem.line)


def _name(raw: Mapping[str, Any]) -> str:
    metadata = raw.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def _key(resource: Resource) -> tuple[type, str, str]:
    return type(resource), getattr(resource, "namespace", ""), resource.name
