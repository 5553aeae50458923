"""A document that is wrong all over."""

import pytest
from msgspec import Struct

from shared.config import decode
from shared.config.decode import MISSING
from shared.config.problems import Problems


class _Known(Struct):
    headroom: float = 0.0


def test_the_first_unknown_fields_are_told_what_may_be_meant_and_all_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = Problems()
    compared: list[str] = []

    def nearest(word: str, _: object) -> str:
        compared.append(word)
        return "; did you mean it?"

    monkeypatch.setattr(decode, "nearest", nearest)
    assert decode.decode({f"headrom{number}": 1 for number in range(5000)}, _Known, "", problems) is MISSING
    assert len(problems.errors) == 5000
    assert str(problems.errors[0]).endswith("did you mean it?")
    assert len(compared) < 200
