"""`pointsman check FILE…`: validates EndpointPickerConfigs and endpoints files, and says what they would run.

Reads as the watcher does (`services.watcher.files`), with the plugin types of every tier that is installed. Each
argument is a set of its own: a file, a directory whose files together are what `--endpoints-file` may name, or `-` for
standard input. Every error is told at once, with its path in the document; then the exit code is 1.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from pointsman.description import Description, describe
from pointsman.output import JSON, add_format, print_json
from services.watcher.files import FileReader, Limits, Reading, Unusable, list_files, read_bytes, reason, within
from services.watcher.resources import Resource
from services.watcher.sources import Event
from services.watcher.state import State
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid, Problem
from shared.config.schema import BOUNDS, Bounds
from shared.model import Endpoint, Model, ModelRewrite, Objective, Pool, Target, join_host_port
from shared.plugin import Registry, Tier
from shared.quantities import parse_size

STDIN = "-"
SHOWN = 20
"""Endpoints of a file that are shown as text."""


class Checked(Struct, kw_only=True, rename="camel"):
    """A file, and what is to be said of it."""

    origin: str
    ok: bool = False
    errors: list[Problem] = []
    warnings: list[Problem] = []
    configuration: Description | None = None
    endpoints: tuple[Endpoint, ...] | None = None
    """None where the file has no `endpoints`."""
    resources: tuple[Resource, ...] = ()
    ignored: tuple[str, ...] = ()
    """Documents that nothing is made of, and why."""


class Checker:
    """Checks files with one set of plugin types, as a watcher with these limits reads them."""

    def __init__(
        self,
        registry: Registry,
        *,
        allow_experimental: bool = False,
        limits: Limits | None = None,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self._reader = FileReader(None, lambda: registry, allow_experimental=allow_experimental, bounds=bounds)
        self._limits = limits or Limits()

    def file(self, path: str) -> Checked:
        """One file, or standard input."""
        return self._file(path)[0]

    def directory(self, path: str) -> list[Checked]:
        """A directory's files, which state one set together."""
        try:
            files = list_files(Path(path), self._limits.files)
        except (OSError, Unusable) as error:
            return [Checked(origin=path, errors=[Problem("", reason(error))])]
        found = [self._file(str(one)) for one in files]
        state = State()
        state.apply([event for _, event in found], now=0.0)
        problems = state.problems()
        for checked, _ in found:
            checked.errors = problems.get(checked.origin, [])
            checked.ok = not checked.errors
        return [checked for checked, _ in found]

    def _file(self, path: str) -> tuple[Checked, Event]:
        """What is to be said, and what a watcher would make of it."""
        origin = "standard input" if path == STDIN else path
        try:
            reading = self._reader.read(origin, self._bytes(path))
        except (OSError, Unusable) as error:
            reading = Reading(errors=(Problem("", reason(error)),))
        documents, loaded = reading.documents, reading.loaded
        checked = Checked(
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
            checked.warnings += _unmade(loaded)
        return checked, reading.event(origin)

    def _bytes(self, path: str) -> bytes:
        limit = self._limits.file_size
        return within(sys.stdin.buffer.read(limit + 1), limit) if path == STDIN else read_bytes(path, limit)


def _unmade(config: LoadedConfig) -> list[Problem]:
    """Plugins that can't be made here: what they miss (a certificate, say) may be there where they run."""
    found: list[Problem] = []
    for tier in Tier:
        try:
            config.instances(tier)
        except Invalid as error:
            found += [Problem(one.path, f"can't be made on this machine: {one.message}") for one in error.problems]
    return found


def text(checked: Checked) -> list[str]:
    """What a file states, for humans; errors and warnings aside."""
    if checked.errors:
        count = len(checked.errors)
        return [f"{checked.origin}: {count} error{'' if count == 1 else 's'}"]
    lines = [f"{checked.origin}: ok"]
    if checked.configuration is not None:
        lines += checked.configuration.lines()
    if checked.endpoints is not None:
        lines += [_count(len(checked.endpoints), "endpoint"), *map(_endpoint, checked.endpoints[:SHOWN])]
        if len(checked.endpoints) > SHOWN:
            lines.append(f"  … and {len(checked.endpoints) - SHOWN} more")
    lines += map(_resource, checked.resources)
    lines += [f"left out: {one}" for one in checked.ignored]
    return [lines[0], *(f"  {line}" for line in lines[1:])]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _endpoint(endpoint: Endpoint) -> str:
    where = endpoint.authority if endpoint.address else f"{join_host_port(endpoint.host, endpoint.port)} (a host name)"
    parts = [f"  {endpoint.id}", where]
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
                f"{', '.join(one.models) or 'every model'} → {_targets(one.targets)}" for one in resource.rules
            )
            return f"rewrite {resource.name}: {rules}"
        case Model():
            served = _targets(resource.targets) or resource.model_name
            return f"model {resource.name}: {resource.model_name} ({resource.criticality.value}) → {served}"


def _targets(targets: Sequence[Target]) -> str:
    return " or ".join(one.model if one.weight is None else f"{one.model}·{one.weight}" for one in targets)


def main(argv: Sequence[str]) -> int:
    """`pointsman check`: 0 when all is well, 1 when a file isn't, 2 for a mistake in the arguments."""
    arguments = _parser().parse_args(list(argv))
    checker = Checker(
        Registry.installed(),
        allow_experimental=arguments.allow_experimental_plugins,
        limits=Limits(file_size=arguments.max_file_size, files=arguments.max_files),
        bounds=Bounds(arguments.max_config_entries, arguments.max_config_values),
    )
    checked: list[Checked] = []
    for path in arguments.files:
        checked += checker.directory(path) if Path(path).is_dir() else [checker.file(path)]
    ok = all(one.ok for one in checked)
    if arguments.format == JSON:
        print_json({"ok": ok, "files": checked})
        return 0 if ok else 1
    for one in checked:
        print("\n".join(text(one)), flush=True)
        for problem in one.errors:
            print(f"{one.origin}: {problem}", file=sys.stderr)
        for problem in one.warnings:
            print(f"{one.origin}: warning: {problem}", file=sys.stderr)
    return 0 if ok else 1


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pointsman check",
        description="Validate EndpointPickerConfigs, endpoints files and resources; say what they would run.",
        epilog="Exits with 1 when anything is wrong, after naming all of it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="a YAML or JSON file, a directory of them, - for stdin"
    )
    parser.add_argument(
        "--allow-experimental-plugins", action="store_true", help="accept plugin types of alpha stability"
    )
    parser.add_argument(
        "--max-file-size", type=_size, default=Limits().file_size, metavar="SIZE", help="as the watcher's (16Mi)"
    )
    for flag, default in (
        ("--max-files", Limits().files),
        ("--max-config-entries", BOUNDS.entries),
        ("--max-config-values", BOUNDS.values),
    ):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"as the watcher's ({default})")
    add_format(parser)
    return parser
