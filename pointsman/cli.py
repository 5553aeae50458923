"""`pointsman COMMAND …`: one command for each process, and tools. Imports only the module of the command."""

import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from shared.version import VERSION

COMMANDS = {
    "watcher": ("services.watcher.app", "publish the endpoints and the configuration"),
    "collector": ("services.collector.app", "scrape model servers and publish their attributes"),
    "picker": ("services.picker.app", "serve Envoy's ext_proc"),
    "console": ("services.console.app", "serve a web page and an API about a pool"),
    "simulator": ("services.simulator.app", "simulate a model server"),
    "up": ("pointsman.up.app", "run everything on this machine, in front of your model servers"),
    "top": ("pointsman.top.app", "show a pool's endpoints, queues and processes"),
    "demo": ("pointsman.demo.app", "run the whole system on this machine"),
    "check": ("pointsman.check", "validate EndpointPickerConfigs and endpoints files"),
    "lab": ("pointsman.lab.app", "compare profiles with simulated pickers and model servers"),
    "probe": ("pointsman.probe", "scrape a model server once and show the result"),
    "plugins": ("pointsman.plugins", "list the installed plugin types"),
    "drain": ("pointsman.drain", "take an endpoint out of service: its requests finish, it gets no new ones"),
    "undrain": ("pointsman.undrain", "put a drained endpoint back into service"),
    "status": ("pointsman.status", "show the members of a pool, and what is wrong"),
    "bus": ("pointsman.bus", "list and decode the entries of the bus"),
    "explain": ("pointsman.explain", "ask a picker where a request would go, and why"),
    "replay": ("pointsman.replay", "show which of the last decisions another configuration would change"),
    "why": ("pointsman.why", "say why a request went where it did, or what is wrong with an endpoint"),
}

INTERRUPTED = 130
"""The exit code of a process that Ctrl-C has ended."""
TERMINATED = 128 + signal.SIGTERM
"""The exit code of a container's process that SIGTERM has ended before it had a handler of its own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code, or 2 for an unknown command.

    Returns 1 without a message if nobody reads the output (`pointsman picker --help | head -1`), and 130 without a
    message after Ctrl-C if the command doesn't handle it, for example while its modules are imported.
    """
    if os.getpid() == 1:  # in a container, where the kernel ignores signals that have no handler
        signal.signal(signal.SIGTERM, _terminate)
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            if sys.stdout is not None:  # None if the parent process has closed it
                sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end
        return 1


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


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
    """Import the module of a command. The garbage collector ignores the objects of modules: they live until the end,
    and scanning them during the import, while serving and at the exit takes long (tests/benchmarks/bench_start.py)."""
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
            "`pointsman COMMAND --help` lists the flags of a command.",
        ]
    )
