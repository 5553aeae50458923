"""From files to what a reader of the bus sees."""

import asyncio
from pathlib import Path

from prometheus_client import generate_latest

from services.watcher.app import WatcherService
from shared.bus import jetstream
from shared.bus.subjects import Subjects
from shared.config.defaults import revision
from shared.model import Configuration, Endpoint, Objective, Pool
from shared.service.configured import Configured
from tests.nats import NatsServer
from tests.protocol.watcher.harness import endpoints_text, reader, replace, watcher
from tests.waiting import TIMEOUT, eventually

OBJECTIVE = """
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -1, poolRef: {name: default}}
"""
CONFIGURATION = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: file-discovery
  parameters: {path: %s}
dataLayer:
  discovery: {pluginRef: file-discovery}
"""


def metric(service: WatcherService, name: str) -> float:
    lines = generate_latest(service.registry).decode().splitlines()
    [value] = [float(line.split()[-1]) for line in lines if line.split(" ")[0] == name]
    return value


REWRITE = """apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: r%d}
spec:
  poolRef: {name: default}
  rules:
"""


async def test_what_the_file_states_is_published(nats: NatsServer, tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(endpoints_text("a") + "---" + OBJECTIVE)
    async with reader(nats.url) as seen, watcher(nats.url, endpoints_file=str(path)) as service:
        await seen.sees("a")
        assert seen.facts("endpoint") == {
            "default/a": Endpoint(id="default/a", name="a", address="10.0.0.98", port=8000)
        }
        assert seen.facts("objective") == {"batch": Objective(name="batch", priority=-1)}
        assert seen.facts("pool") == {"": Pool(name="default")}
        assert seen.facts("config") == {}
        assert service.configurations() == (Configured("default/default", "built-in default", revision("")),)
        await eventually(lambda: service.readiness.ready, "ready")
        assert metric(service, 'pointsman_watcher_facts{kind="endpoint"}') == 1.0
        # what NATS didn't acknowledge in time is written again
        written = metric(service, "pointsman_watcher_facts_written_total")
        assert written == 3.0 or service.leadership.publisher.establishments > 1
        assert metric(service, "pointsman_watcher_leader") == 1.0
        assert metric(service, "pointsman_bus_connected") == 1.0
        ghost = Subjects().fact("default_default.endpoint.ghost")
        await jetstream.put(seen.bus, ghost, b"garbage", timeout=TIMEOUT)
        await eventually(lambda: metric(service, "pointsman_bus_malformed_messages_total") == 1.0, "counted")


async def test_a_change_is_noticed_without_waiting_for_the_next_look(nats: NatsServer, tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(endpoints_text("a"))
    async with reader(nats.url) as seen, watcher(nats.url, endpoints_file=str(path), rescan_interval=600.0):
        await seen.sees("a")
        for _ in range(50):  # the watch may begin a moment after the first look
            replace(path, endpoints_text("b"))
            await asyncio.sleep(0.1)
            if seen.endpoints == ["b"]:
                break
        await seen.sees("b")


async def test_a_bad_file_keeps_the_last_good_state_and_says_so(nats: NatsServer, tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(endpoints_text("a"))
    async with reader(nats.url) as seen, watcher(nats.url, endpoints_file=str(path)) as service:
        await seen.sees("a")
        replace(path, "endpoints:\n- {name: b, address: 10.0.0.2, port: 0}\n")
        await eventually(lambda: metric(service, "pointsman_watcher_rejections_total") == 1.0, "a problem")
        assert service.state()["problems"] == {
            str(path): ["endpoints[0].port: 0 isn't a port; a number from 1 to 65535 is expected (line 2)"]
        }
        assert metric(service, "pointsman_watcher_bad_files") == 1.0
        assert metric(service, "pointsman_watcher_last_good_age_seconds") > 0.0
        assert seen.endpoints == ["a"]
        assert service.readiness.ready
        replace(path, endpoints_text("b"))
        await seen.sees("b")
        assert service.state()["problems"] == {}
        assert metric(service, "pointsman_watcher_last_good_age_seconds") == 0.0


async def test_a_status_has_the_first_warnings_of_all_files_and_the_number_of_the_others(
    nats: NatsServer, tmp_path: Path
) -> None:
    (tmp_path / "endpoints.yaml").write_text(endpoints_text("a"))
    for number in range(3):
        rewrite = REWRITE % number + "  - {matches: [{}], targets: [{modelRewrite: m}]}\n" * 8
        (tmp_path / f"rewrite{number}.yaml").write_text(rewrite)
    async with watcher(nats.url, endpoints_file=str(tmp_path)) as service:
        *first, last = service.status().configuration_warnings
    assert [text.partition(": ")[0] for text in first] == [
        str(tmp_path / f"rewrite{at}.yaml") for at in [0] * 8 + [1] * 2
    ]
    assert last == "… and 14 more"


async def test_the_configuration_is_published_and_a_bad_one_keeps_the_last(nats: NatsServer, tmp_path: Path) -> None:
    path, config = tmp_path / "endpoints.yaml", tmp_path / "picker.yaml"
    path.write_text(endpoints_text("a"))
    good = CONFIGURATION % path
    config.write_text(good)
    async with (
        reader(nats.url) as seen,
        watcher(nats.url, endpoints_file=str(path), config_file=str(config)) as service,
    ):
        published = {"": Configuration(text=good, origin=str(config))}
        await eventually(lambda: seen.facts("config") == published, "the configuration")
        replace(config, good + "schedulingProfiles:\n- {name: p, plugins: [{pluginRef: nobody}]}\n")
        await eventually(lambda: bool(service.reconcilers[0].desired.problems()), "a problem")
        assert "nobody" in service.state()["problems"][str(config)][0]
        assert seen.facts("config") == published
        replace(config, good + "# better\n")
        published = {"": Configuration(text=good + "# better\n", origin=str(config))}
        await eventually(lambda: seen.facts("config") == published, "the new configuration")
        in_use = Configured("default/default", str(config), revision(good + "# better\n"))
        assert service.configurations() == (in_use,)


async def test_the_configurations_file_discovery_names_the_endpoints_file(nats: NatsServer, tmp_path: Path) -> None:
    each, other, config = tmp_path / "one.yaml", tmp_path / "other.yaml", tmp_path / "picker.yaml"
    each.write_text(endpoints_text("a"))
    config.write_text(CONFIGURATION % each)
    async with reader(nats.url) as seen, watcher(nats.url, config_file=str(config)) as service:
        await seen.sees("a")
        replace(config, CONFIGURATION % other)
        await eventually(lambda: bool(service.reconcilers[0].desired.problems()), "a problem")
        assert seen.endpoints == ["a"]
        other.write_text(endpoints_text("b"))
        await seen.sees("b")
        assert service.state()["files"] == sorted([str(config), str(other)])
