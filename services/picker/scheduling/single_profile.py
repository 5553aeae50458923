"""`single-profile-handler`: there is one profile, and it decides."""

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import ProfileHandler
from services.picker.scheduling.record import ProfileRun


class SingleProfileHandler(ProfileHandler):
    """Runs the one profile once."""

    TYPE = "single-profile-handler"

    def next_profiles(self, cycle: Cycle, names: tuple[str, ...], results: dict[str, ProfileRun]) -> tuple[str, ...]:
        return () if results else names

    def primary(self, cycle: Cycle, results: dict[str, ProfileRun]) -> str:
        return next(iter(results))
