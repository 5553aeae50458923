"""`disagg-headers-handler`: names the endpoints of prefill and encode in headers, as `disagg-profile-handler` does."""

from collections.abc import Mapping

from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import PreRequest
from services.picker.scheduling.record import RolePlan
from services.picker.scheduling.stages import ENCODE, PREFILL, host_headers, is_apart


class DisaggHeadersParameters(Struct, frozen=True, rename="camel"):
    """The profiles of the stages."""

    prefill_profile: str = "prefill"
    encode_profile: str = "encode"


class DisaggHeadersHandler(PreRequest):
    """Headers for the stages that ran and picked another working endpoint than the request's destination."""

    TYPE = "disagg-headers-handler"
    Parameters = DisaggHeadersParameters
    parameters: DisaggHeadersParameters

    def pre_request(self, cycle: Cycle, picked: tuple[int, ...]) -> Mapping[str, str]:
        named = {PREFILL: self.parameters.prefill_profile, ENCODE: self.parameters.encode_profile}
        stages = {
            stage: RolePlan(profile)
            for stage, profile in named.items()
            if is_apart(cycle, cycle.runs.get(profile), picked[0])
        }
        return host_headers(cycle, cycle.runs, stages)
