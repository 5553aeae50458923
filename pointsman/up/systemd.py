"""What `pointsman up` runs as systemd units, for deployments that outlive a terminal. Generates deploy/systemd."""

import shlex
from pathlib import Path

from msgspec import structs

from pointsman.local.ports import UsualPorts
from pointsman.local.process import Process
from pointsman.local.stack import LocalStack
from pointsman.up.plan import stack_plan
from pointsman.up.script import words
from pointsman.up.settings import UpSettings

DIRECTORY = Path("/var/lib/pointsman")
PROGRAMS = Path("/opt/pointsman/bin")
"""Of the virtual environment with `pointsman[local]`."""
LOGINS = Path("/etc/pointsman")
"""A file of environment variables for each login for NATS, and one with all passwords for nats-server."""
NATS_CONFIG = LOGINS / "nats.conf"
"""Includes the file that `pointsman up` writes, and the logins."""
TARGET = "pointsman.target"
PICKER_FILES = 65536
"""Connections of a picker, at least; systemd's default is 1 024. Envoy and NATS raise their limits themselves."""


def units() -> dict[str, str]:
    """The text of each unit, by its name."""
    plan = stack_plan(UpSettings(servers=("http://10.0.0.11:8000",)))
    stack = LocalStack(structs.replace(plan, nats_name="pointsman"), DIRECTORY, UsualPorts())
    names = {process.name: f"pointsman-{process.name}.service" for process in stack.processes}
    found = {TARGET: _target(list(names.values()))}
    for process in stack.processes:
        after = [] if process is stack.nats else [names["nats"]]
        lines = [f"ExecStart={_command(process, NATS_CONFIG if process is stack.nats else None)}"]
        if process is not stack.envoy:
            login = process.name.partition("-")[0]
            lines.append(f"EnvironmentFile={LOGINS / ('reader' if login == 'console' else login)}.env")
        else:
            after = [name for name in names.values() if name != names["envoy"]]
            # Envoy doesn't start without it
            lines.insert(0, f"ExecStartPre=/bin/sh -c 'until [ -e {stack.eds_file} ]; do sleep 0.1; done'")
        if process in stack.pickers:
            lines.append(f"LimitNOFILE={PICKER_FILES}")
        found[names[process.name]] = _unit(process, after, lines)
    return found


def _command(process: Process, config: Path | None) -> str:
    """The command, with another configuration at its end if there is one."""
    program, *rest = words(process.command)
    if config is not None:
        rest[-1] = str(config)
    return shlex.join([str(PROGRAMS / program), *rest])


def _target(names: list[str]) -> str:
    return f"""\
# Made by `make docs` from what `pointsman up --dry-run` prints; docs/deploy-systemd.md says how to use it.
[Unit]
Description=Pointsman on this machine
Wants={" ".join(names)}

[Install]
WantedBy=multi-user.target
"""


def _unit(process: Process, after: list[str], lines: list[str]) -> str:
    order = f"After={' '.join(after)}\n" if after else ""
    commands = "\n".join(lines)
    return f"""\
[Unit]
Description=Pointsman: {process.name}
PartOf={TARGET}
StartLimitIntervalSec=0
{order}
[Service]
{commands}
User=pointsman
Restart=always
RestartSec=1
TimeoutStopSec={process.stop_timeout:.0f}
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true
ReadWritePaths={DIRECTORY}
"""
