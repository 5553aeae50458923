"""`single-profile-handler` and `data-parallel-profile-handler`: there is one profile, and it decides."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import ProfileHandler
from services.picker.scheduling.record import Plan, ProfileRun
from services.picker.scheduling.stages import rank_header


class SingleProfileHandler(ProfileHandler):
    """Runs the one profile once."""

    TYPE = "single-profile-handler"

    @classmethod
    def check_profiles(cls, parameters: Any, names: tuple[str, ...]) -> list[str]:
        return [f"{cls.TYPE} runs one scheduling profile, not {len(names)}"] if len(names) > 1 else []

    def next_profiles(self, cycle: Cycle, names: tuple[str, ...], results: dict[str, ProfileRun]) -> tuple[str, ...]:
        return () if results else names

    def primary(self, cycle: Cycle, results: dict[str, ProfileRun]) -> str:
        return next(iter(results))


class DataParallelParameters(Struct, frozen=True, rename="camel"):
    """The port in front of the ranks."""

    primary_port: Annotated[int, Meta(ge=1, le=65_535)] = 8000


class DataParallelProfileHandler(SingleProfileHandler):
    """The profile picks a rank of a data-parallel server that has one port in front: the destination is the rank's
    address with that port, and a header names the rank's own."""

    TYPE = "data-parallel-profile-handler"
    Parameters = DataParallelParameters
    parameters: DataParallelParameters

    def plan(self, cycle: Cycle, results: dict[str, ProfileRun]) -> Plan:
        primary = self.primary(cycle, results)
        return Plan(primary, set_headers=rank_header(cycle, results, primary), port=self.parameters.primary_port)
