"""The Content-Length that a peer sends (RFC 9110, section 8.6)."""

import sys

_MAX_DIGITS = 18
"""Of a length that any limit could allow. Python reads up to 4 300, and refuses more."""


def content_length(text: str) -> int | None:
    """Bytes; `sys.maxsize` for a number of more than 18 digits, whatever they are; None for what is no number."""
    if not (text.isascii() and text.isdigit()):
        return None
    return int(text) if len(text) <= _MAX_DIGITS else sys.maxsize
