"""What must hold of header blocks, whatever bytes a client sends: each is read or ends the connection, a block that is
remembered means what it means when it is read, and what it says is within the limits.

An input is a sequence of blocks of one connection, with lines of two dashes between them: each its bytes, or a JSON
object with the headers that our encoder makes a block of, such as `{"headers": [[":path", "/"]], "plain": true}`; plain
ones don't change the table.
"""

from collections.abc import Sequence

from hpack import Encoder

from services.picker.transport.calls import StatusCode
from services.picker.transport.http2.errors import ConnectionFailed, ErrorCode
from services.picker.transport.http2.header_blocks import REFUSED, HeaderBlocks
from services.picker.transport.http2.request_head import Malformed, RequestHead, check_trailers, read_head
from tests.fuzz import sequences

LIMIT = 2_000
"""Bytes of a block, and of its headers."""
FRAGMENTS = 5
ENDS = {ErrorCode.COMPRESSION_ERROR, ErrorCode.ENHANCE_YOUR_CALM}
PER_HEADER = 32
"""Bytes that a header counts beside its own (RFC 9113, section 6.5.2)."""

Outcome = RequestHead | ErrorCode | None
"""What a block is: a request's head, what ends the connection, or, as None, what ends its stream."""


def check(data: bytes) -> None:
    """Raises AssertionError, or what the reader let out, for an input that shows a fault."""
    blocks = _blocks(data)
    outcomes = _read(blocks, remember=True)
    assert outcomes == _read(blocks, remember=False) == _read(blocks, remember=True, fragments=2)
    assert not {outcome for outcome in outcomes if isinstance(outcome, ErrorCode)} - ENDS


def _read(blocks: Sequence[bytes], *, remember: bool, fragments: int = 1) -> list[Outcome]:
    reader = HeaderBlocks(LIMIT, FRAGMENTS, read_head)
    outcomes: list[Outcome] = []
    for block in blocks:
        try:
            if fragments > 1:
                block = _joined(reader, block)
            if remember:
                head = reader.get(block) or reader.read(block)
            else:
                headers = reader.decode(block)
                size = sum(len(name) + len(value) + PER_HEADER for name, value in headers)
                assert size <= REFUSED * LIMIT
                assert reader.too_long is (max(size, len(block)) > LIMIT)
                head = read_head(headers)
        except Malformed:
            outcomes.append(None)
        except ConnectionFailed as failure:
            return [*outcomes, failure.code]
        else:
            _check_head(head)
            outcomes.append(head)
    return outcomes


def _joined(reader: HeaderBlocks[RequestHead], block: bytes) -> bytes:
    reader.begin(block[: len(block) // 2])
    reader.append(block[len(block) // 2 :])
    return reader.take()


def _check_head(head: RequestHead) -> None:
    assert head.path
    assert head.http_status in (0, 405, 415)
    assert head.content_length is None or head.content_length >= 0
    assert head.timeout >= 0 or (head.refusal is not None and head.refusal[0] is StatusCode.INTERNAL)
    check_trailers(head.metadata)
    assert not any(name.startswith(":") for name, _ in head.metadata)


def _blocks(data: bytes) -> list[bytes]:
    encoder = Encoder()
    return [_block(part, encoder) for part in sequences.parts(data)]


def _block(part: bytes, encoder: Encoder) -> bytes:
    """The bytes that a part of an input stands for."""
    try:
        step = sequences.value(part)
        return encoder.encode([(str(name), str(value), bool(step.get("plain"))) for name, value in step["headers"]])
    except (ValueError, TypeError, AttributeError, KeyError, IndexError):
        return part
