"""One running picker follows its configuration: good ones, bad ones, and ones that it alone can't use."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from services.picker.app import PickerService
from shared.service.process import Service
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import OddServer, Owner, answer, collector, endpoint
from tests.protocol.watcher.harness import watcher
from tests.waiting import TIMEOUT, eventually

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
QUEUE = HEAD + "plugins: [{type: queue-scorer}]\n"
RANDOM = HEAD + "plugins: [{type: random-picker}]\n"
EXPERIMENTAL = HEAD + (
    "plugins: [{type: queue-scorer}, {type: dcgm-data-source}, {type: dcgm-extractor}]\n"
    "dataLayer: {sources: [{pluginRef: dcgm-data-source, extractors: [{pluginRef: dcgm-extractor}]}]}\n"
)
BAD = HEAD + "plugins: [{type: no-such-scorer}]\n"


@pytest.fixture
async def service(nats: NatsServer, owner: Owner) -> AsyncIterator[PickerService]:
    """A picker that runs what is published: a queue scorer."""
    await owner.publish([endpoint("a", 8000)], QUEUE)
    async with serving(picker(nats.url)) as started:
        await eventually(lambda: plugins(started) >= {"queue-scorer"} and started.config.accepted == 1, "the first")
        yield started


def plugins(service: PickerService) -> set[str]:
    """The types that decide."""
    return {spec.kind.TYPE for spec in service.handler.pipeline.config.plugins.values()}


async def asked(service: Service, path: str) -> httpx.Response:
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{service.admin_port}", trust_env=False, timeout=TIMEOUT
    ) as client:
        return await client.get(path)


async def told(service: PickerService) -> tuple[str | None, str | None, dict[str, float]]:
    """What is amiss with the configuration: as readiness has it, as the state has it, and what the metric counts."""
    ready: dict[str, Any] = (await asked(service, "/readyz")).json()
    assert ready["ready"], ready
    state = (await asked(service, "/debug/state")).json()
    name = "pointsman_picker_config_loads_total"
    counts = {result: service.registry.get_sample_value(name, {"result": result}) or 0.0 for result in RESULTS}
    return ready["notes"].get("configuration"), state["config"]["problem"], counts


RESULTS = ("taken", "refused")


async def told_everywhere(service: Service, configurations: list[dict[str, str]]) -> None:
    """A process says of itself, wherever it can be asked, that it uses these."""

    async def tells() -> Any:
        ready, state = (await asked(service, "/readyz")).json(), (await asked(service, "/debug/state")).json()
        counted = [
            service.registry.get_sample_value("pointsman_config_info", configuration)
            for configuration in configurations
        ]
        return ready["configurations"] == state["configurations"] == configurations and counted == [1.0]

    await eventually(tells, f"{configurations} of {service!r}")


async def test_a_bad_configuration_leaves_the_good_one_and_is_told_everywhere(
    service: PickerService, owner: Owner
) -> None:
    assert await told(service) == (None, None, {"taken": 1, "refused": 0})
    running = service.handler.pipeline
    with capture_logs() as logs:
        await owner.publish([endpoint("a", 8000)], BAD)
        await eventually(lambda: bool(service.config.problem), "the refusal")
    (line,) = [entry for entry in logs if entry["event"] == "config.refused"]
    assert "'no-such-scorer' is no plugin" in line["problems"][0]
    note, problem, counts = await told(service)
    assert note == problem == "\n".join(line["problems"])
    assert counts == {"taken": 1, "refused": 1}
    assert service.handler.pipeline is running
    await owner.publish([endpoint("a", 8000)], RANDOM)
    await eventually(lambda: "random-picker" in plugins(service), "the mended one")
    assert await told(service) == (None, None, {"taken": 2, "refused": 1})
    await owner.publish([endpoint("a", 8000)])
    await eventually(lambda: "token-load-scorer" in plugins(service), "the default")


async def test_experimental_plugins_are_refused_unless_they_are_allowed(nats: NatsServer, owner: Owner) -> None:
    await owner.publish([endpoint("a", 8000)], EXPERIMENTAL)
    async with (
        serving(picker(nats.url)) as refusing,
        serving(picker(nats.url, allow_experimental_plugins=True)) as taking,
    ):
        await eventually(lambda: "dcgm-extractor" in plugins(taking), "the picker that may")
        await eventually(lambda: refusing.config.refused == 1, "the picker that may not")
        assert "allow-experimental-plugins" in refusing.readiness.notes()["configuration"]
        assert "token-load-scorer" in plugins(refusing), "the default, which it began with"


async def test_a_picker_follows_a_file_of_its_own_whatever_is_published(
    nats: NatsServer, owner: Owner, tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(RANDOM)
    await owner.publish([endpoint("a", 8000)], QUEUE)
    async with serving(picker(nats.url, config_file=str(path))) as service:
        await eventually(lambda: service.replica.synced, "the facts")
        assert "random-picker" in plugins(service)
        path.write_text(BAD)
        await eventually(lambda: bool(service.config.problem), "the refusal")
        note, problem, counts = await told(service)
        assert note == problem
        assert f"{path}: plugins[0].type: 'no-such-scorer'" in str(note)
        assert counts == {"taken": 0, "refused": 1}
        path.write_text(QUEUE)
        await eventually(lambda: "queue-scorer" in plugins(service), "the mended file")
        assert await told(service) == (None, None, {"taken": 1, "refused": 1})


async def test_every_tier_tells_the_origin_and_revision_of_the_configuration_in_use(
    nats: NatsServer, tmp_path: Path
) -> None:
    files = {name: tmp_path / f"{name}.yaml" for name in ("endpoints", "config")}
    files["endpoints"].write_text("endpoints: [{name: a, address: 127.0.0.1, port: 9}]\n")
    files["config"].write_text(QUEUE)
    settings: dict[str, Any] = {f"{name}_file": str(path) for name, path in files.items()}
    async with (
        watcher(nats.url, **settings) as source,
        collector(nats.url) as scraping,
        serving(picker(nats.url)) as deciding,
    ):
        tiers: tuple[Service, ...] = (source, scraping, deciding)
        for text in (QUEUE, RANDOM):
            files["config"].write_text(text)
            revision = hashlib.sha256(text.encode()).hexdigest()[:12]
            expected = [{"pool": "default/default", "origin": str(files["config"]), "revision": revision}]
            for tier in tiers:
                await told_everywhere(tier, expected)


async def test_a_scored_metric_that_has_vanished_from_all_servers_is_a_note(nats: NatsServer, owner: Owner) -> None:
    both = answer(b"vllm:num_requests_waiting 1\nvllm:num_requests_running 2\n")
    page = answer(b"vllm:num_requests_running 2\n")
    config = QUEUE + "dataLayer: {staleMetrics: {after: 500ms}}\n"
    async with OddServer(both) as server:
        await owner.publish([endpoint("a", server.port)], config)
        async with collector(nats.url), serving(picker(nats.url)) as deciding:
            await eventually(lambda: deciding.view.columns.frames > 5, "values")
            assert "metrics" not in deciding.readiness.notes()
            server.behaviour = page

            async def noted() -> bool:
                page = (await asked(deciding, "/readyz")).json()
                read = "WaitingQueueSize/core-metrics-extractor, read by queue-scorer"
                return page["ready"] and read in page["notes"].get("metrics", "")

            await eventually(noted, "the note")
            server.behaviour = both
            await eventually(lambda: "metrics" not in deciding.readiness.notes(), "its end")
