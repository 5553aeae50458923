"""What `pointsman up` would do, as a shell script: a starting point for a deployment by hand."""

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from pointsman.local.process import Process
from pointsman.local.services import CONSOLE_TOKEN
from pointsman.local.stack import LocalStack

END = "END_OF_FILE"
_START = ("processes=", 'start() { "$@" & processes="$processes $!"; }', "trap 'kill $processes; wait; exit' INT TERM")


def script(stack: LocalStack) -> str:
    """Writes every file and starts every process, in the order of their dependencies. For a stack of `UsualPorts`."""
    parts = [
        "#!/bin/sh",
        "# Everything that `pointsman up` runs. With --files, only the files are written.",
        "set -eu",
        f"mkdir -p {shlex.quote(str(stack.directory))}",
    ]
    for path, text in stack.files().items():
        parts += ["", f"cat > {shlex.quote(str(path))} <<'{END}'", text.rstrip("\n"), END]
    parts += ["", 'if [ "${1:-}" = --files ]; then exit; fi']
    if stack.plan.console_token:
        parts += [f': "${{{CONSOLE_TOKEN}:?the token that the console requires}}"', f"export {CONSOLE_TOKEN}"]
    parts += [*_START, ""]
    for process in stack.processes:
        if process is stack.envoy:
            parts += ["# Envoy doesn't start without it", f"until [ -e {stack.eds_file} ]; do sleep 0.1; done"]
        parts.append(f"start {command(process)}")
    return "\n".join([*parts, "wait", ""])


def command(process: Process) -> str:
    """Its command line, by the names of the programs."""
    return shlex.join(words(process.command))


def words(command: Iterable[str]) -> list[str]:
    """The words of a command, with `pointsman` for `python -m pointsman`."""
    program, *rest = command
    if program == sys.executable and rest[:2] == ["-m", "pointsman"]:
        return ["pointsman", *rest[2:]]
    return [Path(program).name, *rest]
