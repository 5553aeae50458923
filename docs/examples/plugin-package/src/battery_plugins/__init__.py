"""Plugins that spare servers which run on battery."""

from battery_plugins.low_battery import LowBatteryFilter
from battery_plugins.mains_power import MainsPowerScorer

PLUGINS = (MainsPowerScorer, LowBatteryFilter)
