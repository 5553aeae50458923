"""One running collector follows a configuration that it can't use, and a file of its own."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from services.collector.app import CollectorService
from services.collector.settings import CollectorSettings
from shared.attributes import WAITING_QUEUE_SIZE
from shared.config import Invalid
from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames, OddServer, Owner, answer, collector, endpoint
from tests.waiting import TIMEOUT, eventually

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
PAGE = answer(b"vllm:num_requests_waiting 1\nmine 8\nother 9\n")


def reading(metric: str) -> str:
    """A configuration by which this metric is the length of the queue."""
    return HEAD + (
        "plugins: [{type: metrics-data-source}, {type: core-metrics-extractor, parameters: "
        f"{{defaultEngine: mine, engineConfigs: [{{name: mine, queuedRequestsSpec: '{metric}'}}]}}}}]\n"
    )


async def test_a_collector_follows_a_file_of_its_own_whatever_is_published(
    nats: NatsServer, owner: Owner, frames: Frames, tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(reading("mine"))
    async with OddServer(PAGE) as server, collector(nats.url, config_file=str(path)) as service:
        await owner.publish([endpoint("a", server.port)], reading("vllm:num_requests_waiting"))
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 8.0, "the file's engine")
        path.write_text(reading("mine{"))
        await eventually(lambda: bool(service.config.problem), "the refusal")
        assert f"{path}: plugins[1].parameters" in service.readiness.notes()["configuration"]
        assert service.state()["config"] == {
            "origin": str(path),
            "taken": 0,
            "refused": 1,
            "problem": service.config.problem,
        }
        path.write_text(reading("other"))
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 9.0, "the mended file's engine")
        assert service.readiness.notes() == {}


async def test_a_new_configuration_is_applied_and_a_bad_one_refused(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    page = answer(b"vllm:num_requests_waiting 1\nmine 8\n")
    mine = HEAD + (
        "plugins: [{type: metrics-data-source}, {type: core-metrics-extractor, parameters: "
        "{defaultEngine: mine, engineConfigs: [{name: mine, queuedRequestsSpec: mine}]}}]\n"
    )
    async with OddServer(page) as server, collector(nats.url) as service:
        here = [endpoint("a", server.port)]
        await owner.publish(here)
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 1.0, "the built-in default")
        await owner.publish(here, mine)
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 8.0, "the configured engine")
        before = len(server.requests)
        await owner.publish(here, mine.replace("queuedRequestsSpec: mine", "queuedRequestsSpec: 'mine{'"))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.admin_port}", timeout=TIMEOUT) as client:
            await eventually(lambda: bool(service.state()["config"]["problem"]), "the refusal")
            state = (await client.get("/debug/state")).json()
            assert "queuedRequestsSpec: 'mine{'" in state["config"]["problem"]
            metrics = (await client.get("/metrics")).text
            assert 'pointsman_collector_config_reloads_total{result="refused"} 1.0' in metrics
            (described,) = (await client.get("/debug/endpoints")).json()
        await eventually(lambda: len(server.requests) >= before + 3, "scrapes that go on")
        assert described["attributes"]["WaitingQueueSize"]["value"] == 8.0
        assert described["sources"][0]["engine"] == "mine"
        assert described["sources"][0]["specifications"] == [
            {"specification": "mine", "attribute": "WaitingQueueSize", "outcome": "found"}
        ]
        await owner.publish(here)
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 1.0, "the default again")
        assert service.state()["config"]["problem"] is None


async def test_flags_that_lack_something_wait_for_a_configuration_that_they_suit(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    """The first configuration needs the KV cache's use; the second one doesn't."""
    needs, suits = [HEAD + f"plugins: [{{type: {kind}}}]\n" for kind in ("kv-cache-utilization-scorer", "queue-scorer")]
    async with OddServer(answer(b"mine 3\n")) as server, collector(nats.url, total_queued_requests_metric="mine") as it:
        await owner.publish([endpoint("a", server.port)], needs)
        flag = "--kv-cache-usage-percentage-metric"
        await eventually(lambda: flag in it.readiness.notes().get("configuration", ""), "the refusal")
        await owner.publish([endpoint("a", server.port)], suits)
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 3.0, "the queue")
        assert "configuration" not in it.readiness.notes()


def test_flags_that_do_not_suit_the_configuration_file_end_the_start(tmp_path: Any) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEAD + "plugins: [{type: running-requests-size-scorer}]\n")
    with pytest.raises(Invalid) as caught:
        CollectorService(CollectorSettings(config_file=str(file), total_queued_requests_metric="mine"))
    assert caught.value.lines()[0].startswith(f"{file}: --total-running-requests-metric: nothing gives RunningRequests")
