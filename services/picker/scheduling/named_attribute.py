"""Attributes that plugins name in their parameters: which one is meant, and from where to where its values go.

Parameters name an attribute and the plugin that makes it. Without a maker the core extractor's is meant, because an
engine's `customMetrics` are the usual ones; an explicitly empty one takes whichever plugin makes an attribute of that
name.
"""

from math import isfinite

from shared.attributes import CORE
from shared.plugin import Need

ADVICE = "list it under customMetrics of core-metrics-extractor, or name the producer that makes it"


def named(parameter: str, name: str, producer: str | None) -> Need:
    """The need of a plugin whose parameter `parameter` names an attribute; `producer` None is the core extractor."""
    return Need(parameter, name, CORE if producer is None else producer, ADVICE)


def check_name(parameter: str, name: str, producer: str | None) -> None:
    """Raises ValueError for `name/producer` in one word: how the two are told apart would be a guess."""
    if producer is None and "/" in name:
        own, _, maker = name.rpartition("/")
        raise ValueError(f"{parameter}: {name!r} has a '/'; write {parameter}: {own!r} and producer: {maker!r}")


def check_range(low: float, high: float) -> None:
    """Raises ValueError for a range that values can't be placed in."""
    if not low < high:
        raise ValueError(f"min: {low:g}, max: {high:g}; max has to be greater than min")
    if not isfinite(high - low):
        raise ValueError(f"min: {low:g}, max: {high:g}; they are too far apart")
