"""How numbers are written on the screen. None, which nobody knows, is a dash."""

DASH = "–"


def duration(seconds: float | None) -> str:
    """Two or three digits: `340 µs`, `1.2 ms`, `84 ms`, `2.3 s`."""
    if seconds is None:
        return DASH
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def share(part: float | None) -> str:
    """0 to 1 in per cent."""
    return DASH if part is None else f"{part:.0%}"


def clock(seconds: float) -> str:
    """`00:07`, `61:30`: minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02}:{rest:02}"


def count(number: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def bar(part: float, width: int) -> str:
    """0 to 1 as a bar of eighths."""
    eighths = round(max(0.0, min(part, 1.0)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + " ▏▎▍▌▋▊▉"[rest].strip()).ljust(width)
