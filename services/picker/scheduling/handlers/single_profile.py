"""`single-profile-handler`: there is one profile, and it decides."""

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import ProfileHandler
from services.picker.scheduling.record import ProfileRun
from shared.plugin import NoParameters


class SingleProfileHandler(ProfileHandler):
    """Runs the one profile once."""

    TYPE = "single-profile-handler"

    @classmethod
    def check_profiles(cls, parameters: NoParameters, names: tuple[str, ...]) -> list[str]:
        return [f"{cls.TYPE} runs one scheduling profile, not {len(names)}"] if len(names) > 1 else []

    def next_profiles(self, cycle: Cycle, names: tuple[str, ...], results: dict[str, ProfileRun]) -> tuple[str, ...]:
        return () if results else names

    def primary(self, cycle: Cycle, results: dict[str, ProfileRun]) -> str:
        return next(iter(results))
