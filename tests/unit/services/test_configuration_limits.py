"""What a configuration, and a file that a flag names, may hold at most is a setting of every tier."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.collector.app import CollectorService
from services.collector.settings import CollectorSettings
from services.picker.app import PickerService
from services.picker.settings.picker import PickerSettings
from services.watcher.file_provider import config_root, file_source
from services.watcher.resources import PoolId
from services.watcher.settings import WatcherSettings
from services.watcher.sources import Rejected
from shared.config import Invalid

TEXT = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}]
"""


async def picker(**settings: Any) -> None:
    PickerService(PickerSettings(**settings))


async def collector(**settings: Any) -> None:
    CollectorService(CollectorSettings(**settings))


async def watcher(**settings: Any) -> None:
    chosen = WatcherSettings(**settings)
    source = file_source(chosen, PoolId("default", "default"))
    root = config_root(chosen)
    assert root is not None
    source.follow([root])
    for event in await source.load():
        if isinstance(event, Rejected):
            raise Invalid(event.problems)


TIERS: dict[str, Callable[..., Any]] = {"picker": picker, "collector": collector, "watcher": watcher}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("setting", "enough", "why"),
    [
        ("max_config_entries", 2, "2 entries; at most 1 are allowed"),
        ("max_config_values", 13, "more than 12 values"),
        ("max_file_size", len(TEXT), f"larger than {len(TEXT) - 1} bytes"),
    ],
)
async def test_a_configuration_beyond_a_tiers_settings_is_refused(
    tmp_path: Path, tier: str, setting: str, enough: int, why: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(TEXT)
    await TIERS[tier](config_file=str(path), **{setting: enough})
    with pytest.raises(Invalid, match=why):
        await TIERS[tier](config_file=str(path), **{setting: enough - 1})
