"""Feature gates: what a document switches on or off by name."""

from collections.abc import Iterable

from shared.config.problems import Problems, join, show

FLOW_CONTROL = "flowControl"
GATES = {FLOW_CONTROL: False, "haPopulateNonLeaderDatastore": True}
"""The gates, and whether they are on by default."""
FORMER_GATES = ("dataLayer", "enableLegacyMetrics", "prepareDataPlugins")
"""Gates of older generations: what they switched is always on, or gone."""

_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def read_gates(texts: Iterable[str], path: str, problems: Problems) -> dict[str, bool]:
    """Every gate and whether it is on, from a list of `name`, `name=true` and `name=false`, in any case."""
    gates = dict(GATES)
    folded = {name.lower(): name for name in (*GATES, *FORMER_GATES)}
    given: dict[str, bool] = {}
    for index, text in enumerate(texts):
        at = join(path, index)
        word, equals, value = (part.strip() for part in text.partition("="))
        name = folded.get(word.lower())
        on = _BOOLEANS.get(value.lower()) if equals else True
        if name is None:
            hint = problems.hint(word, GATES) or f"; known: {', '.join(GATES)}"
            problems.error(at, f"{show(text)} names no feature gate{hint}")
        elif on is None:
            problems.error(at, f"{show(text)}: {value!r} isn't true or false")
        elif name in FORMER_GATES:
            problems.warn(at, f"{name} has no effect any more; leave it out")
        elif given.setdefault(name, on) is not on:
            problems.error(at, f"{name} is switched on and off; write it once")
        else:
            gates[name] = on
    return gates
