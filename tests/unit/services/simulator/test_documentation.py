"""docs/simulator.md says what there is."""

from pathlib import Path
from typing import get_args

import services.simulator
from services.simulator.faults import AnyFault
from services.simulator.gauges import Pins
from services.simulator.settings import EngineType, SimulatorSettings
from shared.service.settings import describe

PAGE = (Path(services.simulator.__path__[0]).parents[1] / "docs" / "simulator.md").read_text(encoding="utf-8")


def test_every_setting_is_in_the_table_with_its_default_and_words() -> None:
    rows = [
        f"| `{flag}` | {f'`{default}`' if default else ''} | {text} |"
        for flag, _, default, text in describe(SimulatorSettings)
    ]
    assert [row for row in rows if row not in PAGE.splitlines()] == []


def test_every_fault_engine_and_pin_is_named() -> None:
    faults = [fault.__struct_config__.tag for fault in get_args(AnyFault)]
    for name in (*faults, *EngineType, *Pins.__struct_fields__):
        assert f"`{name}`" in PAGE, name
