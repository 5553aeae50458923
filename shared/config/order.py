"""Which data producers run for a request, and in which order: what somebody reads, after what it is made from."""

from collections.abc import Iterable, Mapping
from typing import Any

from shared.attributes import AttributeKey
from shared.config.loaded import PluginSpec, ProfileSpec
from shared.config.problems import Problems, show
from shared.plugin import Role

_BY_REFERENCE = {Role.FILTER, Role.SCORER, Role.PICKER, Role.DATA_PRODUCER}
"""Roles that a plugin plays only where something names or reads it; any other plays when it is there."""


def in_order(plugins: Mapping[str, PluginSpec], profiles: Iterable[ProfileSpec], problems: Problems) -> tuple[str, ...]:
    """The names of the producers that run, each after those that it reads, otherwise in the order of `plugins`. Notes
    two producers of one attribute that is read, and cycles."""
    return _Order(plugins, problems).of(profiles)


class _Order:
    def __init__(self, plugins: Mapping[str, PluginSpec], problems: Problems) -> None:
        self._plugins = plugins
        self._problems = problems
        self._makers: dict[AttributeKey[Any], list[PluginSpec]] = {}
        for spec in plugins.values():
            if Role.DATA_PRODUCER in spec.kind.ROLES:
                for key in spec.produces:
                    self._makers.setdefault(key, []).append(spec)
        self._read: set[str] = set()
        self._ordered: dict[str, None] = {}

    def of(self, profiles: Iterable[ProfileSpec]) -> tuple[str, ...]:
        readers = [spec for spec in self._plugins.values() if not spec.kind.ROLES <= _BY_REFERENCE]
        readers += [member.plugin for profile in profiles for member in profile.members]
        pending = list({spec.name: spec for spec in readers}.values())
        while pending:
            pending += self._makers_for(pending.pop())
        for name in self._plugins:
            if name in self._read:
                self._place(self._plugins[name], ())
        return tuple(self._ordered)

    def _makers_for(self, reader: PluginSpec) -> list[PluginSpec]:
        """Makers of what a plugin reads that weren't known to be read."""
        found: list[PluginSpec] = []
        for maker in self._sources(reader):
            if maker.name not in self._read:
                self._read.add(maker.name)
                found.append(maker)
        return found

    def _sources(self, reader: PluginSpec) -> list[PluginSpec]:
        keys = dict.fromkeys(wanted.key for wanted in reader.consumes if wanted.key is not None)
        return [maker for key in keys for maker in self._one(key) if maker is not reader]

    def _one(self, key: AttributeKey[Any]) -> list[PluginSpec]:
        makers = self._makers.get(key, [])
        for other in makers[1:]:
            what = f"{show(other.name)} makes {key.name}, as {show(makers[0].name)} does; one plugin makes it"
            self._problems.error(other.path or other.name, what)
        del makers[1:]  # reported once
        return makers

    def _place(self, spec: PluginSpec, chain: tuple[str, ...]) -> None:
        if spec.name in chain:
            circle = " → ".join((*chain[chain.index(spec.name) :], spec.name))
            self._problems.error(spec.path or spec.name, f"data producers read each other: {circle}")
        elif spec.name not in self._ordered:
            for maker in self._sources(spec):
                self._place(maker, (*chain, spec.name))
            self._ordered[spec.name] = None
