import json
import struct
import tracemalloc
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from services.picker.extproc.messages import BodyMode
from services.picker.pipeline import build
from services.picker.request_stream import HEAVY, RequestStream
from services.picker.responses.reader import LIMIT
from services.picker.state.health import FAILING, FAILURES, NO_HELP, REPLACED
from shared.attributes import REACHABLE, WAITING_QUEUE_SIZE
from shared.bus.columns import server_hash
from shared.config import load
from shared.model import ROLE, ModelRewrite, RewriteRule, Target
from tests.unit.services.picker.extproc.proxy import (
    FULL_DUPLEX,
    LEAN,
    Answer,
    body,
    headers,
    response_body,
    response_headers,
    response_trailers,
    trailers,
)
from tests.unit.services.picker.handler import REGISTRY, PickerUnderTest, destinations, refused
from tests.unit.services.picker.parsers import vllm_schema
from tests.unit.services.picker.world import endpoint, facts, pool, report

CHAT = [(":method", "POST"), (":path", "/v1/chat/completions"), ("x-request-id", "mine")]
GET = [(":method", "GET"), (":path", "/v1/models")]
MESSAGE = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 4000}]}).encode()
DOCUMENT = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 3}
"""
RANKED = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 4}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 100}, {pluginRef: prefix-cache-scorer}, {pluginRef: max-score-picker}]
"""
"""The shortest queue decides, whoever has the prefix."""
ESTIMATE = DOCUMENT + "- type: inflight-load-producer\n  parameters: {addEstimatedOutputTokens: true}\n"


class World(PickerUnderTest):
    """A picker's handler over three endpoints, of which a1 is the best and a3 the worst."""

    def __init__(self, document: str = DOCUMENT, **options: Any) -> None:
        view = pool("a1", "a2", "a3")
        report(view, {WAITING_QUEUE_SIZE: [0, 1, 2]})
        super().__init__(view, document, **options)

    def routed(self, modes: tuple[BodyMode, BodyMode] = LEAN) -> RequestStream:
        stream, answers = self.begin(headers(CHAT, modes=modes), body(MESSAGE, end=True))
        assert destinations(answers) == "10.0.0.1:8000,10.0.0.2:8000,10.0.0.3:8000"
        return stream


def rewrite(target: str) -> ModelRewrite:
    """For every model."""
    return ModelRewrite(name="any", rules=(RewriteRule(targets=(Target(model=target),)),))


def started(kind: str, *more: tuple[str, str]) -> Any:
    """The headers of a response of this type."""
    return headers({":status": "200", "content-type": kind, **dict(more)}, phase="response_headers")


MESSAGES = st.sampled_from(
    [
        headers(CHAT, modes=LEAN),
        headers(CHAT, modes=FULL_DUPLEX),
        headers([*CHAT, ("x", "y" * 20_000)], modes=FULL_DUPLEX, hint=["10.0.0.1"] * 1000),
        headers(GET, end=True),
        headers(CHAT, modes=(BodyMode.NONE, BodyMode.NONE)),
        body(MESSAGE, end=True),
        body(MESSAGE[:50]),
        body(hint=["10.0.0.1"]),
        body(hint=["10.0.0.2"] * 2000),
        body(b"nonsense", end=True),
        body(b"x" * 20_000),
        trailers(),
        response_headers(),
        response_headers(served="10.0.0.2:8000"),
        response_headers(end=True),
        started("text/event-stream"),
        response_body(b"x"),
        response_body(b"", end=True),
        response_trailers(),
        "a1 goes",
        "a1 comes",
        "a1 moves",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), MESSAGES), max_size=25))
def test_in_whatever_order_messages_come_nothing_stays_charged_and_nothing_goes_below_zero(
    script: list[tuple[int, Any]],
) -> None:
    """Three streams at once, over endpoints that flap."""
    world = World()
    streams = [RequestStream(world.handler) for _ in range(3)]
    for number, message in script:
        match message:
            case "a1 goes":
                world.view.delete("pool.endpoint.a1")
            case "a1 comes":
                world.view.upsert("pool.endpoint.a1", endpoint("a1"))
            case "a1 moves":
                world.view.upsert("pool.endpoint.a1", endpoint("a1", "10.0.1.1"))
            case _:
                world.say(streams[number], message)
        _ = world.view.layout
        assert (world.view.in_flight.requests >= 0).all()
        assert (world.view.in_flight.tokens >= 0).all()
        assert all(count > 0 for count in world.load.values())
        assert sum(world.load.values()) <= 3
    for stream in (*streams, *streams):
        stream.end()
    assert (world.load, world.tokens, world.handler.open, world.handler.observing) == ({}, 0, 0, 0)
    assert not world.view.in_flight.requests.any()
    assert world.handler.budget.used == 0


@pytest.mark.parametrize(
    ("happens", "served", "charged", "by"),
    [
        ("", "10.0.0.1:8000", "a1", "first choice"),
        ("", "10.0.0.3:8000", "a3", "fallback"),
        ("", "10.9.9.9:8000", "a1", "other"),
        ("", "", "a1", "unknown"),
        ("a9 comes", "10.0.0.9:8000", "a9", "other"),
        ("a2 goes", "10.0.0.2:8000", "a2", "fallback"),
        ("a0 comes at a1's address", "10.0.0.1:8000", "a1", "first choice"),
    ],
)
def test_the_charge_moves_to_the_endpoint_that_really_served(happens: str, served: str, charged: str, by: str) -> None:
    world = World()
    if happens.startswith("a0"):
        world.view.upsert("pool.endpoint.a0", endpoint("a0", "10.0.0.1"))
    stream, _ = world.begin(headers(CHAT, modes=LEAN), body(MESSAGE, end=True))
    if happens == "a9 comes":
        world.view.upsert("pool.endpoint.a9", endpoint("a9"))
    elif happens == "a2 goes":
        world.view.delete("pool.endpoint.a2")
    world.say(stream, response_headers(served=served))
    assert (world.load, world.metrics.served_by) == ({charged: 1}, {by: 1})
    stream.end()
    assert world.load == {}


@pytest.mark.parametrize(
    ("document", "modes", "observes", "tokens"),
    [
        (DOCUMENT, FULL_DUPLEX, True, 0),
        (DOCUMENT, LEAN, True, 1000),
        (DOCUMENT, LEAN, False, 1000),
        (ESTIMATE, FULL_DUPLEX, True, 2500),
    ],
)
def test_tokens_count_until_the_response_begins_or_ends(
    document: str, modes: tuple[BodyMode, BodyMode], observes: bool, tokens: int
) -> None:
    """Until it begins where the proxy shows it by itself. Whether the picker observes a response doesn't change what
    later requests find. With an estimate of the output they count until the end."""
    world = World(document)
    world.handler.observe = lambda: observes
    stream = world.routed(modes)
    (answer,) = world.say(stream, started("text/event-stream"))
    assert (answer.asked is not None) is (observes and modes is LEAN)
    assert world.tokens
    if observes:
        world.say(stream, response_body(b"data: 1\n\n"))
    assert world.load == {"a1": 1}
    assert world.tokens == pytest.approx(tokens, abs=20)
    world.say(stream, response_body(b"", end=True))
    assert world.tokens == 0


@pytest.mark.parametrize(
    ("mode", "shown"),
    [(BodyMode.NONE, []), (BodyMode.STREAMED, []), (BodyMode.BUFFERED_PARTIAL, [body(MESSAGE[:100])])],
)
def test_a_body_that_the_proxy_doesnt_show_whole_isnt_judged(mode: BodyMode, shown: list[Any]) -> None:
    _, answers = World().begin(headers(CHAT, modes=(mode, BodyMode.NONE)), *shown)
    assert destinations(answers).startswith("10.0.0.1:8000,")


def is_out_of_room(answers: list[Answer]) -> bool:
    answer = refused(answers)
    assert answer.set_headers["retry-after"] == "1"
    assert answer.set_headers["x-llm-d-request-dropped-reason"] == "rejected-memory"
    assert json.loads(answer.body)["error"]["type"] == "service_unavailable"
    return answer.status == 503


@pytest.mark.parametrize("rest", [body(MESSAGE[60:], end=True), trailers()], ids=["body", "trailers"])
def test_bodies_that_never_end_make_room_for_others(rest: Any) -> None:
    world = World()
    world.handler.budget.limit = len(MESSAGE)
    slow, _ = world.begin(headers(CHAT, modes=FULL_DUPLEX), body(MESSAGE[:60]))
    world.now += 10
    quick, answers = world.begin(headers(CHAT, modes=FULL_DUPLEX), body(MESSAGE[:-1]))
    assert (answers, slow.closed, world.handler.budget.used) == ([], False, len(MESSAGE) - 1)
    assert is_out_of_room(world.say(slow, rest))
    assert slow.closed
    assert destinations(world.say(quick, body(MESSAGE[-1:], end=True)))
    slow.end()
    assert (world.metrics.statuses[503], world.handler.budget.used) == (1, 0)


def test_bodies_that_are_on_their_way_have_a_bound_together_and_other_streams_go_on() -> None:
    world = World()
    world.handler.budget.limit = len(MESSAGE)
    slow, _ = world.begin(headers(CHAT, modes=FULL_DUPLEX), body(MESSAGE[:60]))
    late, answers = world.begin(headers(CHAT, modes=FULL_DUPLEX), body(MESSAGE[:10]))
    assert answers == []
    world.now += 10
    assert is_out_of_room(world.say(slow, body(MESSAGE[60:]))), "it costs more than the other"
    assert destinations(world.say(late, body(MESSAGE[10:], end=True)))
    world.handler.budget.limit = len(MESSAGE) - 1
    _, answers = world.begin(headers(CHAT, modes=LEAN), body(MESSAGE, end=True))
    assert is_out_of_room(answers[1:]), "a body that comes in one message counts, too"
    assert world.handler.budget.used == 0


def test_a_stream_that_is_lost_or_overtaken_holds_nothing() -> None:
    world = World()
    stream, _ = world.begin(headers(CHAT, modes=FULL_DUPLEX), body(MESSAGE[:60]))
    assert world.handler.budget.used == 60
    stream.end()
    assert world.handler.budget.used == 0
    stream, _ = world.begin(headers(CHAT, modes=FULL_DUPLEX), body(MESSAGE[:60]))
    world.say(stream, response_headers(504))
    assert world.handler.budget.used == 0, "the proxy answers by itself"
    assert stream.incomplete, "so it may make room for others"
    stream = world.routed(FULL_DUPLEX)
    world.say(stream, started("application/json"))
    world.say(stream, response_body(b'{"usage":{'))
    assert world.handler.budget.used == 10
    stream.end()
    assert world.handler.budget.used == 0


GRPC = f"""\
{DOCUMENT}- type: vllmgrpc-parser
requestHandler:
  parsers:
  - pluginRef: vllmgrpc-parser
"""


@pytest.mark.parametrize("streams", [False, True])
def test_the_usage_of_grpc_responses_is_read(streams: bool) -> None:
    def framed(name: str, **fields: Any) -> bytes:
        data: bytes = vllm_schema.message(name, **fields).SerializeToString()
        return struct.pack(">BI", 0, len(data)) + data

    world = World(GRPC)
    path = "/vllm.grpc.engine.VllmEngine/Generate"
    asked = headers([(":method", "POST"), (":path", path), ("content-type", "application/grpc")], modes=FULL_DUPLEX)
    stream, _ = world.begin(asked, body(framed("GenerateRequest", text="test1", stream=streams), end=True))
    world.say(stream, started("application/grpc"))
    sent = framed("GenerateResponse", complete={"output_ids": [1, 2], "prompt_tokens": 7, "completion_tokens": 10})
    pieces = [sent[:9], sent[9:]]
    if streams:
        pieces = [framed("GenerateResponse", chunk={"token_ids": [1, 2, 3]}), sent]
    for piece in pieces:
        (answer,) = world.say(stream, response_body(piece))
        assert (answer.streamed, answer.end) == (piece, False)
    assert [answer.phase for answer in world.say(stream, response_trailers())] == ["response_trailers"]
    none = {"model_name": "", "target_model_name": ""}
    for name, total in (("input", 7), ("output", 10)):
        assert world.sample(f"inference_objective_{name}_tokens_sum", **none) == total
        assert world.sample(f"inference_objective_{name}_tokens_count", **none) == 1
    assert world.sample(FIRST, **none) == (1 if streams else None)


SECONDS = "llm_d_epp_request_duration_seconds_count"
FIRST = "llm_d_epp_request_ttft_seconds_count"
MODEL = {"model_name": "m", "target_model_name": "m"}
STREAMING = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}).encode()


def test_a_response_that_breaks_off_is_no_measure_of_time_or_size_but_of_the_tokens_that_it_told() -> None:
    world = World()
    stream, _ = world.begin(headers(CHAT, modes=FULL_DUPLEX), body(MESSAGE, end=True))
    world.say(stream, started("text/event-stream"))
    world.say(stream, response_body(b'data: {"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'))
    world.now += 3
    stream.end()
    assert repr(world.metrics.request_seconds) == "<Histogram 0 times, 0 together>"
    for none in (SECONDS, "llm_d_epp_response_size_bytes_count", "llm_d_epp_request_ntpot_seconds_count"):
        assert not world.sample(none, **MODEL)
    assert world.sample("llm_d_epp_request_output_tokens_sum", **MODEL) == 3


def test_an_error_has_no_first_token() -> None:
    for status in (400, 500, 200):
        world = World()
        stream, _ = world.begin(headers(CHAT, modes=FULL_DUPLEX), body(STREAMING, end=True))
        world.say(stream, response_headers(status), response_body(b'{"error":{}}'), response_body(b"", end=True))
        labels = MODEL if status == 200 else dict.fromkeys(MODEL, "other")
        assert world.sample(SECONDS, **labels) == 1
        assert (world.sample(FIRST, **labels) or 0) == (status == 200)


def responses(world: World) -> dict[str, float | None]:
    """How many were observed, and how many not."""
    return {
        result: world.sample("pointsman_picker_responses_total", observation=result)
        for result in ("observed", "left_out", "not_applicable")
    }


JSON = started("application/json")
HELD_BY_NOBODY = started("application/json", ("content-length", str(LIMIT + 1)))


@pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX])
@pytest.mark.parametrize("rewrites", [True, False])
@pytest.mark.parametrize(
    ("begun", "pieces", "observation"),
    [
        (JSON, [b"{}"], "observed"),
        (JSON, [], "left_out"),
        (started("application/json", (":status", "500")), [b"{}"], "not_applicable"),
        (started("application/json", ("content-encoding", "gzip")), [b"x"], "not_applicable"),
        (started("text/plain"), [b"x"], "not_applicable"),
    ],
)
def test_a_response_that_tells_of_no_tokens_counts_neither_as_observed_nor_as_left_out(
    modes: tuple[BodyMode, BodyMode], rewrites: bool, begun: Any, pieces: list[bytes], observation: str
) -> None:
    """An answer that was asked for and isn't shown is left out: some proxies don't heed the request."""
    world = World()
    if rewrites:
        world.view.upsert("pool.rewrite.any", rewrite("tuned"))
    stream = world.routed(modes)
    (answer,) = world.say(stream, begun)
    if answer.asked is not None or modes is FULL_DUPLEX:
        world.say(stream, *map(response_body, pieces))
    stream.end()
    assert responses(world) == {"observed": 0, "left_out": 0, "not_applicable": 0, observation: 1}


@pytest.mark.parametrize(
    ("sent", "begun"),
    [
        ([headers(GET, modes=LEAN, end=True)], JSON),
        ([headers(CHAT, modes=LEAN), body(MESSAGE, end=True)], HELD_BY_NOBODY),
    ],
    ids=["a list of models", "an answer that is too large to be read"],
)
def test_a_response_that_is_never_asked_for_isnt_left_out(sent: list[Any], begun: Any) -> None:
    world = World()
    stream, _ = world.begin(*sent)
    world.say(stream, begun)
    stream.end()
    assert responses(world) == {"observed": 0, "left_out": 0, "not_applicable": 1}


@pytest.mark.parametrize("observes", [True, False])
def test_where_the_proxy_shows_no_responses_chance_decides_which_are_asked_for(observes: bool) -> None:
    world = World()
    world.handler.observe = lambda: observes
    stream, _ = world.begin(headers(CHAT, modes=LEAN), body(STREAMING, end=True))
    (answer,) = world.say(stream, started("text/event-stream"))
    assert answer.asked == (BodyMode.STREAMED if observes else None)
    if observes:
        world.now += 2
        world.say(stream, response_body(b'data: {"choices":[]}\n\n'))
        world.now += 3
        usage = b'data: {"usage":{"prompt_tokens":7,"completion_tokens":4}}\n\n'
        world.say(stream, response_body(usage), response_body(b"", end=True))
    stream.end()
    for series, value in (
        ("input_tokens", 7),
        ("output_tokens", 4),
        ("ttft_seconds", 2),
        ("streaming_tpot_seconds", 1),
    ):
        assert world.sample(f"llm_d_epp_request_{series}_sum", **MODEL) == (value if observes else None)
    assert responses(world) == {"observed": int(observes), "left_out": int(not observes), "not_applicable": 0}


def test_beyond_a_number_of_responses_at_once_no_further_ones_are_asked_for() -> None:
    world = World()
    world.handler.max_observed = 2

    def asked(stream: RequestStream) -> bool:
        (answer,) = world.say(stream, started("text/event-stream"))
        return answer.asked is BodyMode.STREAMED

    first, second, third = (world.routed() for _ in range(3))
    assert [asked(stream) for stream in (first, second, third)] == [True, True, False]
    second.end()
    third.end()
    assert [asked(world.routed()) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_responses_in_which_a_name_is_put_back_are_asked_for_beyond_that_number_and_dont_use_it_up(kind: str) -> None:
    world = World()
    world.handler.max_observed = 1
    world.view.upsert("pool.rewrite.any", rewrite("tuned"))
    renamed = [world.routed() for _ in range(3)]
    world.view.delete("pool.rewrite.any")
    plain = [world.routed() for _ in range(2)]
    answers = [world.say(stream, started(kind))[0] for stream in (*renamed[:2], *plain, renamed[2])]
    assert [answer.asked is not None for answer in answers] == [True, True, True, False, True]


def test_the_usage_of_a_request_without_a_model_is_read_too() -> None:
    """A rewrite for every model supplies it."""
    world = World()
    world.view.upsert("pool.rewrite.any", rewrite("supplied"))
    sent = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()
    stream, _ = world.begin(headers(CHAT, modes=FULL_DUPLEX), body(sent, end=True))
    world.say(stream, started("application/json"))
    text = b'{"model":"supplied","usage":{"prompt_tokens":7,"completion_tokens":3}}'
    (answer,) = world.say(stream, response_body(text, end=True))
    assert answer.streamed == text
    labels = {"model_name": "", "target_model_name": "supplied"}
    assert world.sample("llm_d_epp_request_input_tokens_sum", **labels) == 7


@pytest.mark.parametrize("log_decisions", [True, False])
def test_decisions_are_logged_when_wanted(log_decisions: bool) -> None:
    world = World(log_decisions=log_decisions)
    with capture_logs() as logs:
        stream = world.routed()
        assert not logs, "a request is logged when it is over"
        world.now += 1.5
        world.say(stream, response_headers(served="10.0.0.2:8000", end=True))
        stream.end()
        world.begin(headers(CHAT, modes=LEAN), body(b"{}", end=True))
    lines = [line for line in logs if line["event"] == "request.decided"]
    shown = [(line["state"], line.get("served_endpoint"), line["duration_seconds"]) for line in lines]
    assert shown == ([("completed", "a2", 1.5), ("refused", None, 0.0)] if log_decisions else [])


def test_a_large_request_that_ends_between_its_steps_is_logged_as_often_as_it_is_kept() -> None:
    large = json.dumps({"model": "m", "prompt": "x" * 2 * HEAVY}).encode()
    for steps in range(8):
        world = PickerUnderTest(pool("a1"), limit=2 * len(large), log_decisions=True)
        stream, _ = world.begin(headers([*CHAT[:1], (":path", "/v1/completions")], modes=LEAN))
        with capture_logs() as logs:
            answers = iter(stream.receive(body(large, end=True).SerializeToString()))
            list(islice(answers, steps))
            stream.end()
        assert len([line for line in logs if line["event"] == "request.decided"]) == len(world.ring)
        assert world.load == {}


@pytest.mark.parametrize(
    ("messages", "record"),
    [
        ([], ("under way", None, None, None, None)),
        ([response_headers(served="10.0.0.1:8000")], ("under way", "first choice", "a1", 200, None)),
        ([response_headers(502, served="10.0.0.3:8000", end=True)], ("completed", "fallback", "a3", 502, 2.0)),
        ([response_headers(served="10.9.9.9:1", end=True)], ("completed", "other", "10.9.9.9:1", 200, 2.0)),
        ([response_headers(end=True)], ("completed", "unknown", None, 200, 2.0)),
        (["gone"], ("aborted", None, None, None, 2.0)),
        ([response_headers(served="10.0.0.1:8000"), "gone"], ("completed", "first choice", "a1", 200, 2.0)),
    ],
)
def test_a_record_says_who_served_with_what_status_and_how_long_it_took(
    messages: list[Any], record: tuple[Any, ...]
) -> None:
    world = World()
    stream = world.routed()
    world.now += 2.0
    world.say(stream, *(message for message in messages if message != "gone"))
    if "gone" in messages:
        stream.end()
    (kept,) = world.ring.newest(9)
    summary = kept.summary()
    fields = ("state", "served_by", "served_endpoint", "status", "duration_seconds")
    assert tuple(summary[field] for field in fields) == record


def choices(world: World) -> str:
    """What a further request gets."""
    return destinations(world.begin(headers(CHAT, modes=LEAN), body(MESSAGE, end=True))[1])


A1, A2, A3 = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


@pytest.mark.parametrize(
    ("messages", "then"),
    [
        ([response_headers(served=A1)], [A1, A2, A3]),
        ([response_headers(served=A2)], [A2, A3, A1]),
        ([response_headers(served=A3)], [A3, A1, A2]),
        ([response_headers(served="10.9.9.9:1")], [A1, A2, A3]),
        ([response_headers()], [A1, A2, A3]),
        ([response_headers(503)], [A1, A2, A3]),
        ([response_headers(503, served=A3)], [A1, A2, A3]),  # which fails, too
        ([], [A1, A2, A3]),
    ],
)
def test_whom_a_fallback_had_to_replace_ranks_last_from_then_on(messages: list[Any], then: list[str]) -> None:
    """Of a request that nobody on the list, or nobody knows who, has served, nothing follows."""
    world = World()
    stream = world.routed()
    world.say(stream, *messages)
    stream.end()
    assert choices(world) == ",".join(then)


@pytest.mark.parametrize(("requests", "failing"), [(FAILURES - 1, 0), (FAILURES, 5), (3 * FAILURES, 5)])
def test_a_request_that_all_tried_servers_refuse_takes_at_most_half_of_the_servers_away(
    requests: int, failing: int
) -> None:
    """A client may know one."""
    servers = [endpoint(f"a{number}") for number in range(10)]
    world = PickerUnderTest(pool(*servers), DOCUMENT.replace("Endpoints: 3", "Endpoints: 10"))
    for _ in range(requests):
        stream, answers = world.begin(headers(CHAT, modes=LEAN), body(MESSAGE, end=True))
        world.say(stream, response_headers(503, served=destinations(answers).split(",")[-1], end=True))
        stream.end()
    assert list(world.view.health.unhealthy.values()) == [FAILING] * failing


def test_with_if_available_a_fallback_is_one_of_the_endpoints_with_the_prefix() -> None:
    world = PickerUnderTest(pool("a1", "a2", "a3", "a4"), RANKED)
    report(world.view, {WAITING_QUEUE_SIZE: [0, 1, 2, 3]})
    stream, _ = world.begin(headers(CHAT, modes=LEAN), body(MESSAGE, end=True))
    prompt = world.view.prefixes.states(server_hash(world.view.layout.endpoints[0]))[0][::-1]
    world.say(stream, response_headers(served=A1, end=True))
    for id in ("a3", "a4"):
        world.view.prefixes.add(id, prompt, 1000)
    stream, answers = world.begin(headers([*CHAT, ("prefer", "if-available")], modes=LEAN), body(MESSAGE, end=True))
    assert destinations(answers) == f"{A1},{A3},10.0.0.4:8000"
    world.view.reset(facts(endpoint("a1"), endpoint("a2"), endpoint("a3")))  # the last one leaves
    world.say(stream, response_headers(served="10.0.0.4:8000"))
    assert world.load == {"a4": 1}
    assert world.ring.newest(1)[0].progress.endpoint == "a4"
    assert world.view.health.unhealthy == {0: REPLACED, 2: REPLACED}


def test_nothing_follows_for_a_single_destination_when_another_endpoint_of_the_pool_served() -> None:
    """A proxy that doesn't know the destination yet, or ignores the pick, goes elsewhere as well."""
    world = World(DOCUMENT.replace("maxNumOfEndpoints: 3", "maxNumOfEndpoints: 1"))
    stream, answers = world.begin(headers(CHAT, modes=LEAN), body(MESSAGE, end=True))
    assert destinations(answers) == A1
    world.say(stream, response_headers(served=A2, end=True))
    assert world.metrics.served_by == {"other": 1}
    assert choices(world) == A1


PREFILLED = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: label-selector-filter, name: prefill-only, parameters: {matchLabels: {role: prefill}}}
- {type: label-selector-filter, name: decode-only, parameters: {matchLabels: {role: decode}}}
- type: always-disagg-pd-decider
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-only}]}
- {name: decode, plugins: [{pluginRef: decode-only}]}
"""


@pytest.mark.parametrize(
    ("status", "suspect"), [(502, True), (500, True), (503, False), (501, False), (400, False), (200, False)]
)
def test_a_failure_after_a_prefill_marks_the_prefill_endpoint(status: int, suspect: bool) -> None:
    world = PickerUnderTest(pool(endpoint("a1", role="prefill"), endpoint("a2", role="decode")), PREFILLED)
    for skipped in (None, 1 if suspect else None):
        stream, answers = world.begin(headers(CHAT, modes=LEAN), body(MESSAGE, end=True))
        assert destinations(answers) == A2
        assert world.load == {"a2": 1, **({"a1": 1} if skipped is None else {})}
        assert world.sample("pointsman_picker_skipped_stages_total", stage="prefill", reason="down") == skipped
        world.say(stream, response_headers(status, served=A2, end=True))
        stream.end()
        assert world.view.health.unhealthy == ({world.view.layout.index["a1"]: NO_HELP} if suspect else {})


@pytest.mark.parametrize(("most", "served_by"), [(1, "other"), (2, "fallback")])
def test_when_a_further_server_is_refused_too_that_concerns_the_prefill_server_of_both(
    most: int, served_by: str
) -> None:
    """Proxies tell only of the last one that they tried."""
    parameters = f"- {{type: max-score-picker, parameters: {{maxNumOfEndpoints: {most}}}}}\n"
    document = PREFILLED.replace("schedulingProfiles", parameters + "schedulingProfiles")
    servers = pool(*(endpoint(f"a{n}", role="decode" if n > 1 else "prefill") for n in (1, 2, 3)))
    world = PickerUnderTest(servers, document)
    for _ in range(FAILURES):
        stream, answers = world.begin(headers(CHAT, modes=LEAN), body(MESSAGE, end=True))
        first = destinations(answers).split(",")[0]
        world.say(stream, response_headers(503, served=A3 if first == A2 else A2, end=True))
        stream.end()
    assert world.metrics.served_by == {served_by: FAILURES}
    health, index = world.view.health, world.view.layout.index
    assert health.unhealthy == {index["a1"]: NO_HELP}
    assert [list(health.apart_from(index[id])) for id in ("a2", "a3")] == [[index["a1"]]] * 2


PREFILLED_WITH_FALLBACKS = PREFILLED.replace(
    "schedulingProfiles", "- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}\nschedulingProfiles"
)


@pytest.mark.parametrize("status", [500, 503])
def test_a_failure_of_an_address_outside_the_pool_concerns_nobody(status: int) -> None:
    """Its answers without an error would undo nothing."""
    servers = pool(*(endpoint(f"a{n}", role="decode" if n > 1 else "prefill") for n in (1, 2, 3)))
    world = PickerUnderTest(servers, PREFILLED_WITH_FALLBACKS)
    for _ in range(3 * FAILURES):
        stream, _ = world.begin(headers(CHAT, modes=LEAN), body(MESSAGE, end=True))
        world.say(stream, response_headers(status, served="10.9.9.9:1", end=True))
        stream.end()
    health = world.view.health
    assert (health.unhealthy, health.failures) == ({}, {})
    assert [health.apart_from(row) for row in range(3)] == [{}] * 3


def test_a_fallback_that_answers_about_the_request_has_replaced_the_first_choice_also_after_a_prefill() -> None:
    servers = pool(*(endpoint(f"a{n}", role="decode" if n > 1 else "prefill") for n in (1, 2, 3)))
    world = PickerUnderTest(servers, PREFILLED_WITH_FALLBACKS)
    stream, answers = world.begin(headers(CHAT, modes=LEAN), body(MESSAGE, end=True))
    first, second = destinations(answers).split(",")
    world.say(stream, response_headers(501, served=second, end=True))
    row = world.view.layout.row_of_authority(first)
    assert world.view.health.unhealthy == {row: REPLACED}
    assert not world.view.health.failures


DISAGGREGATED = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: encode-filter
- type: prefill-filter
- type: decode-filter
- type: active-request-scorer
- type: always-disagg-multimodal-decider
- type: always-disagg-pd-decider
- {type: max-score-picker, name: fallbacks, parameters: {maxNumOfEndpoints: 2}}
- {type: max-score-picker, name: encoders, parameters: {maxNumOfEndpoints: ENCODERS}}
- {type: disagg-profile-handler, parameters: {deciders: DECIDERS}}
schedulingProfiles:
- {name: encode, plugins: [{pluginRef: encode-filter}, {pluginRef: active-request-scorer}, {pluginRef: encoders}]}
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: active-request-scorer}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}, {pluginRef: fallbacks}]}
"""
ENCODE = "{encode: always-disagg-multimodal-decider}"
BOTH = "{prefill: always-disagg-pd-decider, encode: always-disagg-multimodal-decider}"
PICTURE = {"type": "image_url", "image_url": {"url": "http://pictures/1.png"}}
SHOW = json.dumps({"model": "m", "messages": [{"role": "user", "content": [PICTURE]}]}).encode()


def disaggregated(deciders: str, roles: str, encoders: int = 1) -> PickerUnderTest:
    """Servers `a1`, `a2`, ... with these roles. A request has up to so many encode servers."""
    servers = (endpoint(f"a{n}", "", 8000, **{ROLE: role}) for n, role in enumerate(roles.split(), 1))
    document = DISAGGREGATED.replace("DECIDERS", deciders).replace("ENCODERS", str(encoders))
    return PickerUnderTest(pool(*servers), document)


@pytest.mark.parametrize(
    ("deciders", "roles", "suspect", "apart"),
    [
        (ENCODE, "decode encode", {"a2"}, {"a2"}),
        (ENCODE, "decode encode encode", set(), {"a2", "a3"}),
        (BOTH, "decode prefill encode", set(), {"a2", "a3"}),
    ],
)
def test_a_502_after_an_encoder_is_its_own_unless_others_helped_too(
    deciders: str, roles: str, suspect: set[str], apart: set[str]
) -> None:
    """The picture has no encoder that works, or the prompt no prefill server."""
    world = disaggregated(deciders, roles, encoders=2)
    for status, alone in ((502, False), (200, True)):
        stream, answers = world.begin(headers(CHAT, modes=LEAN), body(SHOW, end=True))
        assert destinations(answers) == A1
        assert (set(world.load) == {"a1"}) is alone
        world.say(stream, response_headers(status, served=A1, end=True))
        stream.end()
        health, index = world.view.health, world.view.layout.index
        assert health.unhealthy == {index[id]: NO_HELP for id in suspect}
        assert health.apart_from(index["a1"]).keys() == {index[id] for id in apart}


@pytest.mark.parametrize("status", [502, 503])
@pytest.mark.parametrize("deciders", [ENCODE, BOTH], ids=["encode", "encode and prefill"])
def test_an_encode_server_that_refuses_at_once_takes_no_decode_server_away(deciders: str, status: int) -> None:
    """It looks idle while others work. After 503, proxies try a second decode server."""
    world = disaggregated(deciders, "decode decode decode decode prefill prefill prefill encode encode encode")
    failed = 0
    for _ in range(100):
        stream, answers = world.begin(headers(CHAT, modes=LEAN), body(SHOW, end=True))
        tried = destinations(answers).split(",")
        fails = any(answer.set_headers.get("x-encoder-hosts-ports") == "10.0.0.8:8000" for answer in answers)
        failed += fails
        if fails:
            world.say(stream, response_headers(status, served=tried[status == 503], end=True))
            stream.end()
        else:
            world.say(stream, response_headers(200, served=tried[0]))
    assert failed <= 4 * FAILURES
    assert {world.view.layout.endpoints[row].id for row in world.view.health.unhealthy} == {"a8"}


def test_an_endpoint_that_was_replaced_is_the_first_choice_again_after_its_next_good_scrape() -> None:
    world = World()
    world.say(world.routed(), response_headers(served=A2))
    ranked = {row["id"]: row["unhealthy"] for row in world.view.state(world.now)}
    assert ranked == {"a1": REPLACED, "a2": None, "a3": None}
    assert world.sample("pointsman_picker_endpoint_healthy", endpoint="a1") == 0
    assert world.sample("pointsman_picker_endpoint_healthy", endpoint="a2") == 1
    assert choices(world) == ",".join([A2, A3, A1])
    world.now += 1.0
    report(world.view, {REACHABLE: [1, 1, 1]}, now=world.now)
    assert choices(world) == ",".join([A1, A2, A3])


def scraped(world: World, later: float) -> None:
    """Every endpoint has answered a scrape."""
    world.now += later
    report(world.view, {WAITING_QUEUE_SIZE: [0, 1, 2], REACHABLE: [1, 1, 1]}, now=world.now)


@pytest.mark.parametrize(
    ("served", "then"),
    [(A1, [A2, A3, A1]), (A2, [A1, A3, A2]), ("10.9.9.9:1", [A1, A2, A3]), ("", [A1, A2, A3])],
)
def test_who_answers_errors_ranks_last_until_it_answers_without_one(served: str, then: list[str]) -> None:
    """Good scrapes don't help it. Nothing follows if nobody in the pool, or nobody knows who, answered."""
    world = World()
    under_way = [world.routed() for _ in range(7)]
    for stream in under_way[:5]:
        world.say(stream, response_headers(500, served=served))
    world.say(under_way[5], response_headers("", served=served))  # it isn't shown
    scraped(world, 1.0)
    assert choices(world) == ",".join(then)
    world.say(under_way[6], response_headers(200, served=served))
    scraped(world, 1.0)
    assert choices(world) == ",".join([A1, A2, A3])


def test_who_answers_errors_is_tried_again_after_a_while() -> None:
    world, first, last = World(), ",".join([A1, A2, A3]), ",".join([A2, A3, A1])
    under_way = [world.routed() for _ in range(7)]
    for stream in under_way[:5]:
        world.say(stream, response_headers(500, served=A1))
    assert choices(world) == last
    for stream, status, then in zip(under_way[5:], (500, 200), (last, first), strict=True):
        scraped(world, 30.5)
        assert choices(world) == first
        world.say(stream, response_headers(status, served=A1))
        assert choices(world) == then


def test_a_decode_server_that_answers_502_doesnt_leave_the_others_without_prefill() -> None:
    """Nobody is scraped."""
    prefill = (endpoint(f"a{number}", role="prefill") for number in (1, 2, 3))
    decode = (endpoint(f"a{number}", role="decode") for number in (4, 5))
    world, failed = PickerUnderTest(pool(*prefill, *decode), PREFILLED), 0
    for _ in range(50):
        stream, answers = world.begin(headers(CHAT, modes=LEAN), body(MESSAGE, end=True))
        fails = (served := destinations(answers)) == "10.0.0.4:8000"
        failed += fails
        world.say(stream, response_headers(502 if fails else 200, served=served, end=True))
        stream.end()
    assert failed == 5
    own = 2  # when each prefill server has failed it
    assert world.sample("pointsman_picker_skipped_stages_total", stage="prefill", reason="down") == own
    why = world.view.health.unhealthy
    assert sorted(why.values()) == sorted([FAILING, NO_HELP, NO_HELP])


PREFIXES = DOCUMENT + "- type: prefix-cache-scorer\n"


def held(world: World) -> list[int]:
    return [row["prefix_blocks"] for row in world.view.state(world.now)]


@pytest.mark.parametrize(
    ("messages", "remembered"),
    [
        ([response_headers(served=A1, end=True)], "a1"),
        ([response_headers(served=A3, end=True)], "a3"),
        ([response_headers(served="10.9.9.9:1", end=True)], "a1"),
        ([response_headers(end=True)], "a1"),
        ([response_headers()], "a1"),
        ([response_body(b"x")], "a1"),
        ([response_trailers()], "a1"),
        ([], ""),
        *(
            ([response_headers(status, served=served, end=True)], "")
            for status in (400, 429, 503)
            for served in (A1, A3, "10.9.9.9:1", "")
        ),
    ],
)
def test_a_prompt_is_remembered_where_it_was_served_unless_nothing_was_computed_for_it(
    messages: list[Any], remembered: str
) -> None:
    """A proxy needn't show response headers. An error computes nothing, also one that its client got wrong."""
    world = World(PREFIXES)
    stream = world.routed(FULL_DUPLEX)
    placed = held(world)
    assert placed[0] > 0, "while the request is under way"
    world.say(stream, *messages)
    stream.end()
    assert held(world) == {"a1": placed, "a3": placed[::-1], "": [0, 0, 0]}[remembered]


def test_a_kept_decision_holds_nothing_of_the_prompt_once_its_request_is_over() -> None:
    world = World(PREFIXES)
    stream = world.routed()
    (kept,) = world.ring.newest(1)
    assert kept.progress.placements
    stream.end()
    assert not kept.progress.placements


@pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX])
def test_no_headers_stay_while_a_response_is_awaited(modes: tuple[BodyMode, BodyMode]) -> None:
    world, many, size = World(), 50, 20_000
    shown = [*CHAT, ("cookie", "c" * size)]
    tracemalloc.start()
    streams = [world.begin(headers(shown, modes=modes), body(MESSAGE, end=True))[0] for _ in range(many)]
    assert tracemalloc.get_traced_memory()[0] < many * size / 2
    tracemalloc.stop()
    assert sum(world.load.values()) == len(streams)


@pytest.mark.parametrize("session", ["", "- type: session-affinity-scorer\n"], ids=["", "with a response plugin"])
def test_a_running_request_holds_neither_its_decision_nor_its_prompt(session: str) -> None:
    world, many, prompt = (
        PickerUnderTest(pool(*map(str, range(1000))), PREFIXES + session, limit=10**6),
        50,
        "x" * 200_000,
    )
    message = json.dumps({"model": "m", "prompt": prompt}).encode()
    chat = [*CHAT[:1], (":path", "/v1/completions")]

    def routed() -> RequestStream:
        return world.begin(headers(chat, modes=LEAN), body(message, end=True))[0]

    streams = [routed() for _ in range(20)]  # as many decisions as are kept, and all blocks of the prompt
    tracemalloc.start()
    streams += [routed() for _ in range(many)]
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    kept = len(world.ring)
    assert sum(world.load.values()) == len(streams)
    assert held - kept * 50_000 < many * 20_000  # a decision has more than five arrays, of 8 kB each


def test_the_configuration_can_be_swapped_under_a_running_request() -> None:
    world = World()
    stream = world.routed()
    world.handler.pipeline = build(load("", REGISTRY), np.random.default_rng(1), lambda: 0.0)
    world.say(stream, response_headers(served="10.0.0.2:8000"))
    assert world.load == {"a2": 1}
    stream.end()
    assert world.load == {}
