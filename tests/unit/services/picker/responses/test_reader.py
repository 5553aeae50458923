"""Responses on their way through a reader, however they are cut."""

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.request import Headers
from services.picker.responses.reader import Interest, ResponseReader
from services.picker.responses.usage import NOTHING, Usage

CHAT = (
    b'{"id":"c1","object":"chat.completion","created":1,"model":"tuned-v2",'
    b'"choices":[{"message":{"role":"assistant","content":"the \\"model\\":\\"tuned-v2\\" it is","model":"tuned-v2"}}],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}'
)
CHAT_RESTORED = CHAT.replace(b'"created":1,"model":"tuned-v2"', b'"created":1,"model":"tuned"')


def event(text: str, more: str = "") -> bytes:
    return (
        f'data: {{"id":"c1","object":"chat.completion.chunk","model":"tuned-v2","choices":[{{"index":0,'
        f'"delta":{{"content":{json.dumps(text)}}}}}]{more}}}\n\n'
    ).encode()


STREAM = b"".join(
    (
        *(event(f'token {number} "model":"tuned-v2" é') for number in range(5)),
        b": a comment\n\n",
        b'data: {"id":"c1","object":"chat.completion.chunk","model":"tuned-v2","choices":[],'
        b'"usage":{"prompt_tokens":11,"completion_tokens":5}}\n\n',
        b"data: [DONE]\n\n",
    )
)
STREAM_RESTORED = STREAM.replace(
    b'"chat.completion.chunk","model":"tuned-v2"', b'"chat.completion.chunk","model":"tuned"'
)


def reader(
    kind: str = "application/json", *, renames: bool = True, limit: int = 2**20, encoding: str = ""
) -> ResponseReader:
    made = ResponseReader("tuned-v2" if renames else "", "tuned", limit)
    made.begin(Headers([("content-type", kind), ("content-encoding", encoding)]))
    return made


def through(response_reader: ResponseReader, chunks: Iterable[bytes]) -> bytes:
    pieces = list(chunks)
    return b"".join(response_reader.feed(piece, index == len(pieces) - 1) for index, piece in enumerate(pieces))


def cut(text: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(text) + 1) for place in places}), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


PLACES = st.lists(st.integers(0, 10_000), max_size=12)


@given(PLACES)
def test_a_responses_model_is_the_clients_again_and_its_usage_is_known_wherever_it_is_cut(places: list[int]) -> None:
    for kind, text, restored, usage in (
        ("application/json", CHAT, CHAT_RESTORED, Usage(7, 3, 4)),
        ("text/event-stream; charset=utf-8", STREAM, STREAM_RESTORED, Usage(11, 5, None)),
    ):
        changes, reads, pieces = reader(kind), reader(kind, renames=False), cut(text, places)
        assert through(changes, pieces) == restored
        for index, piece in enumerate(pieces):
            assert reads.feed(piece, index == len(pieces) - 1) == piece
        assert changes.usage == reads.usage == usage


def test_events_leave_as_soon_as_their_line_is_complete() -> None:
    response_reader = reader("text/event-stream")
    whole, begun = event("a"), event("b")[:30]
    assert response_reader.feed(whole + begun, False) == event("a").replace(b"tuned-v2", b"tuned")
    assert response_reader.feed(event("b")[30:], False) == event("b").replace(b"tuned-v2", b"tuned")


def test_a_last_line_without_an_end_leaves_with_an_empty_last_piece() -> None:
    response_reader = reader("text/event-stream")
    assert response_reader.feed(event("a") + b"data: [DONE]", False) == event("a").replace(b"tuned-v2", b"tuned")
    assert response_reader.feed(b"", True) == b"data: [DONE]"
    response_reader = reader("text/event-stream", renames=False)
    assert response_reader.feed(b'data: {"usage":{"output_tokens":2}}', False)
    assert response_reader.feed(b"", True) == b""
    assert response_reader.usage == Usage(None, 2, None)


def test_lines_may_end_with_carriage_returns_and_data_needs_no_blank() -> None:
    response_reader = reader("text/event-stream")
    text = b'data:{"model":"tuned-v2","usage":{"output_tokens":2}}\r\n\r\n'
    assert response_reader.feed(text, True) == b'data:{"model":"tuned","usage":{"output_tokens":2}}\r\n\r\n'
    assert response_reader.usage == Usage(None, 2, None)


def test_lines_may_end_with_carriage_returns_alone_and_arent_held_for_more() -> None:
    text = b'data: {"model":"tuned-v2"}\r\r'
    for renames in (True, False):
        response_reader = reader("text/event-stream", renames=renames, limit=100)
        for _ in range(10):
            assert response_reader.feed(text, False) == (text.replace(b"tuned-v2", b"tuned") if renames else text)
            assert "holds 0 bytes" in repr(response_reader)
    response_reader = reader("text/event-stream", renames=False)
    assert response_reader.feed(b'data: {"usage":{"output_tokens":2}}\rdata: [DONE]\r', False)
    assert response_reader.usage == Usage(None, 2, None)


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("org/tuned", rb'"org\/tuned"'),
        ("tun\u00e9", rb'"tun\u00e9"'),
        ("tun\U0001f600", rb'"tun\ud83d\ude00"'),
        ('a"b', rb'"\u0061\"b"'),
    ],
)
def test_a_name_is_known_however_the_server_spells_it(name: str, spelled: bytes) -> None:
    for kind, text in (("application/json", b'{"model":%s,"a":1}'), ("text/event-stream", b'data: {"model":%s}\n\n')):
        response_reader = ResponseReader(name, "mine")
        response_reader.begin(Headers([("content-type", kind)]))
        assert response_reader.feed(text % spelled, True) == text % b'"mine"'
        other = spelled[:-1] + b'2"'
        response_reader.begin(Headers([("content-type", kind)]))
        assert response_reader.feed(text % other, True) == text % other


def test_an_event_that_begins_like_the_last_one_may_name_the_model_once_more() -> None:
    response_reader = reader("text/event-stream")
    first = b'data: {"model":"tuned-v2","type":"a"}\n\n'
    second = b'data: {"model":"tuned-v2","response":{"model":"tuned-v2"}}\n\n'
    for text in (first, second, first):
        assert response_reader.feed(text, False) == text.replace(b"tuned-v2", b"tuned")


@given(PLACES)
def test_where_nothing_may_be_held_the_same_comes_out_and_most_of_it_at_once(places: list[int]) -> None:
    for kind, text, restored, usage in (
        ("application/json", CHAT, CHAT_RESTORED, Usage(7, 3, 4)),
        ("text/event-stream", STREAM, STREAM_RESTORED, Usage(11, 5, None)),
    ):
        response_reader, came, sent = reader(kind), b"", b""
        response_reader.holds = False
        for piece in cut(text, places):
            sent += piece
            came += response_reader.feed(piece, False)
            assert restored.startswith(came)
            assert len(came) >= len(sent) - text.count(b"tuned-v2") * len(b"-v2") - len(b'"tuned-v2"')
        assert came == restored
        assert response_reader.feed(b"", True) == b""
        assert response_reader.usage == usage


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_what_is_larger_than_the_limit_passes_from_there_on(kind: str, holds: bool) -> None:
    """Where nothing may be held, with the name restored, which comes before."""
    response_reader = reader(kind, limit=100)
    response_reader.holds = holds
    text = b'data: {"model":"tuned-v2","x":"' + b"y" * 300 + b'"}\n\n'
    text = text if kind == "text/event-stream" else text[6:]
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    assert through(response_reader, pieces) == (text if holds else text.replace(b"tuned-v2", b"tuned"))
    assert "holds 0 bytes" in repr(response_reader)


def test_events_of_the_responses_api_have_the_model_one_level_down() -> None:
    response_reader = reader("text/event-stream")
    text = (
        b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r","model":"tuned-v2",'
        b'"usage":{"input_tokens":5,"output_tokens":6,"input_tokens_details":{"cached_tokens":1}}}}\n\n'
    )
    assert response_reader.feed(text, True) == text.replace(b"tuned-v2", b"tuned")
    assert response_reader.usage == Usage(5, 6, 1)


def test_anthropics_streams_tell_their_usage_in_two_parts() -> None:
    response_reader = reader("text/event-stream")
    usage = b'{"input_tokens":9,"output_tokens":1}'
    start = b'data: {"type":"message_start","message":{"model":"tuned-v2","usage":%s}}\n\n' % usage
    delta = b'data: {"type":"message_delta","delta":{},"usage":{"output_tokens":42}}\n\n'
    assert through(response_reader, [start, delta]) == start.replace(b"tuned-v2", b"tuned") + delta
    assert response_reader.usage == Usage(9, 42, None)


def test_of_a_chunk_full_of_usage_a_bounded_part_is_read() -> None:
    def usage(number: int) -> bytes:
        return event("", f',"usage":{{"prompt_tokens":{number},"completion_tokens":1,"more":[{"[]," * 6_000}0]}}')

    response_reader = reader("text/event-stream")
    response_reader.feed(b"".join(map(usage, range(1, 20))), False)
    assert response_reader.usage == Usage(3, 1, None)
    response_reader.feed(usage(200), False)
    assert response_reader.usage == Usage(200, 1, None)


def test_usage_that_comes_with_every_event_counts_once() -> None:
    response_reader = reader("text/event-stream")
    for count in (1, 2, 3):
        response_reader.feed(event("x", f',"usage":{{"prompt_tokens":4,"completion_tokens":{count}}}'), False)
    assert response_reader.usage == Usage(4, 3, None)


@pytest.mark.parametrize(
    "text",
    [
        b"no json at all",
        b'{"model":"tuned-v2"',
        b'["model","tuned-v2"]',
        b'{"model":"tuned-v2","usage":"x"} trailing',
        b'{"model":"\xff"}',
        b'{"a":' + b"[" * 100_000,
        b"",
    ],
    ids=["text", "cut off", "a list", "trailing", "invalid utf-8", "nested deeply", "nothing"],
)
def test_a_json_response_that_isnt_one_passes_as_it_is(text: bytes) -> None:
    response_reader = reader()
    assert response_reader.feed(text, True) == text
    assert response_reader.usage == NOTHING


@pytest.mark.parametrize("usage", ['"x"', "7", "null", "[1]", '{"prompt_tokens":"many"}', "true"])
def test_usage_that_is_none_leaves_the_rest_readable(usage: str) -> None:
    response_reader = reader()
    assert response_reader.feed(f'{{"model":"tuned-v2","usage":{usage}}}'.encode(), True).startswith(
        b'{"model":"tuned"'
    )
    assert response_reader.usage == NOTHING


def test_an_object_leaves_when_it_is_whole_and_doesnt_wait_for_the_responses_end() -> None:
    """The end may be trailers, when a proxy takes nothing of the body any more."""
    response_reader = reader()
    assert response_reader.feed(CHAT[:100], False) == b""
    assert response_reader.feed(CHAT[100:] + b"\n", False) == CHAT_RESTORED + b"\n"
    assert response_reader.usage == Usage(7, 3, 4)
    assert response_reader.feed(b" ", True) == b" "
    assert "holds 0 bytes" in repr(response_reader)


def test_what_cant_become_an_object_isnt_held() -> None:
    response_reader = reader()
    assert response_reader.feed(b" \n", False) == b" \n"
    assert response_reader.feed(b"no healthy upstream", False) == b"no healthy upstream"
    assert response_reader.feed(b'{"model":"tuned-v2"}', True) == b'{"model":"tuned-v2"}'


def test_blanks_before_an_object_keep_the_connection_alive_and_dont_wait_for_it() -> None:
    response_reader = reader()
    assert [response_reader.feed(b" ", False) for _ in range(3000)] == [b" "] * 3000
    assert "holds 0 bytes" in repr(response_reader)
    assert response_reader.feed(b"\n" + CHAT[:50], False) == b""
    assert response_reader.feed(CHAT[50:], False) == b"\n" + CHAT_RESTORED


def test_pieces_that_all_look_like_the_end_are_not_read_for_ever() -> None:
    """8 times the limit is read, then the rest passes; nothing of it is lost."""
    response_reader, text = reader(limit=10_000), b'{"model":"tuned-v2","x":"' + b"}" * 9_000 + b'"}'
    given_up = [index for index in range(len(text)) if response_reader.feed(text[index : index + 1], False)]
    assert 300 < given_up[0] < 1000
    assert through(reader(limit=10_000), [text[index : index + 1] for index in range(len(text))]) == text


def test_a_response_is_read_by_its_content_type() -> None:
    def interest(kind: str, encoding: str = "", target: str = "tuned-v2") -> Interest:
        return ResponseReader(target, "tuned").begin(Headers([("content-type", kind), ("content-encoding", encoding)]))

    assert interest("application/json; charset=utf-8") is Interest.CHANGE
    assert interest("application/problem+json") is Interest.CHANGE
    assert interest("Text/Event-Stream") is Interest.CHANGE
    assert interest("application/json", target="") is Interest.READ
    assert interest("application/json", target="tuned") is Interest.READ
    assert interest("application/json", "gzip") is Interest.NOTHING
    assert interest("text/plain") is Interest.NOTHING
    assert interest("") is Interest.NOTHING
