"""A plan becomes processes with the right flags, and files that say what the plan says."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
import yaml

from pointsman.local.ports import LOOPBACK, PortTaken
from pointsman.local.process import Process
from pointsman.local.stack import ENGINE_LABEL, LocalStack, ModelServer, SimulatorPlan, StackPlan, simulators


def flags(process: Process) -> dict[str, str]:
    """The flags of a tier's command line: after `python -m pointsman TIER`."""
    words = process.command[4:]
    return dict(zip(words[::2], words[1::2], strict=True))


Build: TypeAlias = Callable[[StackPlan], LocalStack]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """Makes stacks that are never started, and lets go of their ports."""
    with ExitStack() as ends:

        def make(plan: StackPlan) -> LocalStack:
            stack = LocalStack(plan, tmp_path)
            ends.callback(stack.close)
            return stack

        yield make


@pytest.fixture
def stack(build: Build) -> LocalStack:
    plan = StackPlan(
        simulators=(
            SimulatorPlan(name="fast", flags={"speed": 2}),
            SimulatorPlan(name="other", engine="sglang", labels={"zone": "b"}),
        ),
        pickers=3,
        configuration="kind: EndpointPickerConfig\n",
        resources="kind: InferencePool\n",
        pool_name="chat",
        flags={"picker": {"drain-timeout": "5s"}, "simulator": {"slots": 4}},
    )
    return build(plan)


def test_processes_have_the_names_of_their_tier_and_number(stack: LocalStack) -> None:
    assert [process.name for process in stack.processes] == [
        *("nats", "fast", "other", "watcher-1"),
        *("collector-1", "collector-2", "picker-1", "picker-2", "picker-3", "envoy"),
    ]
    assert stack["picker-2"] is stack.pickers[1]
    with pytest.raises(KeyError, match="'picker-9' isn't one of nats, fast"):
        stack["picker-9"]


def test_every_tier_is_told_where_nats_is_and_pickers_serve_where_envoy_looks_for_them(stack: LocalStack) -> None:
    for process in [*stack.watchers, *stack.collectors, *stack.pickers]:
        common = {"--nats-url": stack.nats.url, "--pool-name": "chat", "--id": process.name}
        assert flags(process).items() >= (common | {"--admin-port": str(process.http.port)}).items()
    assert stack.envoy is not None
    assert stack.envoy.places.pickers == tuple(picker.address for picker in stack.pickers)
    for picker in stack.pickers:
        ports = {"--grpc-port": str(picker.address.port), "--grpc-health-port": str(picker.address.health_port)}
        assert flags(picker).items() >= (ports | {"--secure-serving": "false", "--drain-timeout": "5s"}).items()


def test_a_server_s_own_flags_go_before_those_of_its_tier(build: Build) -> None:
    simulator_plan = SimulatorPlan(name="small", flags={"slots": 2})
    built = build(StackPlan(simulators=(simulator_plan,), flags={"simulator": {"slots": 4, "speed": 3}}))
    given = flags(built.simulators[0])
    assert (given["--slots"], given["--speed"], given["--engine"]) == ("2", "3", "vllm")


def test_the_endpoints_file_lists_the_servers_and_the_plan_s_resources(stack: LocalStack) -> None:
    stack.write_endpoints()
    endpoints, resource = yaml.safe_load_all(stack.endpoints_file.read_text(encoding="utf-8"))
    assert resource == {"kind": "InferencePool"}
    fast, other = stack.simulators
    assert endpoints == {
        "endpoints": [
            {"name": "fast", "address": LOOPBACK, "port": fast.http.port, "labels": {ENGINE_LABEL: "vllm"}},
            {
                "name": "other",
                "address": LOOPBACK,
                "port": other.http.port,
                "labels": {ENGINE_LABEL: "sglang", "zone": "b"},
            },
        ]
    }
    stack.write_endpoints([other])
    assert [each["name"] for each in next(yaml.safe_load_all(stack.endpoints_file.read_text()))["endpoints"]] == [
        "other"
    ]


def test_every_process_has_ports_of_its_own(build: Build) -> None:
    first, second = build(StackPlan()), build(StackPlan())
    ports = [
        port
        for built in (first, second)
        for port in [
            built.nats.port,
            *(
                simulator.http.port
                for simulator in [*built.simulators, *built.watchers, *built.collectors, *built.pickers]
            ),
            *(port for picker in built.pickers for port in (picker.address.port, picker.address.health_port)),
        ]
    ]
    assert len(ports) == len(set(ports))


def test_a_wanted_port_that_is_taken_is_reported_before_anything_starts(build: Build) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} of 127.0.0.1, wanted for Envoy's listener"):
            build(StackPlan(port=port))


def test_servers_that_run_already_are_listed_and_others_need_not_be(build: Build) -> None:
    server = ModelServer(name="gpu", address="10.0.0.1", port=8000)
    hidden = SimulatorPlan(name="hidden", listed=False)
    built = build(StackPlan(simulators=(SimulatorPlan(name="shown"), hidden), servers=(server,)))
    [document] = yaml.safe_load_all(built.files()[built.endpoints_file])
    assert [entry["name"] for entry in document["endpoints"]] == ["shown", "gpu"]
    assert document["endpoints"][1] == {"name": "gpu", "address": "10.0.0.1", "port": 8000}


def test_files_of_the_user_are_followed_where_they_are(build: Build, tmp_path: Path) -> None:
    endpoints, configuration = tmp_path / "own" / "pool.yaml", tmp_path / "own" / "picker.yaml"
    built = build(StackPlan(simulators=(), endpoints_file=endpoints, config_file=configuration))
    given = flags(built.watchers[0])
    assert (given["--endpoints-file"], given["--config-file"]) == (str(endpoints), str(configuration))
    assert {file.name for file in built.files()} == {"nats.conf", "envoy.yaml"}


def test_clients_reach_another_address_than_the_processes_each_other(build: Build) -> None:
    envoy = build(StackPlan(host="0.0.0.0")).envoy
    assert envoy is not None
    assert envoy.url == f"http://127.0.0.1:{envoy.places.port}"
    [document] = (yaml.safe_load(text) for text in envoy.files().values())
    addresses = {each["name"]: each["address"]["socket_address"] for each in document["static_resources"]["listeners"]}
    assert (addresses["gateway"]["address"], addresses["stats"]["address"]) == ("0.0.0.0", LOOPBACK)


def test_a_console_has_a_port_for_its_page(build: Build) -> None:
    built = build(StackPlan(consoles=1))
    [console] = built.consoles
    given = flags(console)
    assert console.page == f"http://{given['--console-host']}:{given['--console-port']}"
    assert console.url == f"http://{given['--admin-host']}:{given['--admin-port']}" != console.page
    assert list(built.processes)[-2:] == [console, built.envoy]


def test_services_do_not_inherit_settings_from_the_environment(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "POINTSMAN_LOG_LEVEL", "debug")
    picker = build(StackPlan()).pickers[0]
    assert picker.environment is not None
    assert not any(name.startswith("POINTSMAN_") for name in picker.environment)
    assert picker.environment["PATH"] == os.environ["PATH"]


def test_equal_simulators_are_numbered_and_share_their_flags() -> None:
    assert [(simulator.name, simulator.flags) for simulator in simulators(2, kv_blocks=10)] == [
        ("model-1", {"kv-blocks": 10}),
        ("model-2", {"kv-blocks": 10}),
    ]
