"""The lists of paths on the admin ports of the three tiers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from services.collector.app import CollectorService
from services.collector.settings import CollectorSettings
from services.picker.app import PickerService
from services.picker.settings.picker import PickerSettings
from services.watcher.app import WatcherService
from services.watcher.settings import WatcherSettings
from shared.service.admin import ProcessPages, build_app
from shared.service.process import Service

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
SERVICES: dict[str, Callable[[], Service]] = {
    "watcher": lambda: WatcherService(WatcherSettings()),
    "collector": lambda: CollectorService(CollectorSettings()),
    "picker": lambda: PickerService(PickerSettings()),
}


@pytest.mark.parametrize("tier", SERVICES)
def test_every_path_of_a_tier_is_described_on_its_port_and_in_the_documentation(tier: str) -> None:
    service = SERVICES[tier]()
    app = build_app(ProcessPages(service.readiness, CollectorRegistry(), service.state), service.routes())
    _, _, *lines = TestClient(app).get("/").text.splitlines()
    assert len(lines) == 8 + len(service.routes().routes)
    for line in lines:
        path, _, meaning = line.partition("  ")
        assert meaning.strip().endswith("."), line
        assert f"`{path.strip()}`" in OPERATIONS.read_text(encoding="utf-8")
