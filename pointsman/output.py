"""How commands print what they found: as text for humans, or as JSON for machines. The same option everywhere."""

import argparse
from typing import Any

import msgspec

TEXT = "text"
JSON = "json"


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add `--format`, whose value is then in `format`."""
    parser.add_argument("--format", choices=(TEXT, JSON), default=TEXT, help="for humans or for machines")


def print_json(document: Any) -> None:
    """Print one JSON document."""
    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
