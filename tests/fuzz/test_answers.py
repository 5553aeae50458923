"""The answers' corpus, and a moment of fuzzing around it; `make fuzz` goes on for longer."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.answers import CORPUS, check

SEEDS = sorted(CORPUS.iterdir())
PIECES = [b"\r\n", b"\r\n\r\n", b" ", b"0", b"9", b":", b";", b"\0", b"HTTP/1.1 100 Continue\r\n\r\n"]
EDITS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 12), st.one_of(st.binary(max_size=6), st.sampled_from(PIECES))),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.name)
def test_every_answer_of_the_corpus_is_read_alike_however_it_is_cut(seed: Path) -> None:
    check(seed.read_bytes())


@given(seed=st.sampled_from(SEEDS), edits=EDITS)
def test_whatever_an_answer_becomes_it_is_read_alike_however_it_is_cut(
    seed: Path, edits: list[tuple[int, int, bytes]]
) -> None:
    data = seed.read_bytes()
    for at, removed, put in edits:
        data = data[:at] + put + data[at + removed :]
    check(data)
