"""Stages of disaggregated serving without a working endpoint: the decode endpoint does their work, and it is told."""

import pytest

from services.picker.scheduling.pre_request.stage_headers import DisaggHeadersHandler, PrefillHeaderHandler
from shared.attributes import REACHABLE
from tests.unit.services.picker.scheduling.plugins import plugin
from tests.unit.services.picker.scheduling.test_disaggregation import (
    BOTH,
    ENCODERS,
    PICTURE,
    PREFILLER,
    PROFILES,
    at,
    decided,
    document,
    ran,
    route,
    servers,
)
from tests.unit.services.picker.world import NOW, report


@pytest.mark.parametrize(
    ("roles", "down", "headers", "stages", "skipped"),
    [
        ("ppd", [0], {PREFILLER: at(1)}, "prefill-decode", {}),
        ("ppd", [0, 1], {}, "decode-only", {"prefill": "down"}),
        ("d", [], {}, "decode-only", {"prefill": "no endpoint"}),
        ("epd", [1], {ENCODERS: at(0)}, "encode-decode", {"prefill": "down"}),
        ("epd", [0, 1], {}, "decode-only", {"prefill": "down", "encode": "down"}),
        ("pd", [0, 1], {PREFILLER: at(0)}, "prefill-decode", {}),  # nothing is known of either
        ("b", [], {}, "decode-only", {}),  # it prefills itself
    ],
)
def test_a_stage_without_a_working_endpoint_is_skipped_and_named(
    roles: str, down: list[int], headers: dict[str, str], stages: str, skipped: dict[str, str]
) -> None:
    view = servers(roles)
    for row in down:
        view.health.suspect(view.layout.endpoints[row], NOW)
    decision = decided(document("disagg-profile-handler", BOTH), view, PICTURE)
    assert route(decision)[1] == headers
    expected = skipped if "e" in roles else {"encode": "no endpoint", **skipped}
    assert (decision.stages, dict(decision.skipped_stages)) == (stages, expected)
    assert decision.explain()["skipped_stages"] == dict(decision.skipped_stages)
    assert decision.roles.keys() == {stage for stage in ("prefill", "encode") if stage in stages}


@pytest.mark.parametrize(
    ("roles", "failed", "headers", "skipped"),
    [
        ("ppd", (2, 0), {PREFILLER: at(1)}, None),
        ("ppd", (2, 1), {PREFILLER: at(0)}, None),
        ("pd", (1, 0), {}, "down"),
        ("pdd", (2, 0), {PREFILLER: at(0)}, None),
    ],
)
def test_a_prefill_server_that_failed_the_decode_server_works_for_others_only(
    roles: str, failed: tuple[int, int], headers: dict[str, str], skipped: str | None
) -> None:
    """Its scrapes have been good since."""
    view = servers(roles)
    decode, prefill = (view.layout.endpoints[row] for row in failed)
    view.health.answered(decode, 502, NOW - 1, [prefill])
    report(view, {REACHABLE: [1.0] * len(roles)})
    assert view.health.unhealthy == {}
    decision = decided(document("disagg-profile-handler", BOTH), view, PICTURE)
    assert route(decision)[1] == headers
    assert decision.skipped_stages.get("prefill") == skipped


@pytest.mark.parametrize(
    ("roles", "down", "failed", "encoders"),
    [
        ("deee", [], [], [1, 2, 3]),
        ("deee", [1], [], [2, 3]),
        ("deee", [1], [2], [3]),
        ("deee", [], [2], [1, 3]),
        ("deee", [0, 1], [], [2, 3, 1]),  # nothing is known of either
        ("deee", [1, 2, 3], [], []),
    ],
)
def test_encode_servers_that_share_the_pictures_are_those_that_work(
    roles: str, down: list[int], failed: list[int], encoders: list[int]
) -> None:
    view = servers(roles)
    endpoints = view.layout.endpoints
    for row in failed:
        view.health.answered(endpoints[0], 502, NOW - 1, [endpoints[row]])
    report(view, {REACHABLE: [1.0] * len(roles)})
    for row in down:
        view.health.suspect(endpoints[row], NOW)
    several = PROFILES.replace("encode-filter}, ", "encode-filter}, {pluginRef: several}, ")
    more = "- {name: several, type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}\n"
    text = document("disagg-profile-handler", "{deciders: {encode: always-disagg-multimodal-decider}}", more, several)
    decision = decided(text, view, PICTURE)
    assert route(decision)[1] == ({ENCODERS: ",".join(map(at, encoders))} if encoders else {})
    assert decision.routed().helpers == tuple(endpoints[row] for row in encoders)


def test_with_prefill_first_a_prefill_server_that_failed_several_is_picked_last() -> None:
    view = servers("ppdd")
    for decode in view.layout.endpoints[2:]:
        view.health.answered(decode, 502, NOW - 1, view.layout.endpoints[:1])
    report(view, {REACHABLE: [1.0] * 4})
    view.health.answered(None, 200, NOW, view.layout.endpoints[:1])
    view.health.refresh(NOW)
    assert view.health.unhealthy == {}
    decision = decided(document("disagg-profile-handler", "{stageOrder: prefill-first}"), view, PICTURE)
    assert route(decision)[1] == {PREFILLER: at(1)}


def test_headers_by_plugins_of_older_generations_dont_name_a_dead_endpoint() -> None:
    run = ran(decode=(2,), prefill=(1,), encode=(0, 1))
    assert plugin(DisaggHeadersHandler, {}).pre_request(run, (2,))[ENCODERS] == f"{at(0)},{at(1)}"
    run.view.health.suspect(run.layout.endpoints[1], NOW)
    assert plugin(DisaggHeadersHandler, {}).pre_request(run, (2,)) == {ENCODERS: at(0)}
    assert plugin(PrefillHeaderHandler, {}).pre_request(run, (2,)) == {}
