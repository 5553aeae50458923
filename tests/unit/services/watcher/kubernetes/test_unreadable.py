"""What is told of objects that nothing could be made of."""

from services.watcher.kubernetes.resource import JsonObject, identity
from services.watcher.kubernetes.unreadable import SHOWN, Unreadable


def item(name: str, namespace: str | None = "default") -> JsonObject:
    return {"metadata": {"name": name, **({"namespace": namespace} if namespace else {})}}


def test_the_first_one_is_named_with_the_reason_and_the_others_are_counted() -> None:
    odd = Unreadable("nodes")
    assert odd.problem == ""
    odd.note(item("n1", None), KeyError("name"))
    assert odd.problem == "nodes: n1 can't be read: KeyError: 'name'"
    odd.note(item("n2"), ValueError("odd"))
    assert odd.problem == "nodes: n1 can't be read: KeyError: 'name', and 1 more"
    assert odd.state() == {"n1": "KeyError: 'name'", "default/n2": "ValueError: odd"}
    assert repr(odd) == "<Unreadable nodes: 2>"


def test_another_form_of_it_may_be_readable() -> None:
    odd, bad, worse = Unreadable("pods"), item("bad"), item("worse")
    for one in (bad, worse):
        odd.note(one, ValueError("odd"))
    odd.keep({identity(bad): item("bad"), identity(worse): worse})
    assert list(odd.state()) == ["default/worse"]
    odd.keep({})
    assert (odd.problem, len(odd)) == ("", 0)


def test_not_all_are_shown_where_there_are_many() -> None:
    odd = Unreadable("pods")
    for number in range(100):
        odd.note(item(f"p{number}"), ValueError("odd"))
    assert (len(odd), len(odd.state())) == (100, SHOWN)
