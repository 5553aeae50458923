"""What `pointsman up` makes of its arguments, prints for a deployment by hand, and does with processes that end."""

import asyncio
import itertools
import re
from pathlib import Path
from typing import Self

import pytest
import yaml

from pointsman.docs import ROOT
from pointsman.local.envoy import STANDALONE, ConfigurationError
from pointsman.local.process import Process
from pointsman.local.stack import CONFIGURATION, ModelServer
from pointsman.local.supervisor import Supervisor
from pointsman.up.app import main
from pointsman.up.logs import Logs
from pointsman.up.plan import parse_server
from pointsman.up.systemd import DIRECTORY, NATS_CONFIG, TARGET, units
from shared.config import load
from shared.plugin import Registry
from tests.waiting import eventually

SERVERS = {
    "http://10.0.0.11:8000": ModelServer(name="10.0.0.11:8000", address="10.0.0.11", port=8000),
    "10.0.0.11:8000": ModelServer(name="10.0.0.11:8000", address="10.0.0.11", port=8000),
    "http://gpu-1/": ModelServer(name="gpu-1:80", address="gpu-1", port=80),
    "http://[fd00::1]:8000": ModelServer(name="[fd00::1]:8000", address="fd00::1", port=8000),
}


@pytest.mark.parametrize("text", SERVERS)
def test_a_server_is_called_by_its_address(text: str) -> None:
    assert parse_server(text) == SERVERS[text]


WRONG = {
    "no server": ([], "URL…: name your model servers here or in --endpoints-file"),
    "both": (["a:1", "--endpoints-file", __file__], "URL…: name your model servers here or in --endpoints-file"),
    "https": (["https://a:1"], "URL…: 'https://a:1': Envoy calls model servers over plain HTTP"),
    "port": (["a:99999"], "URL…: 'a:99999' isn't a URL: Port out of range"),
    "path": (["http://a:1/v1"], "URL…: 'http://a:1/v1' has more than an address and a port"),
    "user": (["http://me@a:1"], "URL…: 'http://me@a:1' has more than an address and a port"),
    "nothing": (["http://:8000"], "URL…: 'http://:8000' isn't the URL of a server"),
    "twice": (["http://a:1", "a:1"], "URL…: 'a:1' is named twice"),
    "file": (["--endpoints-file", "/nowhere"], "--endpoints-file: '/nowhere' doesn't exist"),
    "long": (["--endpoints-file", "e" * 256], f"--endpoints-file: '{'e' * 256}' doesn't exist"),
    "configuration": (["a:1", "--config-file", "/nowhere"], "--config-file: '/nowhere' doesn't exist"),
    "host": (["a:1", "--host", "here"], "--host: 'here' isn't an IP address of this machine"),
    "flag": (["a:1", "--ports", "1"], "--ports: unknown flag; did you mean '--port'?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named_and_nothing_is_started(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, problem = WRONG[case]
    assert main(arguments) == 1
    assert problem in capsys.readouterr().err


def test_a_dry_run_prints_files_and_commands_with_the_usual_ports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--pickers", "2", "--host", "0.0.0.0", "--tracing", "--directory", str(tmp_path / "files")]
    assert main(["http://10.0.0.11:8000", "--dry-run", *flags]) == 0
    script = capsys.readouterr().out
    assert not (tmp_path / "files").exists()
    found = re.findall(r"^cat > \S+/(\S+) <<'END_OF_FILE'\n(.*?\n)END_OF_FILE$", script, re.DOTALL | re.MULTILINE)
    files = dict(found)
    endpoints = yaml.safe_load(files["endpoints.yaml"])["endpoints"]
    assert endpoints == [{"name": "10.0.0.11:8000", "address": "10.0.0.11", "port": 8000}]
    assert files["config.yaml"] == CONFIGURATION.read_text(encoding="utf-8")
    assert yaml.safe_load(files["nats.conf"])["listen"] == "127.0.0.1:4222"
    [gateway] = [
        each
        for each in yaml.safe_load(files["envoy.yaml"])["static_resources"]["listeners"]
        if each["name"] == "gateway"
    ]
    assert gateway["address"]["socket_address"] == {"address": "0.0.0.0", "port_value": 8080}
    commands = [line.split()[1:3] for line in script.splitlines() if line.startswith("start ")]
    assert commands == [
        ["nats-server", "--config"],
        *(["pointsman", tier] for tier in ("watcher", "collector", "picker", "picker", "console")),
        ["envoy", "--config-path"],
    ]
    assert "--grpc-port 9004 --grpc-health-port 9005" in script
    assert script.count("--tracing true") == 2
    assert "allow-actions" not in script


def test_the_script_of_a_dry_run_takes_the_consoles_token_from_its_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POINTSMAN_CONSOLE_TOKEN", "very-secret")
    assert main(["http://10.0.0.11:8000", "--dry-run", "--allow-actions"]) == 0
    script = capsys.readouterr().out
    assert "very-secret" not in script
    assert '"${POINTSMAN_CONSOLE_TOKEN:?' in script
    allowed = [line.split()[2] for line in script.splitlines() if "--allow-actions true" in line]
    assert allowed == ["watcher", "console"]


def test_units_of_systemd_run_the_commands_of_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http://10.0.0.11:8000", "--dry-run"]) == 0
    commands = {line.removeprefix("start ") for line in capsys.readouterr().out.splitlines() if line[:6] == "start "}
    services = [text for name, text in units().items() if name != TARGET]
    found = {re.findall(r"^ExecStart=/opt/pointsman/bin/(.*)$", text, re.MULTILINE)[0] for text in services}
    found = {command.replace(str(NATS_CONFIG), str(DIRECTORY / "nats.conf")) for command in found}
    assert found == commands
    assert len(services) == len(commands)


def test_pickers_may_have_more_connections_than_systemd_permits_by_default() -> None:
    limited = {name for name, text in units().items() if "\nLimitNOFILE=65536\n" in text}
    assert limited == {"pointsman-picker-1.service", "pointsman-picker-2.service"}


def test_systemd_never_gives_up_on_a_unit_that_fails_again_and_again() -> None:
    """By default, it starts a unit five times in ten seconds at most, and then never again."""
    services = {name: text for name, text in units().items() if name != TARGET}
    for name, text in services.items():
        head, rest = text.split("[Service]\n")
        assert "\nStartLimitIntervalSec=0\n" in head, name
        assert "\nRestart=always\n" in rest, name


def test_the_files_of_the_package_are_those_of_the_deployment() -> None:
    for file, original in (
        (STANDALONE, "deploy/envoy/standalone.yaml"),
        (CONFIGURATION, "deploy/compose/pointsman.yaml"),
    ):
        assert file.read_bytes() == (ROOT / original).read_bytes()
    load(CONFIGURATION.read_text(encoding="utf-8"), Registry.installed())


def test_logs_are_told_by_whole_lines_with_the_name_of_their_process(tmp_path: Path) -> None:
    lines: list[str] = []
    processes = [Process(name, ["true"], tmp_path / f"{name}.log") for name in ("nats", "picker-1")]
    logs = Logs(processes, lines.append)
    logs.read()
    processes[0].log.write_text("one\ntw")
    logs.read()
    processes[1].log.write_text("x\n")
    with processes[0].log.open("a") as file:
        file.write("o\n\x1b[2J\n")
    logs.read()
    assert lines == ["nats     | one", "nats     | two", r"nats     | \x1b[2J", "picker-1 | x"]


async def test_a_process_that_ends_starts_again_after_growing_pauses(tmp_path: Path) -> None:
    lines: list[str] = []
    times = itertools.count(step=0.01)
    each = Process("child", ["sh", "-c", "echo up; exit 3"], tmp_path / "child.log")
    await each.start()
    watching = Supervisor([each], lines.append, pauses=(0.001, 0.01), clock=lambda: next(times))
    task = asyncio.create_task(watching.run())
    await eventually(lambda: each.starts >= 4)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert lines[:2] == [
        f"child ended with exit code 3; it starts again. Its log: {tmp_path / 'child.log'}",
        "child is up again.",
    ]


async def test_a_process_that_cannot_start_is_tried_again(tmp_path: Path) -> None:
    lines: list[str] = []
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    each = Process("child", [program], tmp_path / "child.log")
    await each.start()
    program.unlink()
    task = asyncio.create_task(Supervisor([each], lines.append, pauses=(0.001, 0.01)).run())
    await eventually(lambda: any("can't be started" in line for line in lines))
    program.write_text("#!/bin/sh\nsleep 600\n")
    program.chmod(0o755)
    await eventually(lambda: "child is up again." in lines)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await each.kill()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ConfigurationError("gateway is missing")])
async def test_a_process_that_cannot_write_its_files_is_tried_again(tmp_path: Path, error: Exception) -> None:
    class Written(Process):
        attempts = 0

        async def start(self, *, wait: bool = True) -> Self:
            self.attempts += 1
            if self.attempts in (2, 3):
                raise error
            return await super().start(wait=wait)

    lines: list[str] = []
    each = Written("child", ["sh", "-c", "exit 3"], tmp_path / "child.log")
    await each.start()
    task = asyncio.create_task(Supervisor([each], lines.append, pauses=(0.001, 0.01)).run())
    await eventually(lambda: "child is up again." in lines or task.done())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await each.kill()
    assert lines.count(f"child can't be started: {error}") == 2
