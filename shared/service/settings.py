"""The settings of a process, from one typed struct: each field is a flag and a `POINTSMAN_…` environment variable.

`stale_after: Annotated[Duration, Meta(description="…")] = 2.0` is `--stale-after 2s` and `POINTSMAN_STALE_AFTER=2s`. A
flag goes before the environment, the environment before the default; an empty variable is one that isn't set, and so is
one that Kubernetes sets for a Service of such a name (`POINTSMAN_ADMIN_PORT=tcp://10.0.0.1:9090`).
`Meta(extra={"aliases": ("--staleAfter",)})` names flags that other programs have for the same; of several spellings the
last counts, as of a repeated flag. `Meta(extra={"argument": "FILE"})` makes a setting an argument, which is given
without a flag. Everything wrong is reported at once.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import structlog
from msgspec import NODEFAULT, Meta, Struct, inspect

from shared.config.decode import MISSING, decode, expected
from shared.config.problems import Invalid, Problem, Problems, closest, show
from shared.config.schema import BOUNDS, Bounds
from shared.limits import BusLimits
from shared.printable import printable
from shared.quantities import Duration, PositiveDuration, format_duration, format_size
from shared.regular_file import read_regular
from shared.service.flags import flag_of, read_flags, wants_help
from shared.service.usage import Entry, Section, aliases_text, usage

log = structlog.get_logger(__name__)

PREFIX = "POINTSMAN_"
EXIT_INVALID = 1
"""The exit code if settings or documents are wrong. Nothing was started."""

_SERVICE_ADDRESS = ("tcp://", "udp://", "sctp://")
"""How the value of a variable begins that Kubernetes sets in every pod for each Service of the namespace."""

MAX_TEXT = 2**20
"""Bytes of a file that a flag names, be it a configuration or a certificate, where no setting says another number."""

SECRETS = ("nats_url", "nats_password", "nats_token", "console_token")
"""Settings whose values, or parts of them, never appear in a message."""

_PLAIN = (inspect.BoolType, inspect.IntType, inspect.FloatType)


class BusSettings(BusLimits, frozen=True, kw_only=True):
    """The pool and its connection to NATS, for every process and command that connects."""

    pool_name: Annotated[str, Meta(min_length=1, description="the InferencePool to serve")] = "default"
    pool_namespace: Annotated[str, Meta(min_length=1, description="the pool's namespace")] = "default"
    nats_url: Annotated[
        tuple[str, ...], Meta(min_length=1, description="nats-server addresses; write a comma in a password as %2C")
    ] = ("nats://127.0.0.1:4222",)
    nats_prefix: Annotated[
        str,
        Meta(min_length=1, description="prefix of every subject and bucket, so that installations can share one NATS"),
    ] = "pointsman"
    nats_credentials: Annotated[str, Meta(description="a NATS .creds file")] = ""
    nats_user: Annotated[str, Meta(description="NATS user")] = ""
    nats_password: Annotated[
        str,
        Meta(
            description="NATS password; prefer the environment variable, because other users of the machine can see"
            " flags"
        ),
    ] = ""
    nats_token: Annotated[str, Meta(description="NATS token; prefer the environment variable, as for the password")] = (
        ""
    )
    nats_ca: Annotated[str, Meta(description="a CA file for NATS over TLS")] = ""

    @classmethod
    def problems(cls, sound: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield (names of settings, problem) beyond the types. `sound` has the settings, given or by default, that are
        valid by themselves."""
        # imported here, because what needs no bus, such as the simulator, needn't load the client of NATS
        from shared.service import bus_options

        yield from bus_options.problems(sound)

    def __repr__(self) -> str:
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name not in SECRETS}
        return f"<{type(self).__name__} {', '.join(f'{name}={value!r}' for name, value in given.items())}>"


class CommonSettings(BusSettings, frozen=True, kw_only=True):
    """The settings that every tier has."""

    id: Annotated[
        str,
        Meta(
            description="unique name of this process among its peers, of at most 1 024 letters and digits; other "
            "characters count for 3 to 12; default: host name and a random part"
        ),
    ] = ""
    admin_host: Annotated[str, Meta(min_length=1, description="address of the admin HTTP server")] = "0.0.0.0"
    admin_port: Annotated[int, Meta(ge=0, le=65535, description="port of the admin HTTP server; 0 uses a free one")] = (
        9090
    )
    admin_hostnames: Annotated[
        tuple[str, ...],
        Meta(
            description="if the admin HTTP server listens on a loopback address: host names under which it is reached,"
            " such as that of a reverse proxy; IP addresses and localhost always work"
        ),
    ] = ()
    admin_timeout: Annotated[
        PositiveDuration, Meta(description="time limit of a request to the admin HTTP server, including its response")
    ] = 30.0
    admin_connections: Annotated[
        int,
        Meta(
            ge=1,
            description="maximum open connections to the admin HTTP server; a further one closes the one that has been"
            " idle the longest, or one of those being answered if these are more than half",
        ),
    ] = 128
    max_config_entries: Annotated[
        int,
        Meta(
            ge=1,
            description="maximum entries of a list in a configuration, except in plugin parameters; a configuration "
            "with more is refused. The same for all tiers",
        ),
    ] = BOUNDS.entries
    max_config_values: Annotated[
        int,
        Meta(
            ge=1,
            description="maximum values in a configuration, keys included; aliases count as expanded. A configuration "
            "with more is refused. The same for all tiers",
        ),
    ] = BOUNDS.values
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="minimum severity of logged lines")
    ] = "info"
    log_format: Annotated[Literal["json", "console"], Meta(description="one JSON object per line, or text")] = "json"
    drain_timeout: Annotated[Duration, Meta(description="how long a stopping process waits for work in progress")] = (
        30.0
    )
    close_timeout: Annotated[Duration, Meta(description="time limit for closing connections when a process stops")] = (
        5.0
    )

    @property
    def config_bounds(self) -> Bounds:
        """The limits of a configuration."""
        return Bounds(self.max_config_entries, self.max_config_values)


C = TypeVar("C", bound=Struct)


def parse(kind: type[C], argv: Sequence[str], environ: Mapping[str, str] | None, prog: str) -> C:
    """The settings given by flags, arguments and environment (None: no environment). Raises `Invalid` with every
    problem, and SystemExit(0) after `--help`."""
    if wants_help(argv):
        print(usage(prog, (kind.__doc__ or "").strip(), _sections(kind), variables=environ is not None))
        raise SystemExit(0)
    fields = _fields(kind)
    arguments = {name: argument for name, field in fields.items() if (argument := _extra(field).get("argument"))}
    problems = Problems()
    given = read_flags(
        argv,
        {name: _base(field.type)[0] for name, field in fields.items()},
        problems,
        {name: _aliases(field) for name, field in fields.items()},
        SECRETS,
        tuple(arguments),
    )
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    unsound: set[str] = set()
    for name, field in fields.items():
        texts, source = given.get(name), arguments.get(name) or flag_of(name)
        text = None if environ is None or name in arguments else environ.get(_variable(name))
        if texts is None and text and not _is_service_address(text, field):
            texts, source = [text], _variable(name)
        sources[name] = source
        if texts is not None:
            value = _value(texts, kind, field, source, problems)
            if value is MISSING:
                unsound.add(name)
            else:
                values[name] = value
        elif field.required and not any(problem.path == source for problem in problems.errors):
            variable = "" if environ is None or name in arguments else f" (or set {_variable(name)})"
            problems.error(source, f"required, and missing{variable}")
    if issubclass(kind, BusSettings):
        wrong = {problem.path for problem in problems.errors}  # also of flags without a value
        sound = {
            name: values[name] if name in values else _default_value(field)
            for name, field in fields.items()
            if name in values or not (name in unsound or field.required or flag_of(name) in wrong)
        }
        for names, message in kind.problems(sound):
            problems.error(join_sources(sources[name] for name in names), message)
    problems.raise_if_any()
    try:
        return kind(**values)
    except ValueError as error:  # what fields say together, checked in __post_init__
        flag, colon, message = str(error).partition(": ")
        problem = Problem(flag, message) if colon and flag.startswith("--") else Problem("settings", str(error))
        raise Invalid([problem]) from error


def report(error: Invalid) -> int:
    """Print every problem, a line each, and return the exit code for it."""
    for line in error.lines():
        print(printable(line), file=sys.stderr)
    return EXIT_INVALID


def join_sources(sources: Iterable[str]) -> str:
    """Flags or variables as the place of one problem: `--nats-user and --nats-password`."""
    return " and ".join(sources)


def service_variables(kind: type[Struct], environ: Mapping[str, str]) -> list[str]:
    """Variables that have a setting's name and a Service's address as their value. `parse` ignores them."""
    return sorted(
        _variable(name)
        for name, field in _fields(kind).items()
        if _is_service_address(environ.get(_variable(name), ""), field)
    )


def misspelled(kind: type[Struct], environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that are almost spelled like a setting's: (the variable, the setting's).

    Tiers share environments (a compose file, a ConfigMap), so another tier's variable is valid, and a typing error is
    only warned of.
    """
    known = {_variable(name) for name in _fields(kind)}
    found: list[tuple[str, str]] = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            suggestion = closest(
                name.removeprefix(PREFIX), [variable.removeprefix(PREFIX) for variable in sorted(known)]
            )
            found += [(name, PREFIX + suggestion)] if suggestion else []
    return found


def warn_of_variables(kind: type[Struct], environ: Mapping[str, str]) -> None:
    """Log variables of the environment that look like settings and have no effect."""
    for variable, suggestion in misspelled(kind, environ):
        log.warning("settings.unknown_variable", variable=variable, did_you_mean=suggestion)
    for variable in service_variables(kind, environ):
        log.warning("settings.service_variable_ignored", variable=variable, value=environ[variable])


def describe(kind: type[Struct]) -> list[tuple[str, str, str, str]]:
    """(flag, environment variable, default, description with aliases) of every setting, for the docs."""
    return [
        (entry.flag, entry.variable, entry.default, entry.description + aliases_text(entry.aliases))
        for section in _sections(kind)
        for entry in section.entries
    ]


def read_text(path: str, flag: str, limit: int = MAX_TEXT) -> str:
    """The text of the file that a flag names, with its line endings, because its revision is that of its bytes. Raises
    `Invalid` with flag and file, also if it has more than `limit` bytes."""
    try:
        data = read_regular(path, limit + 1)
        if len(data) > limit:
            raise Invalid([Problem(flag, f"{path!r} is larger than {limit} bytes")])
        return data.decode("utf-8")
    except OSError as error:
        raise Invalid([Problem(flag, f"{path!r} can't be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        raise Invalid([Problem(flag, f"{path!r} isn't UTF-8 text: {error.reason} at byte {error.start}")]) from error


def _value(texts: list[str], kind: type[Struct], field: inspect.Field, source: str, problems: Problems) -> Any:
    """The value of a setting; of a setting that isn't a list, the last text counts."""
    base, form = _base(field.type)
    plain: Any
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:  # Python stands half characters for bytes; no message, page or log can hold them
            problems.error(source, f"{'its value' if field.name in SECRETS else show(text)} isn't UTF-8 text")
            return MISSING
    if isinstance(base, inspect.VarTupleType) and _extra(field).get("argument"):
        plain = texts
    elif isinstance(base, inspect.VarTupleType):
        parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
        plain = [_plain(part, _base(base.item_type)[0]) for part in parts]
    else:
        plain = texts[-1] if form else _plain(texts[-1], base)
        if isinstance(plain, str) and not form and isinstance(base, _PLAIN):
            problems.error(source, f"{show(plain)} isn't {expected(base)}")
            return MISSING
    return decode(plain, _hints(kind)[field.name], source, problems)


def _plain(text: str, base: inspect.Type) -> Any:
    """A text as the plain value that the type suggests; what doesn't fit stays text."""
    if isinstance(base, inspect.BoolType):
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower(), text)
    if isinstance(base, (inspect.IntType, inspect.FloatType)):
        try:
            return int(text) if isinstance(base, inspect.IntType) else float(text)
        except ValueError:
            return text
    return text


def _is_service_address(text: str, field: inspect.Field) -> bool:
    """Only of a number, for which it can't be meant: of other settings an address may be the value."""
    return isinstance(_base(field.type)[0], inspect.IntType) and text.startswith(_SERVICE_ADDRESS)


def _fields(kind: type[Struct]) -> dict[str, inspect.Field]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {field.name: field for field in info.fields}


def _sections(kind: type[Struct]) -> list[Section]:
    """What every tier has, then the settings of the class itself, then those of its other bases."""
    fields = _fields(kind)
    arguments = [name for name, field in fields.items() if _extra(field).get("argument")]
    classes = sorted(  # the sort keeps the others' order
        kind.__mro__, key=lambda each: (each is not CommonSettings, each is not BusSettings)
    )
    groups: dict[str, list[str]] = {"arguments": arguments}
    listed = set(arguments)
    for each in classes:
        own = [name for name in vars(each).get("__annotations__", ()) if name in fields and name not in listed]
        listed.update(own)
        groups.setdefault(_title(each, kind), []).extend(own)
    return [
        Section(title, tuple(_entry(kind, fields[name]) for name in names)) for title, names in groups.items() if names
    ]


def _title(each: type, kind: type[Struct]) -> str:
    """`common flags`, `connection flags`, `watcher flags`; `flags` where there is only one group."""
    if not issubclass(kind, BusSettings):
        return "flags"
    if each is BusSettings and issubclass(kind, CommonSettings):
        each = CommonSettings
    if each in (BusSettings, BusLimits):
        return "connection flags"
    return f"{each.__name__.removesuffix('Settings').removesuffix('Command').lower()} flags".strip()


def _entry(kind: type[Struct], field: inspect.Field) -> Entry:
    argument = _extra(field).get("argument")
    return Entry(
        flag=argument or flag_of(field.name),
        variable=_variable(field.name),
        value="" if argument else _placeholder(*_base(field.type)),
        default=_default(field),
        required=field.required and not argument,
        description=_description(kind, field.name),
        aliases=_aliases(field),
    )


def _placeholder(base: inspect.Type, form: str) -> str:
    if form:
        return form.upper()
    match base:
        case inspect.BoolType():
            return "[true|false]"
        case inspect.VarTupleType():
            return "A,B,…"
        case inspect.IntType() | inspect.FloatType():
            return "NUMBER"
        case inspect.LiteralType(values=values):
            return "|".join(str(value) for value in values)
        case inspect.EnumType(cls=cls):
            return "|".join(str(member.value) for member in cls)
        case _:
            return "TEXT"


def _base(info: inspect.Type) -> tuple[inspect.Type, str]:
    """The type without its annotations and without None, and its format: `duration`, `size` or nothing."""
    form = ""
    while isinstance(info, (inspect.Metadata, inspect.UnionType)):
        if isinstance(info, inspect.Metadata):
            form = (info.extra or {}).get("format", form)
            info = info.type
        else:
            info = next(kind for kind in info.types if not isinstance(kind, inspect.NoneType))
    return info, form


def _extra(field: inspect.Field) -> dict[str, Any]:
    return (field.type.extra or {}) if isinstance(field.type, inspect.Metadata) else {}


def _aliases(field: inspect.Field) -> tuple[str, ...]:
    """Flags that mean the same as the setting's own."""
    return tuple(_extra(field).get("aliases", ()))


def _hints(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _description(kind: type[Struct], name: str) -> str:
    for meta in reversed(getattr(_hints(kind)[name], "__metadata__", ())):
        if isinstance(meta, Meta) and meta.description:
            return meta.description
    return ""


def _default(field: inspect.Field) -> str:
    """As the flag would be written; empty for none."""
    if field.required:
        return ""
    value = _default_value(field)
    match _base(field.type)[1], value:
        case _, None:
            return ""
        case "duration", int() | float():
            return format_duration(value)
        case "size", int():
            return format_size(value)
        case _, bool():
            return str(value).lower()
        case _, tuple():
            return ",".join(str(item) for item in value)
        case _:
            return str(value)


def _default_value(field: inspect.Field) -> Any:
    return field.default if field.default is not NODEFAULT else field.default_factory()


def _variable(name: str) -> str:
    return PREFIX + name.upper()
