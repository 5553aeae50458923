"""Session affinity, as filter and scorer: by a token that clients send back, and by the session's id."""

from base64 import b64encode
from typing import Any

import pytest

from services.picker.scheduling.producers.agent_identity import AgentIdentity
from services.picker.scheduling.producers.session_id import MAX_COOKIES, SESSION_ID, SessionIdProducer
from services.picker.scheduling.session_affinity import (
    MAX_EXPIRED,
    Bindings,
    SessionAffinityFilter,
    SessionAffinityParameters,
    SessionAffinityScorer,
)
from services.picker.state.view import View
from shared.attributes import REACHABLE
from shared.config import Invalid, load
from shared.model import Endpoint
from shared.plugin import Registry
from tests.unit.services.picker.extproc.proxy import LEAN, Answer, body, headers, response_headers
from tests.unit.services.picker.handler import PickerUnderTest, destinations
from tests.unit.services.picker.scheduling.plugins import plugin, read
from tests.unit.services.picker.world import cycle, pool, report, request

HEADER = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
PROFILE = "- type: random-picker\nschedulingProfiles:\n- name: default\n  plugins: [{pluginRef: it}]\n"
REGISTRY = Registry.installed()


def three() -> View:
    return pool(*(Endpoint(id=f"ns/a{at}", name=f"a{at}", address=f"10.0.0.{at}", port=8000) for at in range(3)))


def token(id: str) -> str:
    return b64encode(id.encode()).decode()


@pytest.mark.parametrize(
    ("sent", "row"),
    [
        (token("ns/a1"), 1),
        (token("ns/a9"), None),
        (token("a1"), None),
        ("", None),
        ("%%%", None),
        ("é", None),
        (b64encode(b"\xff\xfe").decode(), None),
        (token("ns/" + "a" * 2000), None),
    ],
)
def test_a_token_names_an_endpoint(sent: str, row: int | None) -> None:
    view = three()
    run = cycle(view, request(headers=[("X-Session-Token", sent)]))
    kept = plugin(SessionAffinityFilter, {}).filter(run, run.candidates).tolist()
    assert kept == ([0, 1, 2] if row is None else [row])
    scores = plugin(SessionAffinityScorer, {}).score(run, run.candidates).tolist()
    assert scores == [float(row == each) for each in range(3)]


def test_an_endpoint_that_is_no_candidate_or_seems_to_be_down_is_nobodys() -> None:
    view = three()
    asked = request(headers=[("x-session-token", token("ns/a1"))])
    affinity = plugin(SessionAffinityFilter, {})
    run = cycle(view, asked)
    assert affinity.filter(run, run.candidates[[0, 2]]).tolist() == [0, 2]
    assert affinity.filter(run, run.candidates[:0]).tolist() == []
    report(view, {REACHABLE: [1, 0, 1]})
    assert affinity.filter(cycle(view, asked), view.layout.all_rows).tolist() == [0, 1, 2]


class World(PickerUnderTest):
    """A picker of three endpoints with one affinity plugin, named `it`."""

    def __init__(self, kind: str, parameters: str = "{}", more: str = "", profile: str = PROFILE) -> None:
        super().__init__(three(), f"{HEADER}- {{name: it, type: {kind}, parameters: {parameters}}}\n{more}{profile}")
        self.handler.observe = lambda: False

    def ask(self, served: str = "", **named: str) -> tuple[str, dict[str, str]]:
        """(where a request goes, what the client gets as response headers)."""
        pairs = {name.replace("_", "-"): value for name, value in named.items()}
        start = headers({":method": "POST", ":path": "/v1/completions", **pairs}, modes=LEAN)
        stream, answers = self.begin(start, body(b'{"model": "m", "prompt": "x"}', end=True))
        went = destinations(answers)
        got: list[Answer] = self.say(stream, response_headers(served=served or went))
        stream.end()
        return went, {name: value for answer in got for name, value in answer.set_headers.items()}


@pytest.mark.parametrize("kind", ["session-affinity-filter", "session-affinity-scorer"])
def test_a_client_that_sends_its_token_back_stays_with_its_endpoint(kind: str) -> None:
    picker = "max-score-picker" if "scorer" in kind else "random-picker"
    world = World(kind, profile=PROFILE.replace("random-picker", picker))
    first, got = world.ask()
    assert set(got) == {"x-session-token"}
    for _ in range(10):
        assert world.ask(x_session_token=got["x-session-token"]) == (first, got)


def test_the_token_is_of_the_endpoint_that_really_served() -> None:
    world = World("session-affinity-filter")
    went, got = world.ask(served="10.0.0.2:8000", x_session_token=token("ns/a1"))
    assert (went, got) == ("10.0.0.1:8000", {"x-session-token": token("ns/a2")})


def test_the_header_can_have_another_name() -> None:
    world = World("session-affinity-filter", "{encodedEndpointHeaderConfig: {header: X-Pin}}")
    _, got = world.ask(x_pin=token("ns/a2"))
    assert got == {"x-pin": token("ns/a2")}


BY_ID = "{strategy: session_id}"


@pytest.mark.parametrize("kind", ["session-affinity-filter", "session-affinity-scorer"])
def test_a_session_stays_with_its_first_endpoint_by_its_id_alone(kind: str) -> None:
    picker = "max-score-picker" if "scorer" in kind else "random-picker"
    world = World(kind, BY_ID, profile=PROFILE.replace("random-picker", picker))
    homes = {name: world.ask(x_session_id=name)[0] for name in "abcdefgh"}
    assert len(set(homes.values())) > 1
    for name, home in homes.items():
        assert [world.ask(x_session_id=name) for _ in range(3)] == [(home, {})] * 3


def test_a_session_moves_when_its_endpoint_has_gone_and_stays_there() -> None:
    world = World("session-affinity-filter", BY_ID)
    home, _ = world.ask(x_session_id="s")
    gone = next(endpoint for endpoint in world.view.layout.endpoints if endpoint.authority == home)
    world.view.delete(f"pool.endpoint.{gone.id}")
    moved, _ = world.ask(x_session_id="s")
    assert moved != home
    world.view.upsert(f"pool.endpoint.{gone.id}", gone)
    assert [world.ask(x_session_id="s")[0] for _ in range(5)] == [moved] * 5


def test_an_unused_session_is_forgotten() -> None:
    bindings = Bindings(ttl=10.0)
    bindings.bind("s", "a", 0.0)
    bindings.bind("t", "b", 5.0)
    assert (bindings.endpoint("s", 10.0), bindings.endpoint("t", 10.0)) == ("a", "b")
    assert (bindings.endpoint("s", 10.1), bindings.endpoint("t", 10.1), len(bindings)) == (None, "b", 1)
    bindings.bind("t", "b", 11.0)
    assert bindings.endpoint("t", 21.0) == "b"


def test_one_request_forgets_some_of_many_unused_sessions() -> None:
    bindings = Bindings(ttl=10.0)
    for number in range(MAX_EXPIRED + 2):
        bindings.bind(str(number), "a", 0.0)
    assert [bindings.endpoint(str(MAX_EXPIRED + 1), 11.0), len(bindings)] == [None, 2]
    assert [bindings.endpoint("0", 11.0), len(bindings)] == [None, 0]


def test_no_more_sessions_are_kept_than_there_is_room_for() -> None:
    bindings = Bindings(ttl=10.0, limit=2)
    for name in "abc":
        bindings.bind(name, name, 0.0)
    assert [bindings.endpoint(name, 0.0) for name in "abc"] == [None, "b", "c"]


SOURCES = (
    "{strategy: session_id, sessionIdConfig: {sources: [{header: X-My}, {attribute: SessionID}, "
    "{attribute: agent-identity, producer: agent-identity}]}}"
)
PRODUCERS = "- {type: session-id-producer, parameters: {cookieName: sid}}\n- type: agent-identity\n"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"x_my": "1"}, {"x_my": "1", "cookie": "sid=other"}),
        ({"cookie": "a=b; sid=7"}, {"cookie": "sid=7"}),
        ({"session_id": "9"}, {"x_claude_code_session_id": "9"}),
    ],
)
def test_ids_come_from_the_first_source_that_has_one(first: dict[str, str], then: dict[str, str]) -> None:
    world = World("session-affinity-filter", SOURCES, PRODUCERS)
    home, _ = world.ask(**first)
    assert [world.ask(**then)[0] for _ in range(8)] == [home] * 8


def test_an_attribute_that_nothing_makes_is_an_error() -> None:
    with pytest.raises(Invalid) as caught:
        load(f"{HEADER}- {{name: it, type: session-affinity-filter, parameters: {SOURCES}}}\n", REGISTRY)
    paths = [problem.path for problem in caught.value.problems]
    assert paths == [f"plugins[0].parameters.sessionIdConfig.sources[{at}].attribute" for at in (1, 2)]


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ({"strategy": "cookie"}, "at.strategy"),
        ({"sessionIdConfig": {"sources": []}}, "at.sessionIdConfig.sources"),
        ({"sessionIdConfig": {"sources": [{}]}}, "at.sessionIdConfig.sources[0]"),
        ({"sessionIdConfig": {"sources": [{"header": "a", "attribute": "b"}]}}, "at.sessionIdConfig.sources[0]"),
        ({"sessionIdConfig": {"evictionTtlSeconds": 0}}, "at.sessionIdConfig.evictionTtlSeconds"),
        ({"encodedEndpointHeaderConfig": {"header": "host"}}, "at.encodedEndpointHeaderConfig"),
    ],
)
def test_parameters(raw: dict[str, Any], path: str) -> None:
    (error,) = read(SessionAffinityParameters, raw)[1]
    assert error.startswith(f"{path}: ")


# Where ids come from


@pytest.mark.parametrize(
    ("raw", "sent", "expected"),
    [
        ({"headerName": "X-Sid"}, [("x-sid", "7")], "7"),
        ({"headerName": "X-Sid"}, [("x-sid", "")], None),
        ({"headerName": "X-Sid"}, [], None),
        ({"cookieName": "sid"}, [("cookie", "sid=7")], "7"),
        ({"cookieName": "sid"}, [("cookie", 'a=1;  sid = "7" ; b=2')], "7"),
        ({"cookieName": "sid"}, [("cookie", "a=1"), ("cookie", "sid=7")], "7"),
        ({"cookieName": "sid"}, [("cookie", "xsid=7; sid; SID=8")], None),
        ({"cookieName": "sid"}, [("cookie", "a=1;" * (MAX_COOKIES - 1) + "sid=7")], "7"),
        ({"cookieName": "sid"}, [("cookie", "a=1;" * (MAX_COOKIES - 1) + "b=2"), ("cookie", "sid=7")], None),
    ],
)
def test_session_ids(raw: dict[str, Any], sent: list[tuple[str, str]], expected: str | None) -> None:
    run = cycle(three(), request(headers=sent))
    plugin(SessionIdProducer, raw).produce(run)
    assert run.get(SESSION_ID) == expected


@pytest.mark.parametrize("raw", [{}, {"headerName": "a", "cookieName": "b"}])
def test_an_id_has_one_place(raw: dict[str, Any]) -> None:
    assert read(SessionIdProducer.Parameters, raw)[1] == ["at: one of headerName and cookieName is required"]


@pytest.mark.parametrize(
    ("further", "sent", "expected"),
    [
        ([], [], ""),
        ([], [("session_id", "4")], "4"),
        ([], [("session_id", "4"), ("session-id", "3")], "3"),
        ([], [("session-id", "3"), ("X-Session-Affinity", "2")], "2"),
        ([], [("x-session-affinity", "2"), ("x-claude-code-session-id", "1")], "1"),
        ([], [("x-session-affinity", "2"), ("x-claude-code-session-id", "")], "2"),
        (["X-Mine"], [("x-claude-code-session-id", "1"), ("x-mine", "0")], "0"),
    ],
)
def test_agents(further: list[str], sent: list[tuple[str, str]], expected: str) -> None:
    identity = plugin(AgentIdentity, {"additionalSessionHeaders": further})
    assert identity.fairness_id(request(headers=sent).headers) == expected
