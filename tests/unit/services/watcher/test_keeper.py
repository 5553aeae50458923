import pytest

from services.watcher.keeper import few

TEN = [str(number) for number in range(10)]


@pytest.mark.parametrize(
    ("texts", "shown"),
    [([], []), (TEN, TEN), ([*TEN, "x"], [*TEN, "… and 1 more"]), (TEN * 3, [*TEN, "… and 20 more"])],
    ids=["none", "ten", "eleven", "thirty"],
)
def test_ten_are_named_and_the_others_counted(texts: list[str], shown: list[str]) -> None:
    assert few(texts) == shown
