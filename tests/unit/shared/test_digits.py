"""Numbers with too many digits are found, however the pieces of a document are cut."""

import pytest

from shared.digits import MAX_RUN, Numbers

LONG = "9" * (MAX_RUN + 1)


@pytest.mark.parametrize("size", [1, 2, 3, 63, 64, 65, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"[{LONG}]", True),
        (f"[-{LONG}]", True),
        (f"[1.{LONG}]", True),
        (f"[{LONG[1:]},{LONG[1:]}]", False),
        (f'["{LONG}", "a,{LONG}"]', False),
        (f'["{LONG}",{LONG}]', True),
        (rf'["\"{LONG}", "\\"]', False),
        (rf'["\\",{LONG}]', True),
        (rf'["\\\"{LONG}{LONG}"]', False),
        (rf'{{"\\\\":{LONG}}}', True),
    ],
)
def test_long_numbers_are_found_and_digits_in_texts_are_not(text: str, expected: bool, size: int) -> None:
    numbers, data = Numbers(), text.encode()
    assert any(numbers.too_long(data[at : at + size]) for at in range(0, len(data), size)) is expected
