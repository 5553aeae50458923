"""The control API and each fault, as a client meets it."""

import asyncio
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.simulator.app import Simulator
from tests.waiting import eventually

COMPLETION = {"model": "base", "prompt": "x" * 100, "max_tokens": 20, "ignore_eos": True}


async def fault(client: httpx.AsyncClient, target: str, kind: str, **given: Any) -> None:
    answer = await client.put("/control/faults", json={target: {"kind": kind, **given}})
    assert answer.status_code == 200, answer.text
    assert answer.json()[target]["kind"] == kind


async def complete(client: httpx.AsyncClient, **given: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={**COMPLETION, **given})


async def call(client: httpx.AsyncClient, target: str) -> httpx.Response:
    return await (client.get("/metrics") if target == "metrics" else complete(client))


targets = pytest.mark.parametrize("target", ["metrics", "inference"])


@targets
async def test_hang_holds_calls_until_it_is_taken_away(client: httpx.AsyncClient, target: str) -> None:
    await fault(client, target, "hang")
    held = asyncio.ensure_future(call(client, target))
    done, _ = await asyncio.wait([held], timeout=0.1)
    assert not done
    await client.delete("/control/faults")
    assert (await held).status_code == 200


async def test_a_stopping_server_lets_go_of_what_hangs(client: httpx.AsyncClient, server: Simulator) -> None:
    await fault(client, "inference", "hang")
    held = asyncio.ensure_future(complete(client))
    await eventually(lambda: server.server.counts.requests == 1)
    await server.stop()
    assert (await held).status_code == 200


async def test_a_truncated_answer_looks_complete_to_http(client: httpx.AsyncClient, server: Simulator) -> None:
    await fault(client, "inference", "truncate")
    answer = await complete(client)
    assert answer.status_code == 200
    with pytest.raises(ValueError):
        answer.json()
    streamed = await complete(client, stream=True)
    assert "data: " in streamed.text
    assert "[DONE]" not in streamed.text
    state = server.server.state()
    assert (state["spoiled"], state["answered"], state["running"]) == (2, 0, 0)


@targets
@pytest.mark.parametrize(
    ("kind", "given", "status", "header"),
    [
        ("fail", {"status": 503, "retry_after": 7}, 503, ("retry-after", "7")),
        ("content-type", {"value": "text/html"}, 200, ("content-type", "text/html")),
    ],
)
async def test_a_fault_of_the_head(
    client: httpx.AsyncClient, target: str, kind: str, given: dict[str, Any], status: int, header: tuple[str, str]
) -> None:
    await fault(client, target, kind, **given)
    answer = await call(client, target)
    assert answer.status_code == status
    assert header in answer.headers.items()
    if target == "inference" and status != 200:
        assert answer.json()["error"]["code"] == status


@pytest.mark.parametrize(
    ("kind", "given", "size"), [("truncate", {"after": 1000}, 1000), ("huge", {"size": 3_000_000}, 3_000_000)]
)
async def test_a_fault_of_the_pages_size(
    client: httpx.AsyncClient, kind: str, given: dict[str, Any], size: int
) -> None:
    await fault(client, "metrics", kind, **given)
    answer = await client.get("/metrics")
    assert (answer.status_code, len(answer.content)) == (200, size)
    assert answer.text.startswith("# HELP")


@targets
async def test_close_before_the_head(client: httpx.AsyncClient, target: str) -> None:
    await fault(client, target, "close")
    with pytest.raises(httpx.RemoteProtocolError):
        await call(client, target)


@targets
@pytest.mark.parametrize(("kind", "given"), [("slow", {"latency": 0.2}), ("trickle", {"interval": 0.1, "piece": 4000})])
async def test_what_is_slow_is_complete(
    client: httpx.AsyncClient, target: str, kind: str, given: dict[str, Any]
) -> None:
    whole = await call(client, target)
    await fault(client, target, kind, **given)
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await call(client, target)
    assert answer.status_code == 200
    assert abs(len(answer.content) - len(whole.content)) < 200
    assert kind == "trickle" or loop.time() - began >= 0.2


@targets
async def test_a_fault_for_the_next_calls_only(client: httpx.AsyncClient, target: str) -> None:
    await fault(client, target, "fail", count=2)
    assert [(await call(client, target)).status_code for _ in range(3)] == [500, 500, 200]


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        (
            "PUT",
            "faults",
            {"metrics": {"kind": "hang"}, "inference": {"kind": "huge"}},
            "'huge' is valid for metrics only",
        ),
        ("DELETE", "faults?target=all", None, "target: 'all' is unknown"),
        ("PUT", "metrics", {"waiting": 3, "series": {"a b": 1}}, "`key` in `$.series`"),
    ],
)
async def test_what_cant_be_used_is_refused_and_changes_nothing(
    client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None, message: str
) -> None:
    await fault(client, "metrics", "slow", latency=0.01)
    await client.put("/control/metrics", json={"waiting": 7})
    before = [(await client.get(f"/control/{text}")).json() for text in ("faults", "metrics")]
    answer = await client.request(method, f"/control/{path}", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert [(await client.get(f"/control/{each_text}")).json() for each_text in ("faults", "metrics")] == before


async def test_close_in_the_middle_of_a_stream(client: httpx.AsyncClient, server: Simulator) -> None:
    await fault(client, "inference", "close", after=100)
    with pytest.raises(httpx.RemoteProtocolError):
        await complete(client, stream=True)
    await eventually(lambda: server.server.state()["spoiled"] == 1)


async def test_faults_are_set_and_taken_away_by_target(client: httpx.AsyncClient) -> None:
    await client.put("/control/faults", json={"metrics": {"kind": "fail"}, "inference": {"kind": "fail"}})
    await client.delete("/control/faults?target=metrics")
    assert (await client.get("/control/faults")).json() == {"metrics": None, "inference": {"kind": "fail"}}
    await client.put("/control/faults", json={"inference": None})
    assert (await client.get("/control/faults")).json() == {"metrics": None, "inference": None}


async def test_pinned_metrics_show_on_the_page_until_they_are_taken_away(client: httpx.AsyncClient) -> None:
    for pins, waiting in (({"waiting": 10, "kv_usage": 0.4}, 10), ({"running": 3}, 0)):
        await client.put("/control/metrics", json=pins)
        assert (await client.get("/control/metrics")).json() == pins
        assert await queue(client) == waiting
    await client.put("/control/metrics", json={"waiting": 10})
    await client.delete("/control/metrics")
    assert await queue(client) == 0


async def queue(client: httpx.AsyncClient) -> float:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return next(family.samples[0].value for family in families if family.name == "vllm:num_requests_waiting")


async def test_state_counts_what_happened(client: httpx.AsyncClient) -> None:
    await complete(client)
    await complete(client, model="none")
    await client.get("/metrics")
    state = (await client.get("/control/state")).json()
    assert (state["requests"], state["answered"], state["refused"], state["scrapes"]) == (2, 2, 1, 1)
    assert (state["running"], state["waiting"], state["kv_used"], state["kv_cached"]) == (0, 0, 0, 2)
    assert (state["prompt_tokens"], state["generation_tokens"]) == (25, 20)
    assert state["finished"] == {"stop": 0, "length": 1, "abort": 0}
    assert (state["name"], state["engine"]) == ("under-test", "vllm")
