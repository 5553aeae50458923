"""Plugins are made in another thread than that of the event loop, the first ones from the bus, too."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from services.collector.app import CollectorService
from services.collector.settings import CollectorSettings
from services.picker.app import PickerService
from services.picker.settings.picker import PickerSettings
from shared.plugin import Plugin, Registry, Tier
from shared.tasks import cancel
from tests.waiting import eventually


class Slow(Plugin):
    """Notes which thread makes it, which takes until it may go on."""

    TYPE = "slow"
    TIERS = frozenset({Tier.PICKER, Tier.COLLECTOR})
    threads: list[threading.Thread]
    go_on: threading.Event

    def __init__(self, name: str, parameters: Any = None) -> None:
        super().__init__(name, parameters)
        self.threads.append(threading.current_thread())
        assert self.go_on.wait(60)


def document(name: str) -> str:
    head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
    return f"{head}plugins: [{{type: queue-scorer}}, {{type: slow, name: {name}}}]\n"


@pytest.mark.parametrize(
    "make",
    [
        lambda plugins: PickerService(PickerSettings(), plugins),
        lambda plugins: CollectorService(CollectorSettings(), plugins),
    ],
    ids=["picker", "collector"],
)
async def test_plugins_are_made_in_a_thread(
    make: Callable[[Registry], PickerService | CollectorService], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slow, "threads", [], raising=False)
    monkeypatch.setattr(Slow, "go_on", threading.Event(), raising=False)
    service = make(Registry([*Registry.installed(), Slow]))
    reading = asyncio.create_task(service.config.run())
    service.config.offer(document("first"), "bus")
    await eventually(lambda: Slow.threads)
    assert service.readiness.reasons()["configuration"] == "the first configuration is being read"
    Slow.go_on.set()
    await eventually(lambda: service.config.accepted == 1)
    assert "configuration" not in service.readiness.reasons()
    service.config.offer(document("second"), "bus")
    await eventually(lambda: service.config.accepted == 2)
    assert len(Slow.threads) == 2
    assert threading.main_thread() not in Slow.threads
    await cancel(reading)
