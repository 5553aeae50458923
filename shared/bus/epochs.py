"""Which epochs are plausible: an epoch is the time, in unix milliseconds, at which its owner took over.

One too far ahead of the clock is forged, or its owner's clock is wrong. It counts as lower than all others: it is
believed only if no other owner has published for a while.
"""

EPOCHS = 1 << 64
"""How many there are; those that can't be count from minus so many."""
MAX_AHEAD = 86400.0
"""Seconds by which an epoch may be ahead of the clock of who reads it."""


def next_epoch(unix_seconds: float, highest_seen: int) -> int:
    """The epoch of a new leader: the clock's milliseconds, and in any case more than was seen before."""
    return max(int(unix_seconds * 1000), highest_seen + 1)


def plausible_epoch(epoch: int, unix_seconds: float) -> int:
    """The epoch for comparisons: below 0 if it isn't plausible."""
    return epoch if epoch <= (unix_seconds + MAX_AHEAD) * 1000 else epoch - EPOCHS
