import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.simulator import tokens
from services.simulator.tokens import Message, block_hashes


@pytest.mark.parametrize(("text", "count"), [("", 1), ("a", 1), ("four", 1), ("fives", 2), ("äöüß", 2)])
def test_four_bytes_are_a_token(text: str, count: int) -> None:
    assert tokens.from_text(text).tokens == count


def test_token_ids_are_a_token_each_and_one_that_does_not_fit_is_named() -> None:
    assert tokens.from_ids([0, 1, 2**32 - 1]).tokens == 3
    for bad in (-1, 2**32):
        with pytest.raises(ValueError, match=f"^{bad} isn't a token id"):
            tokens.from_ids([1, bad])


def test_a_lone_surrogate_is_a_character_too() -> None:
    assert tokens.from_text("\ud800").data == b"?"


def test_a_chat_is_laid_out_turn_by_turn() -> None:
    chat = [Message("system", "Be brief."), Message("user", [{"type": "text", "text": "Hi"}])]
    assert tokens.from_messages(chat).data.decode() == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@settings(max_examples=30)
@given(data=st.binary(max_size=300), more=st.binary(max_size=100), block=st.integers(1, 5))
def test_blocks_of_a_prefix_are_the_blocks_of_the_whole(data: bytes, more: bytes, block: int) -> None:
    prefix, whole = list(block_hashes(data, block, 0)), list(block_hashes(data + more, block, 0))
    assert len(prefix) == len(data) // (4 * block)
    assert whole[: len(prefix)] == prefix


def test_a_block_depends_on_all_before_it() -> None:
    assert list(block_hashes(b"aaaabbbb", 1, 0))[1] != list(block_hashes(b"ccccbbbb", 1, 0))[1]


def test_adapters_have_chains_of_their_own() -> None:
    chains = {tuple(block_hashes(b"aaaabbbb", 1, tokens.chain_seed(name))) for name in ("", "a", "b")}
    assert len(chains) == 3


def test_an_answer_has_four_bytes_a_token_and_depends_on_its_mark() -> None:
    assert len(tokens.answer_bytes(7, 100)) == 400
    assert tokens.answer_bytes(7, 100) == tokens.answer_bytes(7, 100)
    assert tokens.answer_bytes(7, 100) != tokens.answer_bytes(8, 100)
    assert tokens.answer_bytes(7, 50) == tokens.answer_bytes(7, 100)[:200]


@settings(max_examples=30)
@given(mark=st.integers(0, 2**64 - 1), mean=st.integers(1, 1000))
def test_an_answer_is_half_to_one_and_a_half_of_the_mean(mark: int, mean: int) -> None:
    assert max(1, mean // 2) <= tokens.answer_length(mark, mean) <= max(1, mean + mean // 2)


def test_choices_and_seeds_answer_differently() -> None:
    prompt = tokens.from_text("Hi")
    assert len({tokens.fingerprint(prompt, seed, choice) for seed in range(3) for choice in range(3)}) == 9


def test_an_embedding_is_a_unit_vector_that_depends_on_the_text() -> None:
    each = tokens.embedding(tokens.from_text("one"), 0, 16)
    assert math.isclose(sum(value * value for value in each), 1)
    assert each == tokens.embedding(tokens.from_text("one"), 0, 16)
    assert each != tokens.embedding(tokens.from_text("two"), 0, 16)
