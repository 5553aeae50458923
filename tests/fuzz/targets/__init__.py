"""What is fuzzed: a module's docstring tells the form of its inputs, its `check` raises for one that shows a fault."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

Check: TypeAlias = Callable[[bytes], None]
"""Raises AssertionError, or what the code let out."""

CORPUS = Path(__file__).parent.parent / "corpus"

TARGETS: Mapping[str, Sequence[str]] = {
    "answers": ("services.collector.http",),
    "bus": ("shared.bus", "services.picker.state", "services.picker.admin"),
    "configuration": ("shared.config",),
    "conversations": ("services.picker.extproc", "services.picker.request_handler"),
    "endpoints_file": ("services.watcher", "shared.config"),
    "header_blocks": ("services.picker.transport.http2", "hpack"),
    "http2": ("services.picker.transport.http2",),
    "models": ("services.collector.extractors.models",),
    "pages": ("services.collector.page",),
    "parsers": ("services.picker.parsers",),
    "responses": ("services.picker.responses",),
    "watches": ("services.watcher",),
}
"""By name, the packages whose branches a fuzzer follows."""


def check_of(target: str) -> Check:
    """The check of a target. Imports what it tests."""
    found: Check = import_module(f"{__name__}.{target}").check
    return found


def seeds(target: str) -> list[Path]:
    """The inputs of a target's corpus, in order."""
    return sorted((CORPUS / target).iterdir())
