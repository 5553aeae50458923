"""The control API and each fault, as a client meets it."""

import asyncio
import json
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


async def test_a_client_that_gives_up_on_a_hanging_server_is_an_abort(
    client: httpx.AsyncClient, server: Simulator
) -> None:
    await fault(client, "inference", "hang")
    with pytest.raises(httpx.ReadTimeout):
        await client.post("/v1/completions", json=COMPLETION, timeout=0.05)
    await eventually(lambda: server.server.state().aborted == 1)


async def test_a_stopping_server_lets_go_of_what_hangs(client: httpx.AsyncClient, server: Simulator) -> None:
    await fault(client, "inference", "hang")
    held = asyncio.ensure_future(complete(client))
    await eventually(lambda: server.server.tally.requests == 1)
    await server.stop()
    assert (await held).status_code == 200


@targets
async def test_fail_answers_with_its_status(client: httpx.AsyncClient, target: str) -> None:
    status = 503
    await fault(client, target, "fail", status=status, retry_after=7)
    answer = await call(client, target)
    assert answer.status_code == status
    assert answer.headers["retry-after"] == "7"
    if target == "inference":
        assert answer.json()["error"]["code"] == status


@targets
async def test_slow_delays_the_answer(client: httpx.AsyncClient, target: str) -> None:
    await fault(client, target, "slow", latency=0.2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await call(client, target)).status_code == 200
    assert loop.time() - began >= 0.2


async def test_a_slow_engine_takes_longer_for_everything(client: httpx.AsyncClient, server: Simulator) -> None:
    await fault(client, "inference", "slow", factor=30)
    assert (await complete(client)).status_code == 200
    counters = server.server.engine.counters
    assert counters.inter_token.sum == pytest.approx(19 * 30 * 0.015 / 50)
    await client.delete("/control/faults")
    assert (await complete(client)).status_code == 200
    assert counters.inter_token.sum == pytest.approx(19 * 31 * 0.015 / 50)


@targets
async def test_what_trickles_is_complete(client: httpx.AsyncClient, target: str) -> None:
    whole = await call(client, target)
    await fault(client, target, "trickle", interval=0.0, piece=100)
    answer = await call(client, target)
    assert answer.status_code == 200
    assert abs(len(answer.content) - len(whole.content)) < 200


async def test_a_streamed_answer_trickles_too(client: httpx.AsyncClient) -> None:
    whole = await complete(client)
    await fault(client, "inference", "trickle", interval=0.0, piece=50)
    *events, done = (await complete(client, stream=True)).text.split("\n\n")[:-1]
    assert done == "data: [DONE]"
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == whole.json()["choices"][0]["text"]


async def test_a_truncated_page_ends_in_the_middle_of_a_line(client: httpx.AsyncClient) -> None:
    whole = await client.get("/metrics")
    await fault(client, "metrics", "truncate")
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert not answer.text.endswith("\n")
    assert len(answer.content) == pytest.approx(len(whole.content) / 2, rel=0.02)
    await fault(client, "metrics", "truncate", after=1000)
    assert len((await client.get("/metrics")).content) == 1000


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
    assert (state.spoiled, state.answered, state.running) == (2, 0, 0)


@targets
async def test_close_before_the_head(client: httpx.AsyncClient, target: str) -> None:
    await fault(client, target, "close")
    with pytest.raises(httpx.RemoteProtocolError):
        await call(client, target)


async def test_close_in_the_middle_of_a_stream(client: httpx.AsyncClient, server: Simulator) -> None:
    await fault(client, "inference", "close", after=100)
    received: list[bytes] = []

    async def read() -> None:
        async with client.stream("POST", "/v1/completions", json={**COMPLETION, "stream": True}) as answer:
            async for piece in answer.aiter_raw():
                received.append(piece)

    with pytest.raises(httpx.RemoteProtocolError):
        await read()
    assert len(b"".join(received)) == 100
    await eventually(lambda: server.server.state().running == 0)
    assert server.server.state().spoiled == 1
    assert server.server.state().aborted == 0


async def test_a_huge_page_has_the_size_that_was_asked_for(client: httpx.AsyncClient) -> None:
    await fault(client, "metrics", "huge", size=3_000_000)
    answer = await client.get("/metrics")
    assert len(answer.content) == 3_000_000
    assert answer.text.startswith("# HELP")


@targets
async def test_a_wrong_content_type(client: httpx.AsyncClient, target: str) -> None:
    await fault(client, target, "content-type", value="text/html")
    answer = await call(client, target)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html")


@targets
async def test_a_fault_for_the_next_calls_only(client: httpx.AsyncClient, target: str) -> None:
    await fault(client, target, "fail", count=2)
    assert [(await call(client, target)).status_code for _ in range(3)] == [500, 500, 200]


async def test_faults_are_set_and_taken_away_by_target(client: httpx.AsyncClient) -> None:
    await client.put("/control/faults", json={"metrics": {"kind": "fail"}, "inference": {"kind": "fail"}})
    await client.delete("/control/faults?target=metrics")
    assert (await client.get("/control/faults")).json() == {"metrics": None, "inference": {"kind": "fail"}}
    await client.put("/control/faults", json={"inference": None})
    assert (await client.get("/control/faults")).json() == {"metrics": None, "inference": None}


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("PUT", "faults", {"metrics": {"kind": "explode"}}, "Invalid value 'explode' - at `$.metrics.kind`"),
        ("PUT", "faults", {"metrics": {"kind": "fail", "status": 200}}, "`int` >= 400 - at `$.metrics.status`"),
        ("PUT", "faults", {"scrapes": {"kind": "hang"}}, "unknown field `scrapes`"),
        (
            "PUT",
            "faults",
            {"metrics": {"kind": "hang"}, "inference": {"kind": "huge"}},
            "'huge' is a fault of metrics only",
        ),
        ("DELETE", "faults?target=all", None, "target: 'all' is unknown"),
        ("PUT", "metrics", {"waiting": 3, "kv_usage": 1.5}, "$.kv_usage"),
        ("PUT", "metrics", {"waiting": 3, "queue": 1}, "`queue`"),
        ("PUT", "metrics", {"waiting": 3, "series": {"a b": 1}}, "`key` in `$.series`"),
    ],
)
async def test_what_cant_be_used_is_refused_and_changes_nothing(
    client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None, message: str
) -> None:
    await fault(client, "metrics", "slow", latency=0.01)
    await client.put("/control/metrics", json={"waiting": 7})
    before = [(await client.get(f"/control/{one}")).json() for one in ("faults", "metrics")]
    answer = await client.request(method, f"/control/{path}", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert [(await client.get(f"/control/{one}")).json() for one in ("faults", "metrics")] == before


async def test_pinned_metrics_show_on_the_page(client: httpx.AsyncClient) -> None:
    await client.put("/control/metrics", json={"waiting": 10, "kv_usage": 0.4, "running_adapters": ["tuned"]})
    assert await gauges(client) == {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 10,
        "vllm:kv_cache_usage_perc": 0.4,
    }
    assert (await client.get("/control/metrics")).json() == {
        "waiting": 10,
        "kv_usage": 0.4,
        "running_adapters": ["tuned"],
    }
    await client.put("/control/metrics", json={"running": 3})
    assert await gauges(client) == {
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
    }
    await client.delete("/control/metrics")
    assert set((await gauges(client)).values()) == {0}


async def gauges(client: httpx.AsyncClient) -> dict[str, float]:
    wanted = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return {one.name: one.samples[0].value for one in families if one.name in wanted}


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
