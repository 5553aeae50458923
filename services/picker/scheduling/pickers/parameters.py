"""What every picker can be told."""

from msgspec import Struct


class PickerParameters(Struct, frozen=True, rename="camel"):
    """How many endpoints are named, in order: the first choice and the fallbacks. Zero or less means 1."""

    max_num_of_endpoints: int = 1

    @property
    def wanted(self) -> int:
        return max(self.max_num_of_endpoints, 1)
