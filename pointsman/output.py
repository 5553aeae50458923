"""Texts of others in a terminal: ids and reasons from the bus may have characters that control it."""

import sys
from collections.abc import Iterable


def printable(text: str) -> str:
    r"""The text with all other characters escaped, line breaks too: one text can't pass for two.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def print_lines(lines: Iterable[str], *, error: bool = False) -> None:
    """Print lines, escaped, to the standard output, or for errors to the other."""
    print("\n".join(map(printable, lines)), file=sys.stderr if error else sys.stdout, flush=True)
