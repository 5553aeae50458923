"""`pointsman plugins [TYPE…]`: the installed plugin types, those of third parties among them."""

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Struct, structs

from pointsman.command import Format, parse_options, print_json
from pointsman.table import text_table
from shared.attributes import AttributeKey
from shared.config.problems import nearest
from shared.plugin import Input, Plugin, Registry, Tier


class PluginsOptions(Struct, frozen=True, kw_only=True):
    """Lists the installed plugin types: roles, tiers, stability, parameters, and the attributes that they read and
    produce."""

    types: Annotated[
        tuple[str, ...],
        Meta(description="only these types; default: all", extra={"argument": "TYPE…"}),
    ] = ()
    format: Format = "text"


class Parameter(Struct, frozen=True, rename="camel"):
    """A parameter of a type."""

    name: str
    required: bool
    default: Any = None
    """None without a default."""


class InputAttribute(Struct, frozen=True, rename="camel"):
    """An attribute that a type reads."""

    name: str
    optional: bool = False

    def __str__(self) -> str:
        return f"[{self.name}]" if self.optional else self.name


class PluginType(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a type declares about itself."""

    type: str
    aliases: tuple[str, ...]
    roles: tuple[str, ...]
    tiers: tuple[str, ...]
    stability: str
    summary: str
    """The first line of the class's docstring."""
    package: str
    """The module's first name."""
    parameters: tuple[Parameter, ...]
    inputs: tuple[InputAttribute, ...]
    outputs: tuple[str, ...]


def describe(kind: type[Plugin]) -> PluginType:
    """Describe a type. Inputs and outputs that depend on parameters are those of an instance with the defaults."""
    parameters = tuple(_parameter(field) for field in structs.fields(kind.Parameters))
    try:
        defaults = kind.Parameters()
        inputs, outputs = kind.consumes(defaults), kind.produces(kind.TYPE, defaults)
    except Exception:  # noqa: BLE001 - some parameters have no default; a third party's class may fail in any way
        inputs, outputs = kind.CONSUMES, kind.PRODUCES
    return PluginType(
        type=kind.TYPE,
        aliases=kind.ALIASES,
        roles=tuple(sorted(role.value for role in kind.ROLES)),
        tiers=tuple(tier.value for tier in Tier if kind.runs_in(tier)),
        stability=kind.STABILITY.value,
        summary=(kind.__doc__ or "").strip().partition("\n")[0],
        package=kind.__module__.partition(".")[0],
        parameters=parameters,
        inputs=tuple(map(_input, inputs)),
        outputs=tuple(dict.fromkeys([*(key.wire for key in outputs), *([kind.OUTPUT] if kind.OUTPUT else [])])),
    )


def _parameter(field: structs.FieldInfo) -> Parameter:
    default = field.default
    if default is NODEFAULT and field.default_factory is not NODEFAULT:
        default = field.default_factory()
    required = default is NODEFAULT
    return Parameter(
        field.encode_name, required, None if required or default is UNSET else msgspec.to_builtins(default)
    )


def _input(given: AttributeKey[Any] | Input) -> InputAttribute:
    if not isinstance(given, Input):
        return InputAttribute(given.wire)
    return InputAttribute(given.name if given.key is None else given.key.wire, given.optional)


def table(kinds: Iterable[PluginType]) -> list[str]:
    """A line for each type, in columns."""
    rows = [
        (
            kind.type,
            ", ".join(kind.roles),
            ", ".join(kind.tiers),
            kind.stability,
            ", ".join(f"{each.name}*" if each.required else each.name for each in kind.parameters),
            ", ".join(map(str, kind.inputs)),
            ", ".join(kind.outputs),
        )
        for kind in kinds
    ]
    header = ("TYPE", "ROLES", "TIERS", "STABILITY", "PARAMETERS", "INPUTS", "OUTPUTS")
    lines = text_table(header, ([cell or "-" for cell in row] for row in rows))
    return [*lines, "", "* required; [optional input]"]


def main(argv: Sequence[str]) -> int:
    """`pointsman plugins`: 0, or 1 if a type isn't installed or an entry point can't be loaded; 2 for wrong options."""
    options = parse_options(PluginsOptions, argv, "plugins")
    registry = Registry.installed()
    kinds = {kind.TYPE: kind for kind in sorted(registry, key=lambda kind: kind.TYPE)}
    problems = list(registry.failures)
    if options.types:
        found = {name: registry.find(name) for name in options.types}
        problems += [
            f"{name!r} is no plugin type that is installed{nearest(name, kinds)}"
            for name, kind in found.items()
            if kind is None
        ]
        kinds = {kind.TYPE: kind for kind in found.values() if kind is not None}
    described = [describe(kind) for kind in kinds.values()]
    if options.format == "json":
        print_json({"plugins": described, "problems": problems})
    else:
        print("\n".join(table(described)))
        for problem in problems:
            print(problem, file=sys.stderr)
    return 1 if problems else 0
