"""What is told of objects that nothing could be made of."""

from services.watcher.kubernetes.resource import JsonObject
from services.watcher.kubernetes.unreadable import SHOWN, Unreadable


def item(name: str, namespace: str | None = "default") -> JsonObject:
    return {"metadata": {"name": name, **({"namespace": namespace} if namespace else {})}}


def test_not_all_are_shown_where_there_are_many() -> None:
    odd = Unreadable("pods")
    for number in range(100):
        odd.note(item(f"p{number}"), ValueError("odd"))
    assert (len(odd), len(odd.state())) == (100, SHOWN)
