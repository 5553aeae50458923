"""Documents are loaded beside the event loop."""

import asyncio
import threading
import time

import pytest

from services.console import configuration
from services.console.configuration import Documents
from shared.config.problems import Invalid, Problem
from shared.config.schema import Bounds
from shared.model import Configuration


async def test_documents_are_loaded_in_a_thread_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = Documents(Bounds(), 1000)
    here, loading, most = threading.get_ident(), 0, 0

    def load(text: str, *_: object, **__: object) -> None:
        nonlocal loading, most
        assert threading.get_ident() != here
        loading += 1
        most = max(most, loading)
        time.sleep(0.01)
        loading -= 1
        raise Invalid([Problem("kind", text)])

    monkeypatch.setattr(configuration, "load", load)
    published = Configuration(text="published")
    checks = await asyncio.gather(documents.check("a"), documents.check("b"), documents.run(published))
    assert [check["errors"] for check in checks[:2]] == [["kind: a"], ["kind: b"]]
    assert most == 1
    monkeypatch.undo()
    assert isinstance(await documents.run(published), Invalid), "it is loaded once"
    assert not isinstance(await documents.run(None), Invalid)
