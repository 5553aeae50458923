"""The protobuf wire format, field by field."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.parsers.protobuf import Reader, packed


def read(data: bytes, most: int = 100) -> list[tuple[int, int | bytes]]:
    found = Reader(most).fields(memoryview(data))
    return [(number, value if isinstance(value, int) else bytes(value)) for number, value in found]


def varint(value: int) -> bytes:
    pieces = bytearray()
    while value > 0x7F:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*pieces, value])


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (b"", []),
        (b"\x08\x96\x01", [(1, 150)]),
        (b"\x08" + b"\xff" * 9 + b"\x01", [(1, 2**64 - 1)]),
        (b"\x12\x07testing", [(2, b"testing")]),
        (b"\x12\x00\x08\x00", [(2, b""), (1, 0)]),
        (b"\x09" + b"x" * 8 + b"\x0d" + b"y" * 4 + b"\x08\x01", [(1, 1)]),
        (b"\xf8\xff\xff\xff\x0f\x01", [(2**29 - 1, 1)]),
    ],
)
def test_fields_come_in_order_and_numbers_of_fixed_size_are_passed_over(
    data: bytes, fields: list[tuple[int, int | bytes]]
) -> None:
    assert read(data) == fields


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80", "a number is cut off at the end"),
        (b"\x08", "a number is cut off at the end"),
        (b"\x08" + b"\x80" * 10 + b"\x01", "a number has more than 10 bytes"),
        (b"\x08" + b"\x80" * 10, "a number has more than 10 bytes"),
        (b"\x08" + b"\x80" * 9, "a number is cut off at the end"),
        (b"\x12\x05abc", "field 2 has 5 bytes, but only 3 are left"),
        (b"\x09abc", "field 1 has 8 bytes, but only 3 are left"),
        (b"\x00\x01", "0 is no field number"),
        (b"\x80\x80\x80\x80\x10\x01", "536870912 is no field number"),
        (b"\x0b\x0c", "field 1 has the wire type 3, which is unknown"),
        (b"\x0f", "field 1 has the wire type 7, which is unknown"),
    ],
)
def test_what_is_no_message_is_an_error(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(data)


def test_the_fields_of_all_messages_of_a_reader_count_together() -> None:
    reader, two = Reader(3), memoryview(b"\x08\x01\x08\x02")
    assert list(reader.fields(two)) == [(1, 1), (1, 2)]
    third = reader.fields(two)
    assert next(third) == (1, 1)
    with pytest.raises(ValueError, match="more than 3 fields"):
        next(third)


@given(values=st.lists(st.integers(0, 2**64 - 1), max_size=30))
def test_packed_numbers_are_read_with_their_lower_32_bits(values: list[int]) -> None:
    data = memoryview(b"".join(varint(value) for value in values))
    assert packed(data).tolist() == [value % 2**32 for value in values]
    assert packed(data).dtype == np.uint32


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x01\x80", "the last number is cut off"),
        (b"\x80" * 10 + b"\x01", "a number has more than 10 bytes"),
    ],
)
def test_other_bytes_are_no_packed_numbers(data: bytes, says: str) -> None:
    assert packed(memoryview(b"\x01\x02")).tolist() == [1, 2]
    with pytest.raises(ValueError, match=says):
        packed(memoryview(data))


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    try:
        found = read(data, 20)
    except ValueError:
        return
    assert all(0 < number < 2**29 for number, _ in found)
