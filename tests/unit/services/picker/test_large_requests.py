"""Large bodies and long names, from the message to the answers: nothing is kept, or grows, without bound."""

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product

import pytest

from services.picker.extproc.messages import BodyMode
from services.picker.request import Headers
from services.picker.request_stream import HEAVY, RequestStream
from services.picker.responses.reader import GROWTH, LIMIT, MAX_LINES, ResponseReader
from tests.unit.services.picker.extproc.proxy import FULL_DUPLEX, LEAN, body, headers, read
from tests.unit.services.picker.handler import PickerUnderTest, destinations, refused
from tests.unit.services.picker.world import pool

CHAT = [(":method", "POST"), (":path", "/v1/chat/completions"), ("x-request-id", "mine")]
REWRITES = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
BOTH = pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX])


def sent(size: int = 10, model: str = "m") -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "x" * size}]}).encode()


LARGE = sent(2 * HEAVY)
MESSAGE = body(LARGE, end=True).SerializeToString()


class World(PickerUnderTest):
    def __init__(self, limit: int = 10 * len(LARGE)) -> None:
        super().__init__(pool("a1", "a2"), limit=len(LARGE))
        self.handler.budget.limit = limit

    def shown(
        self, modes: tuple[BodyMode, BodyMode], rewrite: str = "", data: bytes = LARGE
    ) -> tuple[RequestStream, Iterator[bytes]]:
        """A stream to which the whole body has been shown, and the answers to come."""
        stream = RequestStream(self.handler)
        rewriting = [(REWRITES[0], rewrite)] if rewrite else []
        self.say(stream, headers([*CHAT, *rewriting], modes=modes))
        return stream, iter(stream.receive(body(data, end=True).SerializeToString()))


@pytest.mark.parametrize(
    ("where", "name"),
    [*product(("model", *REWRITES), ("m" * 1025, "é" * 513)), ("model", "m" * (4 << 20))],
)
def test_a_model_name_above_the_limit_is_refused(name: str, where: str) -> None:
    world = PickerUnderTest(pool("a1"), limit=LIMIT + 1000)
    shown = [*CHAT] if where == "model" else [*CHAT, (where, name)]
    _, answers = world.begin(headers(shown, modes=LEAN), body(sent(model=name if where == "model" else "m"), end=True))
    answer = refused(answers[-1:])
    assert answer.status == 400
    message = json.loads(answer.body)["error"]["message"]
    if len(name) < 2000:
        size = len(name.encode())
        assert message == f"{where}: the model name has {size} bytes; the limit is 1024"
    else:
        assert message == f"model: the name has {len(name) + 2} bytes; the limit is 65536"
    (decision,) = world.ring.newest(1)
    assert decision.request.model == "", "nothing of it is kept"


@pytest.mark.parametrize("name", ["m" * 1024, "é" * 512])
def test_a_model_name_up_to_the_limit_is_taken(name: str) -> None:
    world = PickerUnderTest(pool("a1"))
    shown = [*CHAT, (REWRITES[0], name)]
    _, answers = world.begin(headers(shown, modes=LEAN), body(sent(model=name), end=True))
    assert destinations(answers) == "10.0.0.1:8000"


@BOTH
@pytest.mark.parametrize("rewrite", ["", "tuned"])
def test_whole_bodies_count_until_they_are_answered(modes: tuple[BodyMode, BodyMode], rewrite: str) -> None:
    world = World(limit=3 * len(MESSAGE))
    streams = [world.shown(modes, rewrite) for _ in range(3)]
    assert world.handler.budget.used == 3 * len(MESSAGE), "also while they wait for their turn"
    late, answers = world.shown(modes)
    assert refused([read(answer) for answer in answers]).status == 503
    late.end()
    assert [(next(answers), next(answers)) for _, answers in streams] == [(b"", b"")] * 3, (
        "others have their turn first"
    )
    assert world.handler.budget.used == 3 * len(LARGE)
    world.handler.budget.limit = 3 * len(LARGE)
    late, answers = world.shown(modes)
    assert refused([read(answer) for answer in answers]).status == 503
    late.end()
    for number, (stream, answers) in enumerate(streams):
        answers_read = [read(answer) for answer in answers if answer]
        assert destinations(answers_read) == destinations(answers_read[:1])
        expected = LARGE.replace(b'"m"', b'"tuned"') if rewrite else LARGE
        if modes == FULL_DUPLEX:
            assert b"".join(message.streamed or b"" for message in answers_read) == expected
        else:
            assert answers_read[-1].replaced == (expected if rewrite else None)
        assert world.handler.budget.used == (2 - number) * len(LARGE)
        stream.end()
    assert world.load == {}


@BOTH
@pytest.mark.parametrize("steps", range(5))
def test_a_stream_that_is_lost_between_two_steps_holds_nothing(modes: tuple[BodyMode, BodyMode], steps: int) -> None:
    world = World()
    stream, answers = world.shown(modes)
    for _ in range(steps):
        next(answers)
    stream.end()
    assert (world.handler.budget.used, world.handler.open, world.load) == (0, 0, {})
    assert world.view.prefixes.held == 0, "nobody has computed its prompt"
    assert {decision.progress.state for decision in world.ring.newest(1)} <= {"aborted"}


@BOTH
def test_a_large_request_is_answered_in_steps(modes: tuple[BodyMode, BodyMode]) -> None:
    world = World()
    empty = list(world.shown(modes)[1]).count(b"")
    assert empty == 5, "before and after it is read, before and after the decision, and before the answers"
    assert b"" not in list(world.shown(modes, data=sent(1000))[1])


def restored(piece: bytes, times: int, asked: str) -> tuple[int, int]:
    """Bytes that came, and that went on, of a stream whose names are put back."""
    reader = ResponseReader("s", asked)
    reader.begin(Headers([("content-type", "text/event-stream")]))
    return len(piece) * times, sum(len(reader.feed(piece, False)) for _ in range(times))


@pytest.mark.parametrize("asked", ["a", "m" * 1024, "\x01" * 1024])
def test_names_put_back_lengthen_a_response_within_bounds(asked: str) -> None:
    came, went = restored(b'data:{"model":"s"}\n' * 100, 1000, asked)
    piece = 100 * 6 * len(asked)
    assert came <= went <= 2 * came + GROWTH + piece
    assert (went == came) == (len(asked) == 1)
    came, went = restored(b'data:{"model":"s"}\n' * (MAX_LINES + 1), 1, asked)
    assert went == came, "of too many lines at once none is read"


@contextmanager
def kept() -> Iterator[Callable[[], int]]:
    """How many bytes have been allocated since the beginning, and not freed."""
    gc.collect()
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


LONG = {f"x-{number}": "a" * 600 for number in range(100)}


@BOTH
def test_long_headers_whose_bodies_never_come_make_room_for_other_requests(modes: tuple[BodyMode, BodyMode]) -> None:
    world = World(limit=10**6)
    with kept() as size:
        unfinished = [
            world.begin(headers({**dict(CHAT), **LONG, "x-mine": str(number)}, modes=modes))[0] for number in range(100)
        ]
        assert size() < 2 * 10**6, "of more than six million"
    assert world.handler.budget.used <= 10**6
    _, answers = world.begin(headers(CHAT, modes=modes), body(sent(2000), end=True))
    assert destinations(answers)
    statuses = {world.say(stream, body(sent(), end=True))[-1].status for stream in unfinished}
    assert statuses == {503, 0}, "some had to go, and the others go on"
    for stream in unfinished:
        stream.end()
    assert world.handler.budget.used == 0


def test_a_request_that_made_room_is_refused_in_the_form_of_its_api() -> None:
    world = World(limit=10**5)
    path = {":method": "POST", ":path": "/v1/messages"}
    streams = [world.begin(headers({**path, **LONG}, modes=LEAN))[0] for _ in range(2)]
    answer = refused(world.say(streams[0], body(sent(), end=True)))
    assert answer.status == 503
    assert json.loads(answer.body)["error"]["type"] == "overloaded_error"


def test_long_headers_for_which_there_is_no_room_are_refused() -> None:
    world = World(limit=10**5)
    world.handler.budget.used += 5 * 10**4
    _, answers = world.begin(headers({**dict(CHAT), **LONG}, modes=LEAN))
    assert refused(answers).status == 503
    assert world.handler.budget.used == 5 * 10**4


def test_of_a_routed_request_no_long_id_is_kept_until_its_response() -> None:
    world = World()
    with kept() as size:
        streams = []
        for number in range(20):
            shown = {**dict(CHAT), "x-request-id": f"{number}" + "x" * 50_000}
            stream, answers = world.begin(headers(shown, modes=LEAN), body(sent(), end=True))
            assert destinations(answers)
            streams.append(stream)
        assert size() < 5 * 10**5


def test_a_long_beginning_of_an_event_isnt_remembered() -> None:
    reader = ResponseReader("base", "mine", LIMIT)
    reader.begin(Headers([("content-type", "text/event-stream")]))
    with kept() as size:
        event = b'data: {"id":"%s","model":"base"}\n\n' % (b"x" * 10**6)
        assert reader.feed(event, False) == event.replace(b"base", b"mine")
        del event
        assert size() < 10**5
