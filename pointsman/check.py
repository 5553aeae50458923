"""`pointsman check FILE…`: validates EndpointPickerConfigs and endpoints files, and says what they would run.

Reads as the watcher does (`services.watcher`), with the plugin types of every tier that is installed. Each argument is
a set of its own: a file, a directory whose files have to fit together, or `-` for standard input. Every error is told
at once, with its path in the document; then the exit code is 1.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from pointsman.description import Description, describe
from services.watcher.configuration import validate
from services.watcher.documents import Documents, by_line, read_documents
from services.watcher.files import SUFFIXES
from services.watcher.resources import Resource
from services.watcher.sources import Reset
from services.watcher.state import merge
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid, Problem, Problems
from shared.model import Endpoint, Model, ModelRewrite, Objective, Pool, Target, join_host_port
from shared.plugin import Registry, Tier

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
    """Checks files with one set of plugin types."""

    def __init__(self, registry: Registry, *, allow_experimental: bool = False) -> None:
        self._registry = registry
        self._allow_experimental = allow_experimental

    def file(self, path: str) -> Checked:
        """One file, or standard input."""
        return self._file(path)[0]

    def directory(self, path: str) -> list[Checked]:
        """A directory's files, which state one set together."""
        try:
            files = sorted(one for one in Path(path).iterdir() if one.suffix in SUFFIXES and one.name[0] != ".")
        except OSError as error:
            return [Checked(origin=path, errors=[_unreadable(error)])]
        if not files:
            return [Checked(origin=path, errors=[Problem("", f"no {', '.join(SUFFIXES)} file in it")])]
        checked: dict[str, Checked] = {}
        good: dict[str, Reset] = {}
        for file in files:
            origin = str(file)
            checked[origin], documents = self._file(origin)
            if documents is not None:
                good[origin] = Reset(origin, documents)
        for origin, problem in merge(good)[1]:
            checked[origin].errors.append(problem)
            checked[origin].ok = False
        return list(checked.values())

    def _file(self, path: str) -> tuple[Checked, Documents | None]:
        """What is to be said, and the documents where they are sound."""
        origin = "standard input" if path == STDIN else path
        try:
            data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
            text = data.decode("utf-8")
        except OSError as error:
            return Checked(origin=origin, errors=[_unreadable(error)]), None
        except UnicodeDecodeError as error:
            return Checked(origin=origin, errors=[Problem("", f"byte {error.start} isn't UTF-8: {error.reason}")]), None
        problems = Problems()
        documents = read_documents(text, origin, problems)
        loaded = self._configuration(documents, problems)
        checked = Checked(
            origin=origin,
            ok=not problems.errors,
            errors=by_line(dict.fromkeys(problems.errors)),
            warnings=[*documents.warnings, *(loaded.warnings if loaded else ())],
            configuration=describe(loaded) if loaded else None,
            endpoints=documents.endpoints,
            resources=documents.resources,
            ignored=documents.ignored,
        )
        if loaded is not None:
            checked.warnings += _unmade(loaded)
        return checked, documents if checked.ok else None

    def _configuration(self, documents: Documents, problems: Problems) -> LoadedConfig | None:
        try:
            return validate(documents, lambda: self._registry, allow_experimental=self._allow_experimental)
        except Invalid as error:
            problems.errors += error.problems
            return None


def _unmade(config: LoadedConfig) -> list[Problem]:
    """Plugins that can't be made here: what they miss (a certificate, say) may be there where they run."""
    found: list[Problem] = []
    for tier in Tier:
        try:
            config.instances(tier)
        except Invalid as error:
            found += [Problem(one.path, f"can't be made on this machine: {one.message}") for one in error.problems]
    return found


def _unreadable(error: OSError) -> Problem:
    return Problem("", f"can't be read: {error.strerror or error}")


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
    checker = Checker(Registry.installed(), allow_experimental=arguments.allow_experimental_plugins)
    checked: list[Checked] = []
    for path in arguments.files:
        checked += checker.directory(path) if Path(path).is_dir() else [checker.file(path)]
    ok = all(one.ok for one in checked)
    if arguments.format == "json":
        print(msgspec.json.format(msgspec.json.encode({"ok": ok, "files": checked}), indent=2).decode())
        return 0 if ok else 1
    for one in checked:
        print("\n".join(text(one)), flush=True)
        for problem in one.errors:
            print(f"{one.origin}: {problem}", file=sys.stderr)
        for problem in one.warnings:
            print(f"{one.origin}: warning: {problem}", file=sys.stderr)
    return 0 if ok else 1


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
    parser.add_argument("--format", choices=("text", "json"), default="text", help="for humans or for machines")
    return parser
