"""Attributes that plugins name in their parameters: which one it is, and from where to where its values go.

Parameters name an attribute and the plugin that makes it, in two parameters or in one: `GPUUtilization/dcgm-extractor`.
Without a producer, it is the core extractor's, because an engine's `customMetrics` are the usual ones; an explicitly
empty one takes whichever plugin makes an attribute of that name.
"""

from math import isfinite

from services.picker.scheduling.cycle import IN_FLIGHT_LOAD, PREFIX_MATCH
from shared.attributes import CORE
from shared.plugin import Input

ADVICE = "list it under customMetrics of core-metrics-extractor, or name the producer that makes it"


def named(parameter: str, key: str, producer: str | None) -> Input:
    """The need of a plugin whose parameter `parameter` names an attribute by its name, or as `name/producer`.

    `producer` is what the parameter of that name says; None, where it is left out, is the core extractor unless the
    key itself may name the producer.
    """
    default = "" if "/" in key else CORE
    return Input(parameter=parameter, name=key, producer=default if producer is None else producer, advice=ADVICE)


def in_flight_load(producer: str) -> Input:
    """The need of a plugin whose parameter names the producer of the load in flight."""
    return Input(IN_FLIGHT_LOAD, parameter="inFlightLoadProducerName", producer=producer)


def prefix_match(producer: str, *, optional: bool = False) -> Input:
    """The need of a plugin whose parameter names the producer of the matches with cached prefixes."""
    return Input(PREFIX_MATCH, optional=optional, parameter="prefixMatchInfoProducerName", producer=producer)


def check_range(low: float, high: float) -> None:
    """Raises ValueError for a range that values can't be placed in."""
    if not low < high:
        raise ValueError(f"min: {low:g}, max: {high:g}; max has to be greater than min")
    if not isfinite(high - low):
        raise ValueError(f"min: {low:g}, max: {high:g}; they are too far apart")
