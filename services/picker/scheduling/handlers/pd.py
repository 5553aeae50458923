"""`pd-profile-handler`: picks endpoints for decode and prefill. `disagg-profile-handler` does more."""

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.handlers.disagg import StageDeciders, StageProfiles, StagesHandler
from services.picker.scheduling.record import Plan, ProfileRun
from services.picker.scheduling.stages import rank_header
from shared.plugin import Reference, Role


class PdParameters(Struct, frozen=True, rename="camel"):
    """Profiles, the decider, and the port in front of data-parallel ranks."""

    decode_profile: Annotated[str, Meta(min_length=1)] = "decode"
    prefill_profile: Annotated[str, Meta(min_length=1)] = "prefill"
    decider_plugin_name: Annotated[str, Meta(min_length=1)] = "prefix-based-pd-decider"
    primary_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """0: ranks have ports of their own."""
    prefix_plugin_type: Any = None
    prefix_plugin_name: Any = None
    """Both have no effect."""


class PdProfileHandler(StagesHandler):
    """Decode first, then prefill if the decider says so."""

    TYPE = "pd-profile-handler"
    Parameters = PdParameters
    parameters: PdParameters

    @classmethod
    def stages(cls, parameters: PdParameters) -> tuple[StageProfiles, StageDeciders]:
        return (
            StageProfiles(parameters.decode_profile, parameters.prefill_profile, ""),
            StageDeciders(parameters.decider_plugin_name),
        )

    @classmethod
    def references(cls, parameters: PdParameters) -> tuple[Reference, ...]:
        return (Reference("deciderPluginName", parameters.decider_plugin_name, Role.DECIDER),)

    def plan(self, cycle: Cycle, results: dict[str, ProfileRun]) -> Plan:
        plan = super().plan(cycle, results)
        if not self.parameters.primary_port:
            return plan
        headers = {**plan.set_headers, **rank_header(cycle, results, plan.primary)}
        return replace(plan, set_headers=headers, port=self.parameters.primary_port)
