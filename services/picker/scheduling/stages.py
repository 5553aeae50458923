"""The stages of disaggregated serving: what the endpoints that were picked for them come to.

A decode server, or the sidecar in front of it, connects to the servers that headers name: it has them encode pictures
and compute the prompt first. It can do both itself, so a stage without a working endpoint is skipped.
"""

from collections.abc import Mapping

from services.picker.metadata import DATA_PARALLEL_HOST, ENCODERS, PREFILLER
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.record import ProfileRun, RolePlan

PREFILL, ENCODE = "prefill", "encode"
NO_ENDPOINT, DOWN = "no endpoint", "down"
"""Why a stage is skipped: its profile left no endpoint, or the picked one seems to be down."""


def roles(
    cycle: Cycle, runs: Mapping[str, ProfileRun], decode: str, prefill: str, encode: str
) -> tuple[dict[str, RolePlan], dict[str, str]]:
    """(the further endpoints that work on a request, by role; why roles that were wanted have none). The names are
    those of profiles. A stage whose endpoint decodes, too, is no further one."""
    found: dict[str, RolePlan] = {}
    skipped: dict[str, str] = {}
    row = runs[decode].picked[0]
    for role, profile in ((PREFILL, prefill), (ENCODE, encode)):
        run = runs.get(profile) if profile else None
        if run is None:
            continue
        if why := unusable(cycle, run, row):
            skipped[role] = why
        elif run.picked[0] != row:
            found[role] = role_plan(cycle, role, run, row)
    return found, skipped


def role_plan(cycle: Cycle, role: str, run: ProfileRun, decode: int) -> RolePlan:
    """What a stage that can be used comes to. All picked encode endpoints share the pictures, but those that can't be
    used."""
    others = tuple([row for row in run.picked[1:] if not _is_down(cycle, row, decode)]) if role == ENCODE else ()
    return RolePlan(run.profile, until_response=True, reads_prompt=role == PREFILL, others=others)


def rank_failed_last(cycle: Cycle, decode: int | None) -> None:
    """Have the endpoints that failed the decode endpoint lately picked for further stages only where no other is
    left; if it isn't known yet, those that failed several."""
    if failed := cycle.view.health.apart_from(decode):
        cycle.ranked_last = {**cycle.ranked_last, **failed}


def unusable(cycle: Cycle, run: ProfileRun, decode: int) -> str:
    """Why the stage that picked this can't be used; empty if it can. If the decode endpoint seems to be down as well,
    nothing is known of either."""
    if not run.picked:
        return NO_ENDPOINT
    return DOWN if _is_down(cycle, run.picked[0], decode) else ""


def _is_down(cycle: Cycle, row: int, decode: int) -> bool:
    health = cycle.view.health
    return (row in health.unhealthy or row in health.apart_from(decode)) and decode not in health.unhealthy


def is_apart(cycle: Cycle, run: ProfileRun | None, decode: int) -> bool:
    """Whether a stage ran and has a working endpoint of its own."""
    return run is not None and not unusable(cycle, run, decode) and run.picked[0] != decode


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
        headers[ENCODERS] = ",".join([authorities[row] for row in (runs[encode.profile].picked[0], *encode.others)])
    return headers


def rank_header(cycle: Cycle, runs: Mapping[str, ProfileRun], profile: str) -> dict[str, str]:
    """The header that names the rank of a data-parallel server behind one port."""
    run = runs.get(profile)
    return {DATA_PARALLEL_HOST: cycle.layout.authorities[run.picked[0]]} if run is not None and run.picked else {}
