"""`disagg-headers-handler` and `prefill-header-handler`: name the endpoints of stages in headers, as
`disagg-profile-handler` does."""

from collections.abc import Mapping

from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import PreRequest
from services.picker.scheduling.stages import ENCODE, PREFILL, host_headers, is_apart, role_plan


class PrefillHeaderParameters(Struct, frozen=True, rename="camel"):
    """The profile of the stage."""

    prefill_profile: str = "prefill"


class PrefillHeaderHandler(PreRequest):
    """A header if prefill ran and picked another working endpoint than the request's destination."""

    TYPE = "prefill-header-handler"
    Parameters = PrefillHeaderParameters
    parameters: PrefillHeaderParameters

    def pre_request(self, cycle: Cycle, picked: tuple[int, ...]) -> Mapping[str, str]:
        return _headers(cycle, picked, {PREFILL: self.parameters.prefill_profile})


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
        profiles = {PREFILL: self.parameters.prefill_profile, ENCODE: self.parameters.encode_profile}
        return _headers(cycle, picked, profiles)


def _headers(cycle: Cycle, picked: tuple[int, ...], profiles: Mapping[str, str]) -> Mapping[str, str]:
    """`profiles` are those of the stages."""
    runs, decode = cycle.runs, picked[0]
    stages = {stage: name for stage, name in profiles.items() if is_apart(cycle, runs.get(name), decode)}
    plans = {stage: role_plan(cycle, stage, runs[name], decode) for stage, name in stages.items()}
    return host_headers(cycle, runs, plans)
