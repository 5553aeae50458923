"""`header-profile-handler`: a request header names the one profile that runs."""

from typing import Annotated

from msgspec import Meta, Struct

from services.picker.request import Refusal
from services.picker.scheduling.checks import HeaderName
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import ProfileHandler
from services.picker.scheduling.record import ProfileRun

SHOWN = 64
"""Characters of the header's value that an error repeats."""


class HeaderProfileParameters(Struct, frozen=True, rename="camel"):
    """The header, and the profile of requests without it."""

    header_name: HeaderName = "EPP-Profile"
    default_profile: Annotated[str, Meta(min_length=1)] = "decode"


class HeaderProfileHandler(ProfileHandler):
    """The profile that the header names; a single profile always runs."""

    TYPE = "header-profile-handler"
    Parameters = HeaderProfileParameters
    parameters: HeaderProfileParameters

    def __init__(self, name: str, parameters: HeaderProfileParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._header = self.parameters.header_name.lower()

    @classmethod
    def check_profiles(cls, parameters: HeaderProfileParameters, names: tuple[str, ...]) -> list[str]:
        if len(names) <= 1 or parameters.default_profile in names:
            return []
        return [f"there is no profile {parameters.default_profile!r}, which defaultProfile names"]

    def next_profiles(self, cycle: Cycle, names: tuple[str, ...], results: dict[str, ProfileRun]) -> tuple[str, ...]:
        if results or len(names) == 1:
            return () if results else names
        wanted = cycle.request.headers.get(self._header).strip() or self.parameters.default_profile
        if wanted in names:
            return (wanted,)
        cycle.refusal = Refusal(status=400, message=f"{self._header}: {wanted[:SHOWN]!r} is no scheduling profile")
        return ()

    def primary(self, cycle: Cycle, results: dict[str, ProfileRun]) -> str:
        return next(iter(results))
