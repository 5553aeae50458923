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


def usage(prog: str, description: str, sections: Sequence[Section], *, variables: bool = True) -> str:
    """The text; `variables` says whether flags are environment variables too."""
    example = sections[-1].entries[0]
    arguments = [entry.flag for section in sections for entry in section.entries if not entry.value]
    paragraphs = [_wrapped(paragraph, 0) for paragraph in description.split("\n\n")]
    parts = [" ".join([f"usage: {prog} [--flag VALUE …]", *arguments]), *paragraphs]
    for section in sections:
        parts.append(f"{section.title}:\n" + "\n".join(map(_entry, section.entries)))
    environment = (
        f"Each flag is also an environment variable: {example.flag} is {example.variable}. The flag takes precedence. "
    )
    notes = (
        f"{environment if variables else ''}"
        "Durations are written 200ms, 2s or 1m30s, sizes 4096, 64Mi or 1G, lists with commas."
    )
    parts.append(_wrapped(notes, 0))
    return "\n\n".join(parts)


def _entry(entry: Entry) -> str:
    notes = ["required"] if entry.required else [f"default: {entry.default}"] if entry.default else []
    description = entry.description + aliases_text(entry.aliases)
    text = "; ".join([*([description] if description else []), *notes])
    return f"  {f'{entry.flag} {entry.value}'.strip()}\n{_wrapped(text, COLUMN + 2)}"


def aliases_text(aliases: Sequence[str]) -> str:
    """What is added to a setting's description for the other flags that it has."""
    return f" (also {', '.join(aliases)})" if aliases else ""


def _wrapped(text: str, indent: int) -> str:
    lead = " " * indent
    words = " ".join(text.split())
    return textwrap.fill(words, WIDTH, initial_indent=lead, subsequent_indent=lead, break_on_hyphens=False)
