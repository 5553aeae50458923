"""`pointsman check FILE…`: validates EndpointPickerConfigs and endpoints files, and shows what they would run.

Files are read as the watcher reads them (`services.watcher.files`), with the plugin types of all installed tiers. Each
argument stands for itself: a file, a directory as in the watcher's `--endpoints-file`, or `-` for standard input. All
errors are reported at once, each with its path in the document.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import time
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from pointsman.command import STDIN, Format, parse_options, print_json
from pointsman.description import Description, describe
from pointsman.output import print_lines
from services.picker.pipeline import build
from services.watcher.files import FileReader, Limits, ParsedFile, Unusable, list_files, read_bytes, reason, within
from services.watcher.resources import Resource
from services.watcher.sources import Event
from services.watcher.state import State
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid, Problem
from shared.config.schema import BOUNDS, Bounds
from shared.model import Endpoint, Model, ModelRewrite, Objective, Pool, Target, join_host_port
from shared.plugin import Registry, Tier
from shared.quantities import Size

SHOWN = 20
"""Endpoints of a file that the text lists at most."""


class CheckOptions(Struct, frozen=True, kw_only=True):
    """Validates EndpointPickerConfigs, endpoints files and resources, and shows what they would run.

    Exits with 1 if anything is wrong, after reporting all of it."""

    files: Annotated[
        tuple[str, ...],
        Meta(
            description="YAML or JSON files, directories of them, or - for standard input", extra={"argument": "FILE…"}
        ),
    ]
    allow_experimental_plugins: Annotated[bool, Meta(description="accept plugin types of alpha stability")] = False
    max_file_size: Annotated[Size, Meta(description="limit of a file's size, as the watcher's")] = Limits().file_size
    max_file_values: Annotated[int, Meta(ge=1, description="limit of a file's values, as the watcher's")] = (
        Limits().values
    )
    max_files: Annotated[int, Meta(ge=1, description="limit of a directory's files, as the watcher's")] = Limits().files
    max_config_entries: Annotated[
        int, Meta(ge=1, description="limit of the entries of a configuration's list, as the watcher's")
    ] = BOUNDS.entries
    max_config_values: Annotated[int, Meta(ge=1, description="limit of a configuration's values, as the watcher's")] = (
        BOUNDS.values
    )
    format: Format = "text"


class FileReport(Struct, kw_only=True, rename="camel"):
    """The result for one file."""

    origin: str
    ok: bool = False
    errors: list[Problem] = []
    warnings: list[Problem] = []
    configuration: Description | None = None
    endpoints: tuple[Endpoint, ...] | None = None
    """None if the file has no `endpoints`."""
    resources: tuple[Resource, ...] = ()
    ignored: tuple[str, ...] = ()
    """Documents that have no effect, with the reason."""


class Checker:
    """Checks files as a watcher with these limits and plugin types reads them."""

    def __init__(
        self,
        registry: Registry,
        *,
        allow_experimental: bool = False,
        limits: Limits | None = None,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self._reader = FileReader(
            None, lambda: registry, allow_experimental=allow_experimental, bounds=bounds, limits=limits
        )

    def file(self, path: str) -> FileReport:
        """One file, or standard input."""
        return self._file(path)[0]

    def directory(self, path: str) -> list[FileReport]:
        """The files of a directory, which together are one set of endpoints and resources."""
        try:
            files = list_files(Path(path), self._reader.limits.files)
        except (OSError, Unusable) as error:
            return [FileReport(origin=path, errors=[Problem("", reason(error))])]
        found = [self._file(str(file)) for file in files]
        state = State()
        for _ in state.apply([event for _, event in found], now=0.0):
            pass
        problems = state.problems()
        reports = [report for report, _ in found]
        for report in reports:
            report.errors = list(dict.fromkeys([*problems.get(report.origin, []), *report.errors]))
            report.ok = not report.errors
        return reports

    def _file(self, path: str) -> tuple[FileReport, Event]:
        """The report, and the event that a watcher would get."""
        origin = "standard input" if path == STDIN else path
        try:
            reading = self._reader.read(origin, self._bytes(path))
        except (OSError, Unusable) as error:
            reading = ParsedFile(errors=(Problem("", reason(error)),))
        documents, loaded = reading.documents, reading.loaded
        report = FileReport(
            origin=origin,
            ok=not reading.errors,
            errors=list(reading.errors),
            warnings=[*documents.warnings, *(loaded.warnings if loaded else ())],
            configuration=describe(loaded) if loaded else None,
            endpoints=documents.endpoints,
            resources=documents.resources,
            ignored=documents.ignored,
        )
        if loaded is not None:
            report.warnings += _not_creatable(loaded)
            report.errors += _refused(loaded)
            report.ok = not report.errors
        return report, reading.event(origin)

    def _bytes(self, path: str) -> bytes:
        limit = self._reader.limits.file_size
        return within(sys.stdin.buffer.read(limit + 1), limit) if path == STDIN else read_bytes(path, limit)


def _not_creatable(config: LoadedConfig) -> list[Problem]:
    """Plugins that can't be created on this machine; where they run, they may find what they need, such as a file."""
    found: list[Problem] = []
    for tier in Tier:
        try:
            config.instances(tier)
        except Invalid as error:
            found += [
                Problem(problem.path, f"can't be made on this machine: {problem.message}") for problem in error.problems
            ]
    return found


def _refused(config: LoadedConfig) -> list[Problem]:
    """Why a picker refuses a sound document: a plugin doesn't have the class that it needs."""
    try:
        config.instances(Tier.PICKER)
    except Invalid:
        return []
    try:
        build(config, np.random.default_rng(), time)
    except Invalid as error:
        return list(error.problems)
    return []


def text(report: FileReport) -> list[str]:
    """The content of a file, without errors and warnings."""
    if report.errors:
        return [f"{report.origin}: {_plural(len(report.errors), 'error')}"]
    lines = []
    if report.configuration is not None:
        lines += report.configuration.lines()
    if report.endpoints is not None:
        lines += [_plural(len(report.endpoints), "endpoint"), *map(_endpoint, report.endpoints[:SHOWN])]
        if len(report.endpoints) > SHOWN:
            lines.append(f"  … and {len(report.endpoints) - SHOWN} more")
    lines += map(_resource, report.resources)
    lines += [f"left out: {document}" for document in report.ignored]
    return [f"{report.origin}: ok", *(f"  {line}" for line in lines)]


def _plural(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _endpoint(endpoint: Endpoint) -> str:
    where = endpoint.authority if endpoint.address else f"{join_host_port(endpoint.host, endpoint.port)} (a host name)"
    parts = [f"  {endpoint.id}", where]
    if endpoint.draining:
        parts.append("drains")
    if endpoint.metrics_host:
        parts.append(f"metrics at {endpoint.metrics_host}")
    parts += [f"{name}={value}" for name, value in sorted(endpoint.labels.items())]
    return "  ".join(parts)


def _resource(resource: Resource) -> str:
    match resource:
        case Pool():
            selector = ", ".join(f"{name}={value}" for name, value in sorted(resource.selector.items()))
            ports = ", ".join(map(str, resource.target_ports))
            return f"pool {resource.namespace}/{resource.name}: ports {ports}; selector {selector or 'of nothing'}"
        case Objective():
            return f"objective {resource.name}: priority {resource.priority}"
        case ModelRewrite():
            rules = "; ".join(
                f"{', '.join(rule.models) or 'every model'} → {_targets(rule.targets)}" for rule in resource.rules
            )
            return f"rewrite {resource.name}: {rules}"
        case Model():
            served = _targets(resource.targets) or resource.model_name
            return f"model {resource.name}: {resource.model_name} ({resource.criticality.value}) → {served}"


def _targets(targets: Sequence[Target]) -> str:
    return " or ".join(
        target.model if target.weight is None else f"{target.model}·{target.weight}" for target in targets
    )


def main(argv: Sequence[str]) -> int:
    """`pointsman check`: 0 if all files are valid, 1 if not, 2 for wrong options."""
    options = parse_options(CheckOptions, argv, "check")
    checker = Checker(
        Registry.installed(),
        allow_experimental=options.allow_experimental_plugins,
        limits=Limits(options.max_file_size, options.max_file_values, options.max_files),
        bounds=Bounds(options.max_config_entries, options.max_config_values),
    )
    reports: list[FileReport] = []
    for path in options.files:
        reports += checker.directory(path) if os.path.isdir(path) else [checker.file(path)]
    ok = all(report.ok for report in reports)
    if options.format == "json":
        print_json({"ok": ok, "files": reports})
        return 0 if ok else 1
    for report in reports:
        print_lines(text(report))
        for problem in report.errors:
            print_lines([f"{report.origin}: {problem}"], error=True)
        for problem in report.warnings:
            print_lines([f"{report.origin}: warning: {problem}"], error=True)
    return 0 if ok else 1
