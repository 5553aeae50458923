"""Every target's corpus, and a moment of fuzzing around it; `make fuzz` goes on for longer."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.picker.request import Headers
from tests.fuzz.targets import CORPUS, TARGETS, check_of, seeds
from tests.fuzz.targets.parsers import CHAIN

EXAMPLES = 60
"""Edited inputs of each target."""
PIECES = [b'"', b"{", b"[", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"0", b"9", b":", b"\0", b"\xff", b"#", b"\n--\n", b"\f"]
EDITS = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 12), st.one_of(st.binary(max_size=6), st.sampled_from(PIECES))),
    min_size=1,
    max_size=4,
)


def test_every_target_has_a_corpus() -> None:
    assert sorted(folder.name for folder in CORPUS.iterdir()) == sorted(TARGETS)


@pytest.mark.parametrize(
    ("target", "seed"), [pytest.param(name, seed, id=f"{name}-{seed.name}") for name in TARGETS for seed in seeds(name)]
)
def test_what_a_target_states_holds_of_its_corpus(target: str, seed: Path) -> None:
    check_of(target)(seed.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_what_a_target_states_holds_whatever_an_input_becomes(target: str, data: st.DataObject) -> None:
    changed = data.draw(st.sampled_from(seeds(target))).read_bytes()
    for at, removed, put in data.draw(EDITS):
        changed = changed[:at] + put + changed[at + removed :]
    check_of(target)(changed)


def test_the_corpus_of_the_parsers_has_every_claimed_path() -> None:
    paths = {seed.read_bytes().partition(b"\n")[0].partition(b" ")[0].decode("latin-1") for seed in seeds("parsers")}
    found = {CHAIN.find(path, Headers())[1] for path in paths}
    claimed = {suffix for parser in found for suffix in parser.SUFFIXES}
    assert len(found) == 7
    assert {suffix for suffix in claimed if any(path.endswith(suffix) for path in paths)} == claimed
