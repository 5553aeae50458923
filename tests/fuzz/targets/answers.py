"""What must hold of whatever a model server sends: it is the same answer, or refused, however its bytes are cut.

An input is what a server sends until it closes the connection.
"""

from itertools import pairwise

from services.collector.http.response import BadResponseError, Response, ResponseReader, TooLargeError, decompress

MAX_REFUSAL = 600
"""Characters: the beginning of a line, whose control characters take four each, and what is said of it."""
MAX_BYTES = 4096
"""Of an input: as many as a page may have here."""
HEADER_LIMIT = 256


def check(data: bytes) -> None:
    """Raises AssertionError, or what the reader let out, for an input that shows a fault."""
    data = data[:MAX_BYTES]
    whole = _read(data, [len(data)])
    assert whole == _read(data, range(1, len(data) + 1))
    if data:
        assert whole == _read(data, [sum(data) % len(data), len(data)])


def _read(data: bytes, cuts: list[int] | range) -> tuple[object, ...] | type[Exception]:
    """What is read, or the kind of its refusal; the connection's further use aside, as what follows isn't looked at."""
    reader = ResponseReader(MAX_BYTES, HEADER_LIMIT)
    answer: Response | None = None
    try:
        for start, end in pairwise([0, *cuts]):
            if start < end and answer is None:
                answer = reader.feed(data[start:end])
        answer = answer or reader.end()
    except TooLargeError:
        return TooLargeError
    except BadResponseError as error:
        refusal = str(error)
    else:
        assert len(answer.body) <= MAX_BYTES
        assert not answer.encoding or sum(map(len, _expanded(answer))) <= MAX_BYTES
        return answer.status, answer.reason, answer.headers, answer.body, answer.encoding
    assert 0 < len(refusal) < MAX_REFUSAL
    return BadResponseError


def _expanded(answer: Response) -> list[bytes]:
    """The pieces of a compressed body; nothing of one that breaks off, or is too large."""
    try:
        return list(decompress(answer, MAX_BYTES))
    except (BadResponseError, TooLargeError):
        return []
