"""`prefill-header-handler`: names the prefill endpoint in a header, as `disagg-profile-handler` does."""

from collections.abc import Mapping

from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import PreRequest
from services.picker.scheduling.record import RolePlan
from services.picker.scheduling.stages import PREFILL, host_headers, is_apart


class PrefillHeaderParameters(Struct, frozen=True, rename="camel"):
    """The profile of the stage."""

    prefill_profile: str = "prefill"


class PrefillHeaderHandler(PreRequest):
    """A header if prefill ran and picked another working endpoint than the request's destination."""

    TYPE = "prefill-header-handler"
    Parameters = PrefillHeaderParameters
    parameters: PrefillHeaderParameters

    def pre_request(self, cycle: Cycle, picked: tuple[int, ...]) -> Mapping[str, str]:
        profile = self.parameters.prefill_profile
        if not is_apart(cycle, cycle.runs.get(profile), picked[0]):
            return {}
        return host_headers(cycle, cycle.runs, {PREFILL: RolePlan(profile)})
