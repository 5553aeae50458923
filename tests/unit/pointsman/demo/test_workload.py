"""The requests of the demo: the same for the same seed, and of the workload that is promised."""

import json
from collections import Counter
from functools import cache
from typing import Any

import pytest

from pointsman.demo.plan import ADAPTER, BASE, MODELS
from pointsman.demo.workload import Request, Workload


@cache
def some(seed: int, count: int = 3000, rate: float = 20.0) -> tuple[Request, ...]:
    workload = Workload(rate, seed)
    return tuple(workload.next() for _ in range(count))


def content(request: Request) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(request.body)
    return parsed


def text(request: Request) -> str:
    parsed = content(request)
    return str(parsed["messages"][0]["content"] if request.kind == "chat" else parsed["prompt"])


def test_the_same_seed_makes_the_same_requests() -> None:
    workload = Workload(20.0, 7)
    assert tuple(workload.next() for _ in range(50)) == some(7, 50)
    assert some(7, 50) != some(8, 50)


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    """Exponential waits: the mean is 1/rate, and so is the standard deviation."""
    waits = [request.wait for request in some(1, rate=50.0)]
    mean = sum(waits) / len(waits)
    deviation = (sum((wait - mean) ** 2 for wait in waits) / len(waits)) ** 0.5
    assert mean == pytest.approx(0.02, rel=0.1)
    assert deviation == pytest.approx(0.02, rel=0.1)


def test_there_are_chats_and_completions_streamed_and_whole_for_both_models() -> None:
    kinds = Counter((request.kind, request.stream, request.model) for request in some(1))
    assert len(kinds) == 8
    assert min(kinds.values()) > 50
    assert {model for _, _, model in kinds} == {BASE, ADAPTER} == set(MODELS)


def test_a_body_says_what_the_request_says() -> None:
    for request in some(3, 200):
        body = content(request)
        assert body["model"] == request.model
        assert body["max_tokens"] == request.tokens
        assert body["ignore_eos"] is True
        assert body.get("stream", False) is request.stream
        assert body.get("stream_options") == ({"include_usage": True} if request.stream else None)
        assert ("messages" in body) == (request.kind == "chat") == (request.path == "/v1/chat/completions")
        assert ("prompt" in body) == (request.kind == "completion") == (request.path == "/v1/completions")


def test_requests_of_an_application_share_a_long_beginning() -> None:
    chats = [request for request in some(1) if request.kind == "chat"]
    prompts = {request.application: text(request) for request in chats}
    assert all(text(request) == prompts[request.application] for request in chats)
    assert len(set(prompts.values())) == len(prompts) == 20
    assert min(len(prompt) for prompt in prompts.values()) > 1500
    for completion in (request for request in some(1) if request.kind == "completion"):
        assert text(completion).startswith(prompts[completion.application] + "\n\nQuestion ")


def test_applications_are_unequal() -> None:
    """Zipf's law with exponent 1 over 20: the first has 28 % of the requests."""
    requests = some(1)
    counts = Counter(request.application for request in requests)
    assert counts[0] / len(requests) == pytest.approx(0.278, abs=0.03)
    assert counts[0] > 5 * counts[19]


def test_no_question_is_asked_twice() -> None:
    bodies = [request.body for request in some(1)]
    assert len(set(bodies)) == len(bodies)
