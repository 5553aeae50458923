"""Resolves parameters that name an attribute to the one that a configured plugin makes.

An attribute goes by its name, `name/producer`, or the name of the plugin that makes it, which distinguishes two
extractors of one metric. An extractor makes nothing unless a source feeds it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from shared.attributes import AttributeKey
from shared.config.loaded import PluginSpec, SourceSpec
from shared.config.problems import Problems, join, show
from shared.plugin import Input, Role

_WORDS: dict[type[Any], str] = {float: "a number", tuple: "names"}
"""What attributes hold, as messages call it."""


class _Made:
    """An attribute and who makes it."""

    def __init__(self, maker: PluginSpec, key: AttributeKey[Any], alone: bool) -> None:
        self.maker = maker
        self.key = key
        self._alone = alone

    def by(self, producer: str) -> bool:
        return not producer or producer in (self.maker.name, self.maker.kind.TYPE)

    @property
    def names(self) -> tuple[str, ...]:
        """What it may be called."""
        return (self.key.name, self.maker.name) if self._alone else (self.key.name,)


def _names(key: AttributeKey[Any], maker: PluginSpec) -> dict[str, None]:
    """The attribute's names: alone, or with a `/` and the name or the type of its maker."""
    return dict.fromkeys((key.name, f"{key.name}/{maker.name}", f"{key.name}/{maker.kind.TYPE}"))


def fed_extractors(sources: Iterable[SourceSpec]) -> set[str]:
    """The extractors that some source feeds."""
    return {name for source in sources for name in source.extractors}


def active_producers(plugins: Mapping[str, PluginSpec], sources: Iterable[SourceSpec]) -> list[PluginSpec]:
    """The plugins that make what they declare: an extractor does only where a source feeds it."""
    there = fed_extractors(sources)
    return [spec for spec in plugins.values() if Role.EXTRACTOR not in spec.kind.ROLES or spec.name in there]


def check_writers(plugins: Mapping[str, PluginSpec], sources: Iterable[SourceSpec], problems: Problems) -> None:
    """Note attributes that two extractors, or one extractor on two pages, would make: the last value would win."""
    writers: dict[str, tuple[SourceSpec, str]] = {}
    for source in sources:
        polled = plugins[source.source].kind.polled()
        for name in source.extractors:
            twice: dict[tuple[str, str], list[str]] = {}
            for key in plugins[name].produces:
                other, former = writers.setdefault(key.wire, (source, name))
                if former != name or (other is not source and polled):
                    twice.setdefault((other.source, former), []).append(key.name)
            for (other_source, former), keys in twice.items():
                many = f"{keys[0]} and {len(keys) - 1} more" if len(keys) > 1 else keys[0]
                problems.error(
                    plugins[name].path or name,
                    f"{show(name)} under {show(source.source)} and {show(former)} under {show(other_source)} make the "
                    f"same attribute, {many}; let one of them read it from one source",
                )


def resolve(
    plugins: Mapping[str, PluginSpec], sources: Iterable[SourceSpec], problems: Problems
) -> dict[str, dict[str, AttributeKey[Any]]]:
    """For each plugin, the attributes that its parameters name. What can't be resolved is a problem, and left out."""
    active = active_producers(plugins, sources)
    everything: list[_Made] = []
    alone: dict[str, list[_Made]] = {}
    """By plugin, what is all that it makes."""
    named: dict[str, list[_Made]] = {}
    for spec in active:
        keys = spec.produces
        for key in keys:
            everything.append(made := _Made(spec, key, alone=len(keys) == 1))
            for name in _names(key, spec):
                named.setdefault(name, []).append(made)
            if len(keys) == 1:
                alone[spec.name] = [made]
    working = {spec.name for spec in active}
    idle = [spec for spec in plugins.values() if spec.name not in working]
    resolved: dict[str, dict[str, AttributeKey[Any]]] = {}
    for spec in plugins.values():
        for wanted in spec.consumes:
            if wanted.key is not None:
                continue
            path = join(join(spec.path or spec.name, "parameters"), wanted.parameter)
            found = {
                attribute.key: attribute.maker
                for attribute in alone.get(wanted.name, ())
                if attribute.by(wanted.producer)
            }
            found = found or {
                attribute.key: attribute.maker
                for attribute in named.get(wanted.name, ())
                if attribute.by(wanted.producer)
            }
            if len(found) == 1:
                key = next(iter(found))
                if key.kind is wanted.kind:
                    resolved.setdefault(spec.name, {})[wanted.parameter] = key
                else:
                    holds, expected = (_WORDS.get(kind, "something else") for kind in (key.kind, wanted.kind))
                    problems.error(path, f"{show(wanted.name)} holds {holds}; {expected} is expected")
            elif found:
                who = " and ".join(show(maker.name) for maker in found.values())
                problems.error(
                    path, f"{show(wanted.name)} is produced by {who}; write the name of one of these plugins"
                )
            else:
                problems.error(path, _missing(wanted, idle, everything, problems))
    return resolved


def _missing(wanted: Input, idle: Iterable[PluginSpec], made: Iterable[_Made], problems: Problems) -> str:
    by = f" by {show(wanted.producer)}" if wanted.producer else ""
    what = f"nothing makes {show(wanted.name)}{by}"
    for spec in idle:
        if wanted.name == spec.name or any(wanted.name in _names(key, spec) for key in spec.produces):
            return f"{what}: no source feeds {show(spec.name)}; list it under a source in dataLayer.sources"
    hint = problems.hint(wanted.name, [name for attribute in made for name in attribute.names])
    return f"{what}{hint}{f'; {wanted.advice}' if wanted.advice else ''}"
