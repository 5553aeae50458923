"""The stages of disaggregated serving: what the endpoints that were picked for them come to.

A decode server, or the sidecar in front of it, connects to the servers that headers name: it has them encode pictures
and compute the prompt first.
"""

from collections.abc import Mapping

from services.picker.metadata import DATA_PARALLEL_HOST, ENCODERS, PREFILLER
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.record import ProfileRun, RolePlan

PREFILL, ENCODE = "prefill", "encode"


def roles(runs: Mapping[str, ProfileRun], decode: str, prefill: str, encode: str) -> dict[str, RolePlan]:
    """The further endpoints that work on a request, by role; the names are those of profiles. A stage whose endpoint
    decodes, too, is no further one."""
    found: dict[str, RolePlan] = {}
    if prefill and _apart(runs, prefill, decode):
        found[PREFILL] = RolePlan(prefill, until_response=True, reads_prompt=True)
    if encode and _apart(runs, encode, decode):
        found[ENCODE] = RolePlan(encode, until_response=True)
    return found


def decision_type(stages: Mapping[str, RolePlan]) -> str:
    """What the Go original calls a decision for these stages and decode."""
    further = [stage for stage in (ENCODE, PREFILL) if stage in stages]
    return "-".join([*further, "decode"]) if further else "decode-only"


def host_headers(cycle: Cycle, runs: Mapping[str, ProfileRun], stages: Mapping[str, RolePlan]) -> dict[str, str]:
    """The headers that name these endpoints."""
    authorities, headers = cycle.layout.authorities, {}
    if (prefill := stages.get(PREFILL)) is not None:
        headers[PREFILLER] = authorities[runs[prefill.profile].picked[0]]
    if (encode := stages.get(ENCODE)) is not None:
        headers[ENCODERS] = ",".join([authorities[row] for row in runs[encode.profile].picked])
    return headers


def rank_header(cycle: Cycle, runs: Mapping[str, ProfileRun], profile: str) -> dict[str, str]:
    """The header that names the rank of a data-parallel server behind one port."""
    run = runs.get(profile)
    return {DATA_PARALLEL_HOST: cycle.layout.authorities[run.picked[0]]} if run is not None and run.picked else {}


def _apart(runs: Mapping[str, ProfileRun], profile: str, decode: str) -> bool:
    run = runs.get(profile)
    return run is not None and bool(run.picked) and run.picked[0] != runs[decode].picked[0]
