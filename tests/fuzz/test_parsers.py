"""The parsers' corpus, and a moment of fuzzing around it; `make fuzz` goes on for longer."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.requests.request import Headers
from tests.fuzz.parsing import CHAIN, CORPUS, check

SEEDS = sorted(CORPUS.iterdir())
EDITS = st.lists(
    st.tuples(
        st.integers(0, 400), st.integers(0, 12), st.one_of(st.binary(max_size=6), st.sampled_from([b'"', b"{", b"["]))
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.name)
def test_every_input_of_the_corpus_is_read_or_refused(seed: Path) -> None:
    check(seed.read_bytes())


def test_the_corpus_has_every_claimed_path() -> None:
    paths = {seed.read_bytes().partition(b"\n")[0].partition(b" ")[0].decode("latin-1") for seed in SEEDS}
    found = {CHAIN.find(path, Headers()) for path in paths}
    claimed = {suffix for parser in found if parser is not None for suffix in parser.SUFFIXES}
    assert len(found) == 5
    assert {suffix for suffix in claimed if any(path.endswith(suffix) for path in paths)} == claimed


@given(seed=st.sampled_from(SEEDS), edits=EDITS)
def test_whatever_an_input_becomes_it_is_read_or_refused(seed: Path, edits: list[tuple[int, int, bytes]]) -> None:
    data = seed.read_bytes()
    for at, removed, put in edits:
        data = data[:at] + put + data[at + removed :]
    check(data)
