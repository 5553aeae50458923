"""Answers that name a destination: put together from pieces, they read as if the library had made them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.extproc import outgoing
from services.picker.extproc.outgoing import Mutation
from tests.unit.services.picker.extproc.proxy import Answer, read

LENGTHS = [1, 2, 9, 40, 41, 60, 64, 83, 84, 85, 100, 125, 126, 127, 128, 129, 200, 255, 256, 257, 400]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_destination_of_any_length_is_in_header_and_metadata(length: int) -> None:
    destination = ("10.0.0.1:8000,fd00::\u00e4" * 30)[:length]
    changed = {"set_headers": {"x-gateway-destination-endpoint": destination}, "clear_route_cache": True}
    metadata = {"x-gateway-destination-endpoint": destination}
    mutation = Mutation(destination=destination)
    for _ in range(2):
        assert read(outgoing.answer_headers(mutation)) == Answer("request_headers", metadata=metadata, **changed)  # type: ignore[arg-type]
        assert read(outgoing.answer_body(mutation)) == Answer("request_body", metadata=metadata, **changed)  # type: ignore[arg-type]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_pieces_and_library_make_the_same_bytes(destination: str) -> None:
    mutation = Mutation(destination=destination)
    assert outgoing.answer_headers(mutation) == outgoing._mutated("request_headers", mutation)
    assert outgoing.answer_body(mutation) == outgoing._mutated("request_body", mutation)


@pytest.mark.parametrize(("seconds", "retry_after"), [(0.0001, 0.001), (0.25, 0.25), (3600.0, 3600.0)])
def test_a_proxy_is_told_in_milliseconds_how_long_to_wait_at_least_one(seconds: float, retry_after: float) -> None:
    assert read(outgoing.longer(seconds)).patience == retry_after


def test_what_else_is_changed_is_in_the_answer() -> None:
    mutation = Mutation(destination="10.0.0.1:8000", set_headers={"a": "1"}, remove_headers=["b"])
    answer = read(outgoing.answer_body(mutation, (b"ot", memoryview(b"her"))))
    assert answer.set_headers == {"x-gateway-destination-endpoint": "10.0.0.1:8000", "a": "1"}
    assert (answer.remove_headers, answer.replaced) == (("b",), b"other")
    assert read(outgoing.answer_headers(mutation)).remove_headers == ("b",)
