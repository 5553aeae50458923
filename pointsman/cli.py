"""`pointsman COMMAND …`: a command a process, plus those that help to run them. Imports only that command's module."""

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from shared.version import VERSION

COMMANDS = {
    "watcher": ("services.watcher.app", "publish which endpoints exist, and the configuration"),
    "collector": ("services.collector.app", "scrape the model servers and publish their attributes"),
    "picker": ("services.picker.app", "serve Envoy's ext_proc"),
    "simulator": ("services.simulator.app", "a stand-in model server"),
    "demo": ("pointsman.demo.app", "run the whole system on this machine"),
    "check": ("pointsman.check", "validate an EndpointPickerConfig or an endpoints file"),
    "probe": ("pointsman.probe", "scrape a model server once and show what is made of it"),
}

INTERRUPTED = 130
"""What shells say of a process that Ctrl-C has ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; its exit code, or 2 for a command that doesn't exist.

    1, and no word, when nobody reads what is printed any more (`pointsman picker --help | head -1`); 130, and no word,
    after Ctrl-C where the command doesn't handle it, such as while its modules are imported.
    """
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            if sys.stdout is not None:  # it is None when it was closed by whoever started the process
                sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still writes at its end
        return 1


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if arguments[0] in ("-V", "--version", "version"):
        print(f"pointsman {VERSION}")
        return 0
    command = COMMANDS.get(arguments[0])
    if command is None:
        hint = imported("shared.config.problems").nearest(arguments[0], COMMANDS)
        print(f"pointsman: unknown command {arguments[0]!r}{hint}\n\n{_usage()}", file=sys.stderr)
        return 2
    code: int = imported(command[0]).main(arguments[1:])
    return code


def imported(module: str) -> Any:
    """A command's module. What modules are made of stays until the end, and to look through it for garbage takes long:
    again and again while they come, now and then while the process serves, and once more when it ends. So that is left
    out (tests/benchmarks/bench_start.py)."""
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def _usage() -> str:
    lines = [f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: pointsman COMMAND [--flag VALUE …]",
            "",
            *lines,
            "",
            "`pointsman COMMAND --help` lists a command's flags.",
        ]
    )
