"""What waits for a peer's window takes little more memory than the bytes that are counted."""

from collections import deque
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from services.picker.transport.http2.pieces import add, taken


@given(st.lists(st.binary(max_size=9000), max_size=20), st.lists(st.integers(1, 9000)))
def test_what_was_added_is_taken_in_order_and_what_is_left_holds_at_most_twice_its_bytes(
    messages: list[bytes], sizes: list[int]
) -> None:
    pending: deque[bytes | memoryview] = deque()
    for message in messages:
        add(pending, b"head ", message)
    whole = b"".join(b"head " + message for message in messages)
    came = b""
    for size in sizes:
        came += b"".join(taken(pending, min(size, len(whole) - len(came))))
        held = sum(len(cast(bytes, piece.obj) if isinstance(piece, memoryview) else piece) for piece in pending)
        assert held <= 2 * (len(whole) - len(came))
    assert came + b"".join(pending) == whole


def test_many_short_messages_are_few_pieces() -> None:
    pending: deque[bytes | memoryview] = deque()
    for _ in range(10_000):
        add(pending, b"\0" * 5, b"ab")
    assert len(pending) <= 10_000 * 7 / 4096 + 1
