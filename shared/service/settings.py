"""The settings of a process, from one typed struct: each field is a flag and a `POINTSMAN_…` environment variable.

`stale_after: Annotated[Duration, Meta(description="…")] = 2.0` is `--stale-after 2s` and `POINTSMAN_STALE_AFTER=2s`. A
flag goes before the environment, the environment before the default. Everything wrong is reported at once.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct, inspect

from shared.config.decode import MISSING, decode
from shared.config.problems import Invalid, Problems, nearest
from shared.quantities import Duration, format_duration

PREFIX = "POINTSMAN_"


class CommonSettings(Struct, frozen=True, kw_only=True):
    """What every tier can be told."""

    id: Annotated[
        str, Meta(description="name of this process among its peers; default: host name and a random part")
    ] = ""
    pool_name: Annotated[str, Meta(min_length=1, description="the InferencePool that is served")] = "default"
    pool_namespace: Annotated[str, Meta(min_length=1, description="the pool's namespace")] = "default"
    nats_url: Annotated[tuple[str, ...], Meta(description="nats-server addresses, separated by commas")] = (
        "nats://127.0.0.1:4222",
    )
    nats_prefix: Annotated[
        str, Meta(description="leads every subject and bucket, so that installations can share one NATS")
    ] = "pointsman"
    nats_credentials: Annotated[str, Meta(description="a NATS .creds file")] = ""
    nats_user: Annotated[str, Meta(description="NATS user")] = ""
    nats_password: Annotated[str, Meta(description="NATS password")] = ""
    nats_token: Annotated[str, Meta(description="NATS token")] = ""
    nats_ca: Annotated[str, Meta(description="a CA file for NATS over TLS")] = ""
    admin_host: Annotated[str, Meta(description="address of the admin HTTP server")] = "0.0.0.0"
    admin_port: Annotated[
        int, Meta(ge=0, le=65535, description="port of the admin HTTP server; 0 takes a free one")
    ] = 9090
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="the least severe line that is logged")
    ] = "info"
    log_format: Annotated[Literal["json", "console"], Meta(description="one JSON object a line, or text")] = "json"
    drain_timeout: Annotated[Duration, Meta(description="how long a stopping process waits for work under way")] = 30.0


C = TypeVar("C", bound=Struct)


def parse(kind: type[C], argv: Sequence[str], environ: Mapping[str, str], prog: str) -> C:
    """The settings that flags and environment give.

    Raises `Invalid` with every problem at once, and SystemExit(0) after `--help`.
    """
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    fields = {field.name: field for field in info.fields}
    problems = Problems()
    try:
        given, unknown = _parser(kind, fields, prog).parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        problems.error(error.argument_name or "arguments", error.message)
        raise Invalid(problems.errors) from error
    for word in unknown:
        known = [_flag(name) for name in fields]
        problems.error(word, f"unknown argument{nearest(word.split('=')[0], known)}")
    values: dict[str, Any] = {}
    for name, field in fields.items():
        raw, source = getattr(given, name), _flag(name)
        if raw is None:
            source = PREFIX + name.upper()
            raw = environ.get(source)
        if raw is None:
            if field.required:
                problems.error(_flag(name), f"required, and missing (or set {source})")
            continue
        value = decode(_plain(raw, field.type), _annotated(kind, name), source, problems)
        if value is not MISSING:
            values[name] = value
    problems.raise_if_any()
    try:
        return kind(**values)
    except ValueError as error:  # what fields say together, checked in __post_init__
        problems.error("settings", str(error))
        raise Invalid(problems.errors) from error


def describe(kind: type[Struct]) -> list[tuple[str, str, str, str]]:
    """(flag, environment variable, default, description) of every setting, for `--help` and the docs."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return [
        (_flag(one.name), PREFIX + one.name.upper(), _default(one), _description(kind, one.name)) for one in info.fields
    ]


def _parser(kind: type[Struct], fields: Mapping[str, inspect.Field], prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=(kind.__doc__ or "").strip(),
        epilog=f"Each flag is an environment variable too: --nats-url is {PREFIX}NATS_URL. Durations: 200ms, 1m30s.",
        allow_abbrev=False,
        exit_on_error=False,
    )
    for name, field in fields.items():
        options: dict[str, Any] = {"default": None, "dest": name, "help": _help(kind, field)}
        base = _bare(field.type)
        if isinstance(base, inspect.BoolType):
            options |= {"nargs": "?", "const": "true", "metavar": "BOOL"}
        elif isinstance(base, inspect.VarTupleType):
            options |= {"action": "append", "metavar": "A,B"}
        else:
            options |= {"metavar": name.rsplit("_", 1)[-1].upper()}
        parser.add_argument(_flag(name), **options)
    return parser


def _plain(raw: Any, info: inspect.Type) -> Any:
    """A flag's text as the plain value that its field's type suggests; what doesn't fit stays text, to be reported."""
    base = _bare(info)
    if isinstance(base, inspect.VarTupleType):
        texts = raw if isinstance(raw, list) else [raw]
        items = [part.strip() for text in texts for part in text.split(",") if part.strip()]
        return [_plain(item, base.item_type) for item in items]
    if isinstance(base, inspect.BoolType):
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(raw.lower(), raw)
    if isinstance(base, (inspect.IntType, inspect.FloatType)):
        try:
            return int(raw) if isinstance(base, inspect.IntType) else float(raw)
        except ValueError:
            return raw
    return raw


def _bare(info: inspect.Type) -> inspect.Type:
    while isinstance(info, (inspect.Metadata, inspect.UnionType)):
        if isinstance(info, inspect.Metadata):
            info = info.type
        else:
            info = next(one for one in info.types if not isinstance(one, inspect.NoneType))
    return info


def _annotated(kind: type[Struct], name: str) -> Any:
    return _hints(kind)[name]


def _hints(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _description(kind: type[Struct], name: str) -> str:
    for meta in reversed(getattr(_hints(kind)[name], "__metadata__", ())):
        if isinstance(meta, Meta) and meta.description:
            return meta.description
    return ""


def _help(kind: type[Struct], field: inspect.Field) -> str:
    default = _default(field)
    text = _description(kind, field.name).replace("%", "%%")
    return f"{text} (default: {default})" if default else text


def _default(field: inspect.Field) -> str:
    if field.required:
        return ""
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    info: inspect.Type = field.type
    while isinstance(info, inspect.Metadata):
        if (info.extra or {}).get("format") == "duration" and isinstance(value, float):
            return format_duration(value)
        info = info.type
    if isinstance(value, tuple):
        return ",".join(str(one) for one in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def read_text(path: str, flag: str) -> str:
    """The text of the file that a flag names. Raises `Invalid` that names the flag and the file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems = Problems()
        problems.error(flag, f"{path!r} can't be read: {error}")
        raise Invalid(problems.errors) from error
