import pytest

from shared.config.gates import FLOW_CONTROL, GATES, read_gates
from shared.config.problems import Problems


def read(*texts: str) -> tuple[dict[str, bool], Problems]:
    problems = Problems()
    return read_gates(texts, "featureGates", problems), problems


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ("haPopulateNonLeaderDatastore", GATES[FLOW_CONTROL]),
        ("flowControl", True),
        ("flowControl=true", True),
        (" FLOWCONTROL = T ", True),
        ("flowControl=1", True),
        ("flowControl=false", False),
        ("flowcontrol=F", False),
        ("flowControl=0", False),
    ],
)
def test_a_gate_is_switched_by_name_in_any_case(text: str, on: bool) -> None:
    gates, problems = read(text)
    assert gates[FLOW_CONTROL] is on
    assert problems.errors == []


@pytest.mark.parametrize("name", ["dataLayer", "enableLegacyMetrics", "prepareDataPlugins=true"])
def test_a_former_gate_has_no_effect_and_says_so(name: str) -> None:
    gates, problems = read("flowControl", name)
    assert gates == {**GATES, FLOW_CONTROL: True}
    [warning] = problems.warnings
    assert str(warning) == f"featureGates[1]: {name.partition('=')[0]} has no effect any more; leave it out"


def test_every_wrong_gate_is_named() -> None:
    _, problems = read(
        "flowControll", "zebra", "flowControl=maybe", "flowControl=", "flowControl", "flowControl=false", ""
    )
    known = "known: flowControl, haPopulateNonLeaderDatastore"
    assert [str(error) for error in problems.errors] == [
        "featureGates[0]: 'flowControll' names no feature gate; did you mean 'flowControl'?",
        f"featureGates[1]: 'zebra' names no feature gate; {known}",
        "featureGates[2]: 'flowControl=maybe': 'maybe' isn't true or false",
        "featureGates[3]: 'flowControl=': '' isn't true or false",
        "featureGates[5]: flowControl is switched on and off; write it once",
        f"featureGates[6]: '' names no feature gate; {known}",
    ]
