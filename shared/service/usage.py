"""The text of `--help`."""

import textwrap
from collections.abc import Sequence

from msgspec import Struct

WIDTH = 100
COLUMN = 4


class Entry(Struct, frozen=True, kw_only=True):
    """One setting as it is shown."""

    flag: str
    variable: str
    value: str
    default: str
    required: bool
    description: str
    aliases: tuple[str, ...] = ()


class Section(Struct, frozen=True):
    """Settings under a heading."""

    title: str
    entries: tuple[Entry, ...]


def usage(prog: str, description: str, sections: Sequence[Section]) -> str:
    """Everything that the program can be told."""
    example = sections[-1].entries[0]
    parts = [f"usage: {prog} [--flag VALUE …]", _wrapped(description, 0)]
    for section in sections:
        parts.append(f"{section.title}:\n" + "\n".join(map(_entry, section.entries)))
    notes = (
        f"Each flag is an environment variable too: {example.flag} is {example.variable}; the flag goes first. "
        "Durations are written 200ms, 2s or 1m30s, sizes 4096, 64Mi or 1G, lists with commas."
    )
    parts.append(_wrapped(notes, 0))
    return "\n\n".join(parts)


def _entry(entry: Entry) -> str:
    notes = ["required"] if entry.required else [f"default: {entry.default}"] if entry.default else []
    description = entry.description + also(entry.aliases)
    text = "; ".join([*([description] if description else []), *notes])
    return f"  {entry.flag} {entry.value}\n{_wrapped(text, COLUMN + 2)}"


def also(aliases: Sequence[str]) -> str:
    """What is added to a setting's description for the other flags that it has."""
    return f" (also {', '.join(aliases)})" if aliases else ""


def _wrapped(text: str, indent: int) -> str:
    lead = " " * indent
    words = " ".join(text.split())
    return textwrap.fill(words, WIDTH, initial_indent=lead, subsequent_indent=lead, break_on_hyphens=False)
