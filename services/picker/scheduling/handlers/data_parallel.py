"""`data-parallel-profile-handler`: one profile picks a rank of a data-parallel server that has one port in front."""

from typing import Annotated

from msgspec import Meta, Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import ProfileHandler
from services.picker.scheduling.record import Plan, ProfileRun
from services.picker.scheduling.stages import rank_header


class DataParallelParameters(Struct, frozen=True, rename="camel"):
    """The port in front of the ranks."""

    primary_port: Annotated[int, Meta(ge=1, le=65_535)] = 8000


class DataParallelProfileHandler(ProfileHandler):
    """The destination is the rank's address with the primary port; a header names the rank's own."""

    TYPE = "data-parallel-profile-handler"
    Parameters = DataParallelParameters
    parameters: DataParallelParameters

    @classmethod
    def check_profiles(cls, parameters: DataParallelParameters, names: tuple[str, ...]) -> list[str]:
        return [f"{cls.TYPE} runs one scheduling profile, not {len(names)}"] if len(names) > 1 else []

    def next_profiles(self, cycle: Cycle, names: tuple[str, ...], results: dict[str, ProfileRun]) -> tuple[str, ...]:
        return () if results else names

    def plan(self, cycle: Cycle, results: dict[str, ProfileRun]) -> Plan:
        (primary,) = results
        return Plan(primary, set_headers=rank_header(cycle, results, primary), port=self.parameters.primary_port)
