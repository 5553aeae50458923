"""Command-line words into texts by setting: `--name value`, `--name=value`, `--name` alone for a switch, and arguments.

Not argparse, because that stops at the first mistake and takes a negative duration for a flag.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from msgspec import inspect

from shared.config.problems import Problems, nearest, show

BOOLEANS = ("true", "false", "yes", "no", "1", "0")


def read_flags(
    argv: Sequence[str],
    kinds: Mapping[str, inspect.Type],
    problems: Problems,
    aliases: Mapping[str, Sequence[str]] = MappingProxyType({}),
    secrets: Collection[str] = (),
    arguments: Sequence[str] = (),
) -> dict[str, list[str]]:
    """The texts of each setting, in order. `kinds` are the settings' types by name, `aliases` other flags of a setting,
    `arguments` settings without a flag, in order. A word after the value of one of `secrets` may be a part of it that
    the shell split off, and isn't shown."""
    names = {flag_of(name): name for name in kinds if name not in arguments}
    for setting, flags in aliases.items():
        names |= {spelled: setting for alias in flags for spelled in _spellings(alias)}
    given: dict[str, list[str]] = {}
    last = ""
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "-" or not word.startswith("-"):
            free = [name for name in arguments if name not in given or isinstance(kinds[name], inspect.VarTupleType)]
            if free:
                given.setdefault(free[0], []).append(word)
                continue
        flag, equals, text = word.partition("=")
        name = names.get(flag)
        if name is None:
            if last in secrets and not nearest(flag, names):
                flag, what = flag_of(last), "an unknown flag behind it, or a part of its value that isn't in quotes"
            else:
                what = _unknown(word, names)
            problems.error(flag, what)
            if word.startswith("-") and not equals and words and not words[0].startswith("--"):
                words.pop(0)  # most likely its value: no second problem
            continue
        last = name
        if not equals:
            if isinstance(kinds[name], inspect.BoolType):
                text = words.pop(0) if words and words[0].lower() in BOOLEANS else "true"
            elif not words or words[0].startswith("--"):
                problems.error(flag, f"a value is missing: {flag} VALUE")
                continue
            else:
                text = words.pop(0)
        given.setdefault(name, []).append(text)
    return given


def wants_help(argv: Sequence[str]) -> bool:
    return "--help" in argv or "-h" in argv


def flag_of(name: str) -> str:
    """`--stale-after` for `stale_after`."""
    return "--" + name.replace("_", "-")


def _spellings(flag: str) -> tuple[str, ...]:
    """A flag in camel case comes from programs that use Go's flag package, where one dash is as good as two."""
    return (flag,) if "-" in flag[2:] else (flag, flag[1:])


def _unknown(word: str, names: Mapping[str, str]) -> str:
    if not word.startswith("-"):
        return f"unexpected argument {show(word)}; settings are given as --name value"
    flag = "--" + word.partition("=")[0].strip("-").replace("_", "-")
    return f"unknown flag{nearest(flag, names)}"
