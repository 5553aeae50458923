"""What a request makes a picker keep counts in the budget of all bodies, whatever its shape."""

import json
import tracemalloc
from itertools import islice, product
from string import ascii_letters
from typing import Any

import pytest
from msgspec import structs

from services.picker.extproc.messages import BodyMode
from services.picker.request_stream import RequestStream
from tests.unit.services.picker.extproc.proxy import FULL_DUPLEX, LEAN, body, headers, response_headers
from tests.unit.services.picker.handler import destinations, refused
from tests.unit.services.picker.test_flow_control import World, document

MANY = 20
UNCOUNTED = 20_000
"""Bytes of a request that needn't count."""
POST = {":method": "POST", ":path": "/v1/completions"}
NAMES = ["".join(name) for name in islice(product(ascii_letters, repeat=3), 40_000)]


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "x", **fields}, separators=(",", ":")).encode()


def chat(*parts: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode()


PICTURES = chat(*({"type": "image_url", "image_url": {"url": f"http://h/{number}"}} for number in range(1000)))
SHAPES: dict[str, tuple[dict[str, str], list[str] | None, bytes]] = {
    # headers, the subset hint, and the body
    "nothing special": ({}, None, completion()),
    "a long header": ({"x-a": "a" * 60_000}, None, completion()),
    "with one character that makes it wide": ({"x-a": "a" * 60_000 + "\U0001f600"}, None, completion()),
    "short but wide": ({"x-a": "a" * 7_000 + "\U0001f600"}, None, completion()),
    "many headers": ({f"x-{number}": "v" * 50 for number in range(900)}, None, completion()),
    "a hint of many endpoints": ({}, [f"10.0.{n // 250}.{n % 250}:8000" for n in range(4_999)], completion()),
    "of short entries": ({}, [f"{n % 256:x}" for n in range(4_999)], completion()),
    "of wide ones": ({}, [f"\U0001f600{n}" + "x" * 40 for n in range(999)], completion()),
    "of a few long ones": ({}, [f"\U0001f600{n}" + "x" * 5_000 for n in range(99)], completion()),
    "of a single one": ({}, ["\U0001f600" + "x" * 250_000], completion()),
    "a long prompt": ({}, None, completion(prompt="x" * 200_000)),
    "many adapters": ({}, None, completion(lora_path=NAMES)),
    "long adapters": ({}, None, completion(lora_path=[f"\U0001f600{n}" + "x" * 900 for n in range(250)])),
    "many pictures": ({":path": "/v1/chat/completions"}, None, PICTURES),
}


@pytest.mark.parametrize("complete", [False, True], ids=["incomplete", "waits"])
@pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX], ids=["lean", "full duplex"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_request_holds_counts(shape: str, modes: tuple[BodyMode, BodyMode], complete: bool) -> None:
    more, hint, text = SHAPES[shape]
    world = World("a1")
    world.handler.limits = structs.replace(world.handler.limits, request_body=10**7)
    running = world.ask("first")
    messages = [headers(POST | more, modes=modes, hint=hint)]
    messages += [body(text, end=True)] if complete else [body(text[:-1])] if modes is FULL_DUPLEX else []
    sent = [message.SerializeToString() for message in messages]

    def ask() -> RequestStream:
        stream = RequestStream(world.handler)
        for message in sent:
            for _ in stream.receive(bytes(bytearray(message))):
                pass
        return stream

    streams = [ask()]
    counted = world.handler.budget.used
    tracemalloc.start()
    streams += [ask() for _ in range(MANY)]
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert all(stream.waiting for stream in streams) is complete
    counted = world.handler.budget.used - counted
    assert held <= 1.1 * counted + MANY * UNCOUNTED
    for stream in streams:
        stream.end()
    running.stream.end()
    assert world.handler.budget.used == 0


def test_what_a_proxy_says_beside_a_response_is_not_kept() -> None:
    world, streams = World("a1", "a2"), []
    hint = [f"10.0.{n // 250}.{n % 250}:8000" for n in range(2_000)]
    for _ in range(MANY):
        stream, _ = world.begin(headers(POST, modes=FULL_DUPLEX, hint=["10.0.0.1"]), body(completion(), end=True))
        streams.append(stream)
        world.say(stream, response_headers())
    pieces = [body(b"a", phase="response_body", hint=hint).SerializeToString() for _ in range(2)]
    tracemalloc.start()
    for stream in streams:
        for piece in pieces:
            for _ in stream.receive(bytes(bytearray(piece))):
                pass
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < MANY * UNCOUNTED / 2


def test_without_room_for_what_it_keeps_a_request_is_refused_before_it_waits() -> None:
    world = World("a1")
    running = world.ask("first")
    text = completion(lora_path=[f"adapter-{number}" for number in range(250)])
    world.handler.budget.limit = 2 * len(text)
    second = world.ask("second", text=text)
    answer = refused(second.answers)
    assert (answer.status, b"no memory left" in answer.body) == (503, True)
    for asked in (running, second):
        asked.stream.end()
    assert world.is_calm


def test_a_request_that_need_not_wait_needs_no_room_for_what_it_would_keep() -> None:
    world = World("a1")
    text = completion(lora_path=[f"adapter-{number}" for number in range(250)])
    upload, _ = world.begin(headers(POST, modes=FULL_DUPLEX), body(text[:-1]))
    world.handler.budget.limit = world.handler.budget.used + 2 * len(text)
    first = world.ask("first", text=text)
    assert first.destination == "10.0.0.1:8000"
    first.completes()
    uploaded = world.say(upload, body(text[-1:], end=True))
    assert destinations(uploaded) == "10.0.0.1:8000", "nobody's body has made room"
    upload.end()
    assert world.is_calm


def test_a_request_that_waits_needs_room_once() -> None:
    world = World("a1")
    running = world.ask("first")
    stream, _ = world.begin(headers({":method": "GET", ":path": "/v1/models"}, end=True))
    world.handler.budget.limit = world.handler.budget.used - 1
    world.use(document())
    world.turn()
    assert stream.waiting
    assert not stream.ready
    running.stream.end()
    stream.end()
    assert world.is_calm
