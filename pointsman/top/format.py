"""How numbers are written for people. None, an unknown value, is a dash."""

DASH = "–"


def duration(seconds: float | None) -> str:
    """Two or three digits: `340 µs`, `1.2 ms`, `84 ms`, `2.3 s`."""
    if seconds is None:
        return DASH
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.{0 if seconds >= 0.01 else 1}f} ms"
    return f"{seconds:.{0 if seconds >= 100 else 1}f} s"


def percent(share: float | None) -> str:
    """A share from 0 to 1 in per cent."""
    return DASH if share is None else f"{share:.0%}"


def clock(seconds: float) -> str:
    """Minutes and seconds: `00:07`, `61:30`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02}:{rest:02}"


def count(number: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
