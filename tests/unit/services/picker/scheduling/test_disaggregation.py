"""Disaggregated serving: which stages a request goes through, and how its destination learns of the others."""

from collections.abc import Mapping

import numpy as np
import pytest

from services.picker.decision import Decision
from services.picker.director import Director
from services.picker.pipeline import build
from services.picker.request import Refusal, Request, Route
from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle, PrefixMatch
from services.picker.scheduling.deciders.prefix_based_pd import PrefixBasedPdDecider
from services.picker.scheduling.interfaces import Decider
from services.picker.scheduling.pre_request.stage_headers import DisaggHeadersHandler, PrefillHeaderHandler
from services.picker.scheduling.record import ProfileRun
from services.picker.state.view import View
from shared.attributes import WAITING_QUEUE_SIZE
from shared.config import Invalid, load
from shared.model import ROLE, Endpoint, Objective
from shared.plugin import Registry
from tests.unit.services.picker.scheduling.plugins import plugin, read
from tests.unit.services.picker.world import NOW, cycle, pool, report, request

REGISTRY = Registry.installed()
HEADER = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
FILTERS = (
    "- type: encode-filter\n- type: prefill-filter\n- type: decode-filter\n- type: queue-scorer\n"
    "- type: always-disagg-pd-decider\n- type: always-disagg-multimodal-decider\n"
)
PROFILES = "schedulingProfiles:\n" + "".join(
    f"- name: {stage}\n  plugins: [{{pluginRef: {stage}-filter}}, {{pluginRef: queue-scorer}}]\n"
    for stage in ("encode", "prefill", "decode")
)
PREFILLER, ENCODERS, RANK = "x-prefiller-host-port", "x-encoder-hosts-ports", "x-data-parallel-host-port"
BOTH = "{deciders: {prefill: always-disagg-pd-decider, encode: always-disagg-multimodal-decider}}"


def servers(roles: str) -> View:
    """Endpoints `a0`, `a1`, … with these roles, one a letter, each with a longer queue than the one before: d(ecode),
    p(refill), e(ncode), b(oth), - none."""
    names = {"d": "decode", "p": "prefill", "e": "encode", "b": "both"}
    members = [
        Endpoint(
            id=f"a{at}",
            name=f"a{at}",
            address=f"10.0.0.{at}",
            port=8000,
            labels={ROLE: names[role]} if role in names else {},
        )
        for at, role in enumerate(roles)
    ]
    view = pool(*members)
    report(view, {WAITING_QUEUE_SIZE: list(range(len(roles)))})
    return view


def document(handler: str, parameters: str = "{}", more: str = "", profiles: str = PROFILES) -> str:
    return f"{HEADER}{FILTERS}{more}- {{name: handler, type: {handler}, parameters: {parameters}}}\n{profiles}"


def director(text: str, registry: Registry = REGISTRY) -> Director:
    return build(load(text, registry), np.random.default_rng(1), lambda: 0.0).director


def decided(text: str, view: View, asked: Request | None = None) -> Decision:
    return director(text).decide(asked or request(b"x" * 4000), view, NOW)


def route(decision: Decision) -> tuple[str, Mapping[str, str]]:
    assert isinstance(decision.outcome, Route), decision.outcome
    (destination,) = decision.outcome.destinations
    return destination.removeprefix("10.0.0.").removesuffix(":8000"), decision.outcome.set_headers


def at(row: int) -> str:
    return f"10.0.0.{row}:8000"


PICTURE = request(b"x" * 4000, multimodal=True)
TEXT = request(b"x" * 4000)


@pytest.mark.parametrize(
    ("roles", "asked", "destination", "headers", "stages"),
    [
        ("epd", TEXT, "2", {PREFILLER: at(1)}, {"prefill"}),
        ("epd", PICTURE, "2", {PREFILLER: at(1), ENCODERS: at(0)}, {"prefill", "encode"}),
        ("pd", PICTURE, "1", {PREFILLER: at(0)}, {"prefill"}),  # no encode server: decode does it
        ("ed", PICTURE, "1", {ENCODERS: at(0)}, {"encode"}),
        ("d", PICTURE, "0", {}, set()),
        ("-", PICTURE, "0", {}, set()),
        ("b", PICTURE, "0", {}, set()),  # nobody prefills for itself
        ("pbb", TEXT, "1", {PREFILLER: at(0)}, {"prefill"}),
    ],
)
def test_stages_and_headers(
    roles: str, asked: Request, destination: str, headers: dict[str, str], stages: set[str]
) -> None:
    view = servers(roles)
    decision = decided(document("disagg-profile-handler", BOTH), view, asked)
    assert route(decision) == (destination, headers)
    assert decision.roles.keys() == stages
    kinds = {(): "decode-only", ("prefill",): "prefill-decode", ("encode",): "encode-decode"}
    assert decision.stages == kinds.get(tuple(stages), "encode-prefill-decode")
    assert not decision.failures


def test_without_a_decoder_a_request_is_refused() -> None:
    for roles in ("ep", "e", "p"):
        decision = decided(document("disagg-profile-handler", BOTH), servers(roles))
        assert isinstance(decision.outcome, Refusal)
        assert decision.outcome.status == 429
        assert decision.runs.keys() == {"decode"}, "no other stage is asked"


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("{}", {}),
        ("{deciders: {prefill: always-disagg-pd-decider}}", {PREFILLER: at(1)}),
        ("{deciders: {encode: always-disagg-multimodal-decider}}", {ENCODERS: at(0)}),
        ("{deciderPluginName: always-disagg-pd-decider}", {PREFILLER: at(1)}),
        ("{prefillDeciderPluginName: always-disagg-pd-decider}", {PREFILLER: at(1)}),
        ("{encodeDeciderPluginName: always-disagg-multimodal-decider}", {ENCODERS: at(0)}),
        ("{stageOrder: prefill-first}", {PREFILLER: at(1)}),
        (
            "{stageOrder: prefill-first, deciders: {encode: always-disagg-multimodal-decider}}",
            {PREFILLER: at(1), ENCODERS: at(0)},
        ),
    ],
)
def test_a_stage_without_a_decider_isnt_used(parameters: str, expected: dict[str, str]) -> None:
    assert route(decided(document("disagg-profile-handler", parameters), servers("epd"), PICTURE)) == ("2", expected)


@pytest.mark.parametrize(
    ("order", "runs"),
    [("decode-first", ["decode", "encode", "prefill"]), ("prefill-first", ["prefill", "encode", "decode"])],
)
def test_the_order_of_stages(order: str, runs: list[str]) -> None:
    prefill = "prefill: always-disagg-pd-decider, " if order == "decode-first" else ""
    parameters = f"{{stageOrder: {order}, deciders: {{{prefill}encode: always-disagg-multimodal-decider}}}}"
    decision = decided(document("disagg-profile-handler", parameters), servers("epd"), PICTURE)
    assert list(decision.runs) == runs


def test_prefill_first_goes_on_without_prefill() -> None:
    assert route(decided(document("disagg-profile-handler", "{stageOrder: prefill-first}"), servers("d"))) == ("0", {})


def test_profiles_can_have_other_names() -> None:
    renamed = PROFILES.replace("name: prefill", "name: pre").replace("name: decode", "name: dec")
    for parameters in (
        "{profiles: {prefill: pre, decode: dec}, deciders: {prefill: always-disagg-pd-decider}}",
        "{prefillProfile: pre, decodeProfile: dec, deciderPluginName: always-disagg-pd-decider}",
    ):
        text = document("disagg-profile-handler", parameters, profiles=renamed)
        assert route(decided(text, servers("epd"))) == ("2", {PREFILLER: at(1)})


@pytest.mark.parametrize(
    ("handler", "parameters", "problem"),
    [
        (
            "disagg-profile-handler",
            "{profiles: {decode: nobody}}",
            "plugins[6]: there is no decode profile 'nobody'",
        ),
        (
            "disagg-profile-handler",
            "{profiles: {prefill: nobody}, deciders: {prefill: always-disagg-pd-decider}}",
            "plugins[6]: there is no prefill profile 'nobody'",
        ),
        (
            "disagg-profile-handler",
            "{stageOrder: prefill-first, profiles: {prefill: nobody}}",
            "plugins[6]: there is no prefill profile 'nobody'",
        ),
        (
            "disagg-profile-handler",
            "{deciders: {prefill: nobody}}",
            "plugins[6].parameters.deciders.prefill: 'nobody' is no plugin's name",
        ),
        (
            "disagg-profile-handler",
            "{deciders: {prefill: queue-scorer}}",
            "plugins[6].parameters.deciders.prefill: 'queue-scorer' is of type queue-scorer, which is no decider",
        ),
        (
            "disagg-profile-handler",
            "{profiles: {}, decodeProfile: decode}",
            "plugins[6].parameters: decodeProfile: a former parameter beside profiles and deciders; write only these",
        ),
        (
            "disagg-profile-handler",
            "{stageOrder: prefill-first, deciders: {prefill: always-disagg-pd-decider}}",
            "plugins[6].parameters: stageOrder: with prefill-first, every request is prefilled; leave out the decider",
        ),
        (
            "pd-profile-handler",
            "{}",
            "plugins[6].parameters.deciderPluginName: 'prefix-based-pd-decider' is no plugin's name; "
            "list it under plugins",
        ),
        (
            "data-parallel-profile-handler",
            "{}",
            "plugins[6]: data-parallel-profile-handler runs one scheduling profile, not 3",
        ),
        (
            "header-profile-handler",
            "{defaultProfile: nobody}",
            "plugins[6]: there is no profile 'nobody', which defaultProfile names",
        ),
    ],
)
def test_what_a_handler_lacks(handler: str, parameters: str, problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        load(document(handler, parameters), REGISTRY)
    assert caught.value.lines() == [problem]


class Broken(Decider):
    TYPE = "broken-decider"

    def disaggregate(self, cycle: Cycle, row: int | None) -> bool:
        raise KeyError("gpu")


def test_a_decider_that_fails_skips_its_stage() -> None:
    text = document("disagg-profile-handler", "{deciders: {prefill: broken-decider}}", "- type: broken-decider\n")
    decision = director(text, Registry([*REGISTRY, Broken])).decide(TEXT, servers("pd"), NOW)
    assert route(decision) == ("1", {})
    assert [(failure.plugin, failure.role) for failure in decision.failures] == [("broken-decider", "decider")]


# Deciders


@pytest.mark.parametrize(
    ("raw", "tokens", "cached", "expected"),
    [
        ({}, 10_000, 0, False),  # 0: never
        ({"nonCachedTokens": 16}, 16, 0, True),
        ({"nonCachedTokens": 16}, 15, 0, False),
        ({"nonCachedTokens": 64}, 640, 9, True),  # 64 left
        ({"nonCachedTokens": 65}, 640, 9, False),
        ({"nonCachedTokens": 64}, 640, 10, False),
        ({"nonCachedTokens": 16, "promptTokens": 641}, 640, 0, False),
        ({"nonCachedTokens": 16, "promptTokens": 640}, 640, 0, True),
        ({"nonCachedTokens": 16}, 640, None, False),  # nothing is known
    ],
)
def test_prompts_that_are_long_enough(raw: dict[str, int], tokens: int, cached: int | None, expected: bool) -> None:
    run = cycle(pool("a0", "a1"), request(b"xxxx" * tokens))
    if cached is not None:
        run.put(PREFIX_MATCH, PrefixMatch(np.array([10.0, float(cached)]), 10, 64))
    assert plugin(PrefixBasedPdDecider, raw).disaggregate(run, 1) is expected
    assert plugin(PrefixBasedPdDecider, raw).disaggregate(run, None) is False


def test_a_threshold_isnt_negative() -> None:
    assert read(PrefixBasedPdDecider.Parameters, {"nonCachedTokens": -1})[1] == ["at.nonCachedTokens: -1 is negative"]


def test_the_match_of_the_decode_endpoint_decides() -> None:
    text = document(
        "pd-profile-handler", "{}", "- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 100}}\n"
    )
    made, view = director(text), servers("pd")
    assert route(made.decide(TEXT, view, NOW)) == ("1", {PREFILLER: at(0)})
    assert route(made.decide(TEXT, view, NOW)) == ("1", {}), "by now decode has it"


# What the producers learn


def test_both_servers_have_the_prompt_afterwards_and_neither_if_nobody_served() -> None:
    text = document("disagg-profile-handler", BOTH, "- {name: p, type: prefix-cache-scorer}\n").replace(
        "{pluginRef: queue-scorer}]", "{pluginRef: queue-scorer}, {pluginRef: p}]"
    )
    made, view = director(text), servers("ppd")
    decision = made.decide(TEXT, view, NOW)
    blocks = [view.prefixes.blocks_of(f"a{row}") for row in range(3)]
    assert blocks == [16, 0, 16]
    for placement in decision.progress.placements:
        placement("a1")  # another one served: the prompt was computed where it was
    assert view.prefixes.blocks_of("a0") == 16
    for placement in decision.progress.placements:
        placement(None)
    assert view.prefixes.blocks_of("a0") == 0


def test_each_stage_is_charged_with_what_it_computes() -> None:
    decision = decided(document("disagg-profile-handler", BOTH), servers("epd"), PICTURE)
    assert decision.tokens == 1000
    assert {role: (charge.row, charge.tokens, charge.until_response) for role, charge in decision.roles.items()} == {
        "prefill": (1, 1000, True),
        "encode": (0, 1000, True),
    }


# Headers by plugins of older generations


def ran(**picked: tuple[int, ...]) -> Cycle:
    """A cycle in which profiles have picked these rows."""
    run, nothing = cycle(servers("epdd")), np.zeros(0, np.intp)
    run.runs = {
        name: ProfileRun(name, nothing, (), nothing, (), np.zeros(0), "", rows) for name, rows in picked.items()
    }
    return run


@pytest.mark.parametrize(
    ("run", "prefill", "encode"),
    [
        (ran(), None, None),
        (ran(decode=(2,)), None, None),
        (ran(decode=(2,), prefill=()), None, None),
        (ran(decode=(2,), prefill=(1, 3)), at(1), None),
        (ran(decode=(2,), prefill=(1,), encode=(0, 1)), at(1), f"{at(0)},{at(1)}"),
        (ran(decode=(2,), prefill=(2,), encode=(2,)), None, None),  # the destination itself
    ],
)
def test_headers_for_the_stages_that_ran(run: Cycle, prefill: str | None, encode: str | None) -> None:
    prefiller, encoders = {PREFILLER: prefill} if prefill else {}, {ENCODERS: encode} if encode else {}
    assert plugin(DisaggHeadersHandler, {}).pre_request(run, (2,)) == {**prefiller, **encoders}
    assert plugin(PrefillHeaderHandler, {}).pre_request(run, (2,)) == prefiller
    assert plugin(DisaggHeadersHandler, {"prefillProfile": "p", "encodeProfile": "e"}).pre_request(run, (2,)) == {}


# Data-parallel ranks


RANKS = "schedulingProfiles:\n- name: default\n  plugins: [{pluginRef: queue-scorer}]\n"


def ranks(*queues: int) -> View:
    """Ranks of one server, from port 8000 on."""
    view = pool(
        *(
            Endpoint(id=f"a{rank}", name=f"a{rank}", address="fd00::1", port=8000 + rank, rank=rank)
            for rank in range(len(queues))
        )
    )
    report(view, {WAITING_QUEUE_SIZE: list(queues)})
    return view


def test_the_primary_port_is_the_destination_and_a_header_names_the_rank() -> None:
    text = document("data-parallel-profile-handler", "{primaryPort: 9000}", profiles=RANKS).replace(
        "plugins: [{pluginRef: queue-scorer}]", "plugins: [{pluginRef: queue-scorer}, {pluginRef: picker}]"
    )
    text = text.replace(
        "schedulingProfiles",
        "- {name: picker, type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}\nschedulingProfiles",
    )
    decision = decided(text, ranks(2, 0, 1))
    assert isinstance(decision.outcome, Route)
    assert decision.outcome.destinations == ("[fd00::1]:9000",), "a fallback would need another header"
    assert decision.outcome.set_headers == {RANK: "[fd00::1]:8001"}
    assert decision.picked[0] == 1


def test_ranks_behind_a_port_can_be_prefilled_elsewhere() -> None:
    text = document("pd-profile-handler", "{primaryPort: 9000, deciderPluginName: always-disagg-pd-decider}")
    decision = decided(text, servers("pd"))
    assert isinstance(decision.outcome, Route)
    assert decision.outcome.destinations == ("10.0.0.1:9000",)
    assert decision.outcome.set_headers == {PREFILLER: at(0), RANK: at(1)}


def test_ports() -> None:
    for raw, error in (({"primaryPort": 0}, "below 1"), ({"primaryPort": 65_536}, "above 65535")):
        kind = REGISTRY.find("data-parallel-profile-handler")
        assert kind is not None
        assert read(kind.Parameters, raw)[1] == [f"at.primaryPort: {raw['primaryPort']} is {error}"]


# Profiles by header


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("EPP-Profile", "prefill")], "1"),
        ([("epp-profile", " encode ")], "0"),
        ([("epp-profile", "")], "2"),
        ([], "2"),
    ],
)
def test_the_header_names_the_profile(headers: list[tuple[str, str]], expected: str) -> None:
    asked = request(b"x", headers=headers)
    decision = decided(document("header-profile-handler"), servers("epd"), asked)
    assert route(decision) == (expected, {})
    assert len(decision.runs) == 1


def test_a_profile_that_doesnt_exist_is_a_bad_request() -> None:
    asked = request(b"x", headers=[("epp-profile", "Decode")])
    decision = decided(document("header-profile-handler"), servers("epd"), asked)
    assert isinstance(decision.outcome, Refusal)
    assert (decision.outcome.status, decision.outcome.message) == (
        400,
        "epp-profile: 'Decode' is no scheduling profile",
    )
    assert (decision.runs, decision.failures, decision.picked) == ({}, (), ())


def test_a_single_profile_always_runs() -> None:
    asked = request(b"x", headers=[("x-stage", "nobody")])
    text = document("header-profile-handler", "{headerName: X-Stage}", profiles=RANKS)
    assert route(decided(text, servers("d"), asked)) == ("0", {})


# Saturation by stage


@pytest.mark.parametrize(
    ("roles", "queues", "shed"),
    [
        ("pd", [9, 0], True),  # prefill is full: the mean would be 0.9
        ("pd", [0, 9], True),
        ("pd", [4, 4], False),
        ("ppd", [9, 0, 0], False),
        ("ed", [99, 0], False),  # encode servers are no stage
        ("--", [9, 0], False),
        ("--", [9, 9], True),
    ],
)
def test_a_sheddable_request_is_shed_when_one_stage_is_saturated(roles: str, queues: list[int], shed: bool) -> None:
    view = servers(roles)
    report(view, {WAITING_QUEUE_SIZE: queues}, now=NOW + 1)
    view.upsert("pool.objective.low", Objective(name="low", priority=-1))
    for subset in (None, tuple(endpoint.authority for endpoint in view.layout.endpoints)):
        asked = request(b"x", headers=[("x-llm-d-inference-objective", "low")], subset=subset)
        decision = director(document("disagg-profile-handler", "{}")).decide(asked, view, NOW + 1)
        assert isinstance(decision.outcome, Refusal) is shed


def test_a_stage_that_a_subset_leaves_out_doesnt_count() -> None:
    view = servers("pdd")
    report(view, {WAITING_QUEUE_SIZE: [9, 0, 9]}, now=NOW + 1)
    view.upsert("pool.objective.low", Objective(name="low", priority=-1))
    asked = request(b"x", headers=[("x-llm-d-inference-objective", "low")], subset=("10.0.0.1:8000",))
    assert route(director(document("disagg-profile-handler")).decide(asked, view, NOW + 1))[0] == "1"
