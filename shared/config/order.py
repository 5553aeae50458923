"""Which data producers run for a request, and in which order: those whose products are read, each after its own
inputs."""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from shared.attributes import AttributeKey
from shared.config.loaded import PluginSpec, ProfileSpec, with_references
from shared.config.problems import Problems, show
from shared.plugin import Role

_BY_REFERENCE = {Role.FILTER, Role.SCORER, Role.PICKER, Role.DECIDER, Role.DATA_PRODUCER}
"""Roles that a plugin plays only where something names or reads it; any other plays when it is there."""


def in_order(
    plugins: Mapping[str, PluginSpec],
    profiles: Iterable[ProfileSpec],
    inputs: Mapping[str, Mapping[str, AttributeKey[Any]]],
    problems: Problems,
) -> tuple[str, ...]:
    """The names of the producers that run, each after those that it reads, otherwise in the order of `plugins`. Notes
    two producers of one attribute that is read, and cycles. `inputs` are the attributes that parameters name."""
    producers: dict[AttributeKey[Any], list[PluginSpec]] = {}
    for spec in plugins.values():
        if Role.DATA_PRODUCER in spec.kind.ROLES:
            for key in spec.produces:
                producers.setdefault(key, []).append(spec)
    pending = [spec for spec in plugins.values() if not spec.kind.ROLES <= _BY_REFERENCE]
    pending += [member.plugin for profile in profiles for member in profile.members]
    pending = list(with_references(pending, plugins).values())
    reads: dict[str, dict[str, None]] = {}
    """By producer that is read, those that it reads."""
    while pending:
        reader = pending.pop()
        named = inputs.get(reader.name, {})
        read = {wanted.key or named.get(wanted.parameter): None for wanted in reader.consumes}
        for key in [attribute for attribute in read if attribute is not None and attribute in producers]:
            maker, *others = producers[key]
            for other in others:
                what = f"{show(other.name)} makes {key.name}, as {show(maker.name)} does; one plugin makes it"
                problems.error(other.path or other.name, what)
            producers[key] = [maker]  # reported once
            if maker is reader:
                continue
            if maker.name not in reads:
                reads[maker.name] = {}
                pending.append(maker)
            if reader.name in reads:
                reads[reader.name][maker.name] = None
    try:
        return tuple(TopologicalSorter({name: reads[name] for name in plugins if name in reads}).static_order())
    except CycleError as error:
        circle = error.args[1][::-1]
        path = plugins[circle[0]].path or circle[0]
        problems.error(path, f"data producers depend on each other: {' → '.join(circle)}")
        return ()
