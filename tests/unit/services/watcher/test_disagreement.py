"""A watcher on standby that would publish something else than is published."""

import pytest
from structlog.testing import capture_logs

from services.watcher.disagreement import Disagreement
from shared.model import Configuration, Endpoint, Fact


def facts(*names: str, port: int = 80, text: str = "a", origin: str = "f") -> dict[str, Fact]:
    found: dict[str, Fact] = {
        f"p.endpoint.{name}": Endpoint(id=name, name=name, address="10.0.0.1", port=port) for name in names
    }
    return {**found, "p.config": Configuration(text=text, origin=origin)}


@pytest.mark.parametrize(
    ("ours", "theirs", "kept", "named"),
    [
        (facts("a"), facts("a"), (), None),
        (facts("a", origin="one"), facts("a", origin="another"), (), None),
        (facts("a"), facts("a", "b"), {"p.endpoint.b"}, None),
        (facts("a"), facts("a", "b"), (), "p.endpoint.b"),
        (facts("a", "b"), facts("b"), (), "p.endpoint.a"),
        (facts("a"), facts("a", port=81), (), "p.endpoint.a"),
        (facts("a", text="b"), facts("a"), (), "p.config"),
        (facts(*"abcde"), facts(), (), "p.endpoint.a, p.endpoint.b, p.endpoint.c, …"),
    ],
    ids=["equal", "another file", "kept", "less", "more", "changed", "configuration", "many"],
)
def test_what_differs_is_named(
    ours: dict[str, Fact], theirs: dict[str, Fact], kept: set[str], named: str | None
) -> None:
    disagreement = Disagreement(settling=0.0)
    disagreement.compare(ours, theirs, kept, 0.0)
    reason = f"this watcher would publish other facts than the leader: {named}" if named else None
    assert disagreement.reason == reason


def test_it_is_said_once_and_not_while_a_change_is_on_its_way() -> None:
    disagreement = Disagreement(settling=10.0)

    def said(ours: dict[str, Fact], *times: float) -> list[bool]:
        reasons: list[bool] = []
        for now in times:
            disagreement.compare(ours, facts("a"), (), now)
            reasons.append(disagreement.reason is not None)
        return reasons

    with capture_logs() as logs:
        assert said(facts("b"), 0.0, 9.0) == [False, False]
        assert said(facts("a"), 9.5) == [False]
        assert said(facts("b"), 9.9, 19.0, 20.0, 30.0) == [False, False, True, True]
        assert [log["event"] for log in logs] == ["facts.disagree"]
        assert said(facts("a"), 31.0) == [False]
        assert said(facts("c"), 32.0, 50.0) == [False, True]
    assert len(logs) == 2
