"""What `pointsman why` makes of pickers' answers."""

from functools import partial, reduce
from typing import Any

import pytest

from pointsman.endpoint_report import sentences
from pointsman.explain import text
from pointsman.query_command import lines_of
from pointsman.why import because, decisions, showable, unknown_endpoint
from shared.bus.errors import Malformed
from shared.bus.query_client import Answer


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"decisions":1}', b'{"decisions":[1]}', b'{"decisions":[{}]}', b'{"decisions":[{"at":1}]}'],
)
def test_an_answer_that_cant_be_read_doesnt_hide_the_others(content: bytes) -> None:
    good = Answer("p1", "picker", 1, b'{"decisions":[{"at":"12:00","why":["it was the best"]}]}')
    (decision,) = decisions([Answer("p0", "picker", 1, content), good])
    assert because("r", decision) == ["r at 12:00 by picker p1: it was the best"]


def test_a_decision_names_the_picker_that_answers_whatever_it_says() -> None:
    content = b'{"decisions":[{"at":"12:00","why":[],"picker_id":"p2"}]}'
    (decision,) = decisions([Answer("p1", "picker", 1, content)])
    assert decision["picker_id"] == "p1"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"configuration": "", "model": "", "target_model": "", "refused": 1},
        {"configuration": "", "model": "", "target_model": "", "endpoint": "", "destinations": None},
        {"configuration": "", "model": "", "target_model": "", "refused": {}, "profiles": []},
        {"known": True},
        {"known": True, "fact": []},
    ],
)
def test_what_cant_be_shown_is_an_error_of_its_member(document: dict[str, Any]) -> None:
    for make in (partial(text, document), partial(sentences, {"picker": [{**document, "known": True}]})):
        with pytest.raises(Malformed, match=r"^picker p's answer can't be shown: \w+Error: "):
            lines_of("picker p", make)


def test_what_is_nested_too_deeply_is_an_error_of_its_member() -> None:
    nested = reduce(lambda inner, _: [inner], range(100_000), list[Any]())
    with pytest.raises(Malformed, match=r"^picker p's answer can't be shown: RecursionError: "):
        lines_of("picker p", lambda: [repr(nested)])


FACT = {"id": "default/a", "address": "10.0.0.1", "port": 8000}


@pytest.mark.parametrize(
    ("tier", "view", "problem"),
    [
        ("watcher", {"known": True}, "KeyError: 'fact'"),
        ("collector", {"known": True, "fact": FACT, "assigned": True}, "KeyError: 'sources'"),
        ("collector", {"known": False, "assigned": True}, None),
        ("picker", {"known": True, "fact": FACT, "recently": {}}, "KeyError: 'draining'"),
    ],
)
def test_an_answer_that_cant_be_shown_is_named_and_doesnt_hide_the_others(
    tier: str, view: dict[str, Any], problem: str | None
) -> None:
    good = {"known": True, "fact": FACT, "member": "good"}
    views = {"watcher": [good], "collector": [good], "picker": [good]}
    shown, problems = showable({**views, tier: [{**view, "member": "bad"}, good]})
    assert problems == ([f"{tier} bad's answer can't be shown: {problem}"] if problem else [])
    assert sentences(shown) == sentences(views)


def test_names_that_members_answer_with_do_not_control_the_terminal() -> None:
    views = {"watcher": [], "picker": [{"known": False, "endpoints": 2, "some": ["default/\x9b2J"]}]}
    said = "no member of the pool knows an endpoint 'b'; it has default/\\x9b2J and 1 more"
    assert unknown_endpoint("b", views) == said
