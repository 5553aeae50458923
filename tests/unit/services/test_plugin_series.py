"""Series of plugins end with the configuration that has them, in each tier."""

import asyncio

import pytest
from prometheus_client import generate_latest

from services.collector.app import CollectorService
from services.collector.settings import CollectorSettings
from services.picker.app import PickerService
from services.picker.settings.picker import PickerSettings
from shared.service.process import Service
from shared.tasks import cancel
from tests.waiting import eventually

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer, name: my-scorer}
- {type: metrics-data-source, name: my-source}
- {type: core-metrics-extractor, name: my-extractor}
dataLayer: {sources: [{pluginRef: my-source, extractors: [{pluginRef: my-extractor}]}]}
"""


def plugins(service: Service) -> set[str]:
    """The plugins with series."""
    lines = generate_latest(service.registry).decode().splitlines()
    return {
        value
        for line in lines
        for value in line.split('"')[1::2]
        if line.startswith(("pointsman_plugin_failures_total", "pointsman_picker_plugin_seconds"))
    }


@pytest.mark.parametrize(
    ("make", "former", "own"),
    [
        (lambda: PickerService(PickerSettings()), "token-load-scorer", "my-scorer"),
        (lambda: CollectorService(CollectorSettings()), "metrics-data-source", "my-source"),
    ],
    ids=["picker", "collector"],
)
async def test_a_new_configuration_ends_the_series_of_the_former_one(make: object, former: str, own: str) -> None:
    assert callable(make)
    service = make()
    assert former in plugins(service)
    reading = asyncio.create_task(service.config.run())
    service.config.offer(CONFIG, "bus")
    await eventually(lambda: service.config.accepted == 1)
    await cancel(reading)
    assert own in plugins(service)
    assert former not in plugins(service)
