"""Lines in a terminal."""

import sys
from collections.abc import Iterable

from shared.printable import printable


def print_lines(lines: Iterable[str], *, error: bool = False) -> None:
    """Print lines, escaped, to the standard output, or for errors to the other."""
    print("\n".join(map(printable, lines)), file=sys.stderr if error else sys.stdout, flush=True)
