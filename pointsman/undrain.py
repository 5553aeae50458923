"""`pointsman undrain NAME`: the reverse of `pointsman drain`."""

from collections.abc import Sequence

from pointsman import drain


def main(argv: Sequence[str]) -> int:
    return drain.main(argv, "undrain")
